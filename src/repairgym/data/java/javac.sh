#!/bin/sh
tools=$(dirname "$(dirname "$(readlink -f "$0")")")/toolchain
exec "$tools"/usr/lib/jvm/java-17-openjdk-*/bin/javac "$@"
