#!/bin/sh
# Maven with the repository of the toolchain and without a network; for its settings see java.sh.
tools=$(dirname "$(dirname "$(readlink -f "$0")")")/toolchain
JAVA_HOME=$(echo "$tools"/usr/lib/jvm/java-17-openjdk-*)
export JAVA_HOME MALLOC_ARENA_MAX=1
export MAVEN_OPTS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx384m -XX:CompressedClassSpaceSize=96m \
-XX:ReservedCodeCacheSize=48m -Duser.home=/tmp -Djansi.mode=strip"
exec "$tools/usr/share/maven/bin/mvn" -B -o "-Dstyle.color=never" "-Dmaven.repo.local=$tools/usr/share/maven-repo" "$@"
