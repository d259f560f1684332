"""Gradle outside of the folders that its code names."""

import zipfile
from pathlib import Path

import pytest

from repairgym.errors import PackageNotFoundError
from repairgym.tasks.layers.debian import Deb, debs_digest, toolchain_scripts, toolchain_texts
from repairgym.tasks.layers.gradle_home import move_gradle

LOCATOR = "org/gradle/internal/installation/CurrentGradleInstallationLocator.class"
INSTALLATION = "org/gradle/internal/installation/GradleInstallation.class"
GRADLE, MAVEN = Deb("gradle", "4.4.1-18", "a" * 64), Deb("maven", "3.8.7-1", "b" * 64)


def constant(text: str) -> bytes:
    """A text in the constants of a class."""
    return b"\x01" + len(text).to_bytes(2, "big") + text.encode()


def toolchain(place: Path, locator: str = "/usr/share/gradle") -> Path:
    """An unpacked Gradle of two classes, with a link to its jar."""
    (place / "usr/share/java").mkdir(parents=True)
    (place / "usr/share/gradle/init.d").mkdir(parents=True)
    jar = place / "usr/share/java/gradle-core-api-4.4.1.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr(LOCATOR, b"before" + constant(locator) + b"after")
        archive.writestr(INSTALLATION, constant("/usr/share/java"))
        archive.writestr("org/gradle/Other.class", constant("/usr/share/gradle"))
    (place / "usr/share/java/gradle-core-api.jar").symlink_to(jar.name)
    return jar


def test_two_classes_name_the_toolchain_of_a_sandbox_and_nothing_else_changes(tmp_path: Path) -> None:
    jar = toolchain(tmp_path)
    move_gradle(tmp_path)
    with zipfile.ZipFile(jar) as archive:
        assert archive.read(LOCATOR) == b"before" + constant("/opt/env/toolchain/usr/share/gradle") + b"after"
        assert archive.read(INSTALLATION) == constant("/opt/env/toolchain/usr/share/java")
        assert archive.read("org/gradle/Other.class") == constant("/usr/share/gradle")
    assert (tmp_path / "usr/share/java/gradle-core-api.jar").is_symlink()
    assert sorted(path.name for path in jar.parent.iterdir()) == [jar.with_name("gradle-core-api-4.4.1.jar").name,
        "gradle-core-api.jar"]  # fmt: skip
    assert "repo.maven.apache.org" in (tmp_path / "usr/share/gradle/init.d/offline.gradle").read_text()


def test_another_gradle_is_an_error(tmp_path: Path) -> None:
    toolchain(tmp_path, "/usr/lib/gradle")
    with pytest.raises(PackageNotFoundError, match="CurrentGradleInstallationLocator"):
        move_gradle(tmp_path)


def test_a_toolchain_has_the_program_of_its_build_tool() -> None:
    assert set(toolchain_scripts([GRADLE])) == {"java", "javac", "gradle"}
    assert set(toolchain_scripts([MAVEN])) == {"java", "javac", "mvn"}


def test_changes_to_gradle_count_in_its_digest() -> None:
    assert any("/opt/env/toolchain/usr/share/java" in text for text in toolchain_texts([GRADLE]))
    assert not any("/opt/env/toolchain/usr/share" in text for text in toolchain_texts([MAVEN]))
    renamed = GRADLE._replace(name="gradle-other")
    assert debs_digest([GRADLE]) != debs_digest([renamed])
