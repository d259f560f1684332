#!/bin/sh
# See java.sh.
tools=$(dirname "$(dirname "$(readlink -f "$0")")")/toolchain
export MALLOC_ARENA_MAX=1
exec "$tools"/usr/lib/jvm/java-17-openjdk-*/bin/javac -J-XX:+UseSerialGC -J-XX:TieredStopAtLevel=1 -J-Xmx384m \
    -J-XX:CompressedClassSpaceSize=96m -J-XX:ReservedCodeCacheSize=48m "$@"
