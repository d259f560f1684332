#!/bin/sh
# Gradle without a network, and without the plugin of Debian that replaces versions; for its settings see java.sh.
tools=$(dirname "$(dirname "$(readlink -f "$0")")")/toolchain
JAVA_HOME=$(echo "$tools"/usr/lib/jvm/java-17-openjdk-*)
export JAVA_HOME MALLOC_ARENA_MAX=1
exec "$JAVA_HOME/bin/java" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx384m -XX:CompressedClassSpaceSize=96m \
    -XX:ReservedCodeCacheSize=48m -Duser.home=/tmp -Dorg.gradle.native=false \
    -Dgradle-debian-helper.hook.enabled=false --add-opens java.base/java.lang=ALL-UNNAMED \
    -cp "$tools"/usr/share/gradle/lib/gradle-launcher-4.4.1.jar org.gradle.launcher.GradleMain \
    --offline --no-daemon --console=plain --gradle-user-home /tmp/gradle "$@"
