#!/bin/sh
# Maven with the repository of the toolchain and without a network; small heaps start fastest.
tools=$(dirname "$(dirname "$(readlink -f "$0")")")/toolchain
JAVA_HOME=$(echo "$tools"/usr/lib/jvm/java-17-openjdk-*)
export JAVA_HOME
export MAVEN_OPTS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx384m -Duser.home=/tmp"
exec "$tools/usr/share/maven/bin/mvn" -B -o "-Dmaven.repo.local=$tools/usr/share/maven-repo" "$@"
