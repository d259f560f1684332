"""The files that a task adds to the tree of a Java library: settings for its build tool, and the check of its build.

Reads a `JavaPackage`. Makes texts. Guarantees: what a build needs is in the toolchain of the lock (`layers/debian`), so
that it works without a network; the settings are written from the entry alone.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from repairgym.records import BuildStep, Task
from repairgym.tasks.build.wheel_check import check_text
from repairgym.tasks.layers.catalogue import JavaPackage

JAVA_CHECK_FOLDER = "repairgym_java"
JAVA_TEST = f"{JAVA_CHECK_FOLDER}/test_java.py"
"""Builds the project, looks at its classes and runs its tests."""
JAVA_EXPECTED = f"{JAVA_CHECK_FOLDER}/expected.json"
POM, GRADLE, GRADLE_ROOT = "pom.xml", "build.gradle", "settings.gradle"
_STEPS = {
    "maven": BuildStep(kind="compile", command=("mvn", "test-compile")),
    "gradle": BuildStep(kind="compile", command=("gradle", "testClasses")),
}
_JUNIT = "junit:junit:4.13.2"
_PLUGINS = {"maven-compiler-plugin": "3.10.1", "maven-resources-plugin": "3.3.0"}
"""Versions of Debian 12."""


def is_java_check(test_ids: tuple[str, ...]) -> bool:
    """Return True when tests of a Java build are among ``test_ids``."""
    return any(test_id.startswith(f"{JAVA_CHECK_FOLDER}/") for test_id in test_ids)


def project_files(package: JavaPackage, tree: Path) -> dict[str, str]:
    """Return relative path -> text of the files over ``tree``, the upstream archive; no classes are expected yet."""
    suite = [path.removeprefix("src/test/java/") for path in package.test_files(tree)]
    jars = [_jar(pin) for pin in package.dependencies]
    expected = {
        "tool": package.tool, "encoding": package.encoding, "level": package.level, "jars": jars, "suite": suite,
        "classes": [], "num_passed": 0,
    }  # fmt: skip
    check = {JAVA_TEST: check_text(JAVA_TEST), JAVA_EXPECTED: expected_text(expected)}
    return {**settings_files(package), **check}


def settings_files(package: JavaPackage) -> dict[str, str]:
    """Return relative path -> text of the settings of ``package`` for its build tool."""
    if package.tool == "maven":
        return {POM: pom(package)}
    return {GRADLE: gradle_script(package), GRADLE_ROOT: f"rootProject.name = '{package.artifact}'\n"}


def _jar(pin: str) -> str:
    """Return the place of a dependency in the toolchain's Maven repository."""
    group, artifact, version = pin.split(":")
    return f"{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.jar"


def expected_text(expected: Mapping[str, object]) -> str:
    """Return the text of `JAVA_EXPECTED`."""
    return json.dumps(expected, indent=1, sort_keys=True) + "\n"


def pom(package: JavaPackage) -> str:
    """Return the settings of ``package`` for Maven."""
    dependencies = [*((pin, "compile") for pin in package.dependencies), (_JUNIT, "test")]
    lines = [
        '<project xmlns="http://maven.apache.org/POM/4.0.0">',
        "  <modelVersion>4.0.0</modelVersion>",
        *_elements(2, groupId=package.group, artifactId=package.artifact, version=package.version.rpartition("-")[0]),
        *_elements(2, packaging="jar"),
        "  <properties>",
        f"    <maven.compiler.source>{package.level}</maven.compiler.source>",
        f"    <maven.compiler.target>{package.level}</maven.compiler.target>",
        f"    <project.build.sourceEncoding>{escape(package.encoding)}</project.build.sourceEncoding>",
        "  </properties>",
        "  <dependencies>",
    ]
    for pin, scope in dependencies:
        group, artifact, version = pin.split(":")
        own = _elements(6, groupId=group, artifactId=artifact, version=version, scope=scope)
        lines += ["    <dependency>", *own, "    </dependency>"]
    lines += ["  </dependencies>", "  <build>", "    <sourceDirectory>src/main/java</sourceDirectory>"]
    lines += ["    <testSourceDirectory>src/test/java</testSourceDirectory>", "    <plugins>"]
    for artifact, version in _PLUGINS.items():
        own = _elements(8, groupId="org.apache.maven.plugins", artifactId=artifact, version=version)
        lines += ["      <plugin>", *own, "      </plugin>"]
    return "\n".join([*lines, "    </plugins>", "  </build>", "</project>", ""])


def gradle_script(package: JavaPackage) -> str:
    """Return the settings of ``package`` for Gradle."""
    pins = [*(("implementation", pin) for pin in package.dependencies), ("testImplementation", _JUNIT)]
    dependencies = "".join(f"    {configuration} '{pin}'\n" for configuration, pin in pins)
    folders = "".join(
        f"    {name} {{\n        java.srcDirs = ['src/{name}/java']\n"
        f"        resources.srcDirs = ['src/{name}/resources']\n    }}\n"
        for name in ("main", "test")
    )
    return f"""plugins {{
    id 'java'
}}

group = '{package.group}'
version = '{package.version.rpartition("-")[0]}'
sourceCompatibility = '{package.level}'
targetCompatibility = '{package.level}'

repositories {{
    mavenCentral()
}}

dependencies {{
{dependencies}}}

sourceSets {{
{folders}}}

tasks.withType(JavaCompile) {{
    options.encoding = '{package.encoding}'
}}
"""


def _elements(indent: int, **values: str) -> list[str]:
    return [f"{' ' * indent}<{name}>{escape(value)}</{name}>" for name, value in values.items()]


def build_command(package: JavaPackage) -> str:
    """Return the command that builds ``package`` and its tests."""
    return " ".join(_STEPS[package.tool].command)


def with_java_check(task: Task, max_build_s: float) -> Task:
    """Give ``task`` the deadline and the step of a build; grading restores the check, and no settings."""
    paths = tuple(sorted({*task.test_paths, JAVA_TEST, JAVA_EXPECTED}))
    step = _STEPS["gradle" if GRADLE in task.pinned_files else "maven"]
    bounds = {"test_timeout_s": max_build_s, "timeout_s": max_build_s, "build_timeout_s": max_build_s}
    return task.model_copy(update={**bounds, "test_paths": paths, "build": (step,)})
