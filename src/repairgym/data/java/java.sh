#!/bin/sh
# Test runs bound the address space, and a JVM reserves more than it uses: class space, code cache, arenas of malloc.
tools=$(dirname "$(dirname "$(readlink -f "$0")")")/toolchain
export MALLOC_ARENA_MAX=1
exec "$tools"/usr/lib/jvm/java-17-openjdk-*/bin/java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx384m \
    -XX:CompressedClassSpaceSize=96m -XX:ReservedCodeCacheSize=48m "$@"
