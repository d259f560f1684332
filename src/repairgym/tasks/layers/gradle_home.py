"""Gradle of Debian outside of the folders that its code names.

Reads an unpacked toolchain. Changes it: two classes name `/usr/share/gradle` and `/usr/share/java`, and afterwards what
a sandbox shows below `ENVIRONMENT`. Guarantees: nothing else of a
package changes; a Gradle whose classes do not name these folders is a `PackageNotFoundError`.
"""

import zipfile
from importlib import resources
from pathlib import Path

from repairgym.errors import PackageNotFoundError
from repairgym.sandbox.guest.rootfs import ENVIRONMENT

_SHARE = "usr/share"
_TOOLCHAIN = f"{ENVIRONMENT}/toolchain"
_NAMES = {
    "org/gradle/internal/installation/CurrentGradleInstallationLocator.class": "/usr/share/gradle",
    "org/gradle/internal/installation/GradleInstallation.class": "/usr/share/java",
}
"""Class -> folder that it names."""


def move_gradle(place: Path) -> None:
    """Let Gradle below ``place`` look in the toolchain of a sandbox for itself and for its central repository."""
    changed: set[str] = set()
    for jar in sorted((place / _SHARE / "java").glob("gradle-*.jar")):
        if not jar.is_symlink():
            changed |= _rename(jar)
    if missing := sorted(set(_NAMES) - changed):
        raise PackageNotFoundError(f"this Gradle is none of Debian 12: {missing[0]} does not name {_NAMES[missing[0]]}")
    (place / _SHARE / "gradle/init.d/offline.gradle").write_text(_init_script(), encoding="utf-8")


def moved_parts() -> tuple[str, ...]:
    """Return what `move_gradle` changes a Gradle to, as texts."""
    return (_init_script(), *(f"{name} {_TOOLCHAIN}{folder}" for name, folder in _NAMES.items()))


def _init_script() -> str:
    return resources.files("repairgym").joinpath("data", "java", "offline.gradle").read_text("utf-8")


def _rename(jar: Path) -> set[str]:
    """Rewrite the classes of ``jar`` that name a folder; return their names."""
    with zipfile.ZipFile(jar) as archive:
        wanted = [name for name in archive.namelist() if name in _NAMES]
        if not wanted:
            return set()
        other, changed = jar.with_suffix(".new"), set()
        with zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED) as target:
            for entry in archive.infolist():
                content = archive.read(entry)
                if entry.filename in wanted:
                    folder = _NAMES[entry.filename]
                    old, new = _constant(folder), _constant(_TOOLCHAIN + folder)
                    if content.count(old) == 1:
                        changed.add(entry.filename)
                        content = content.replace(old, new)
                target.writestr(entry, content)
    other.replace(jar)
    return changed


def _constant(text: str) -> bytes:
    """Return a text as the constants of a class hold it: tag 1, length, UTF-8."""
    return b"\x01" + len(text).to_bytes(2, "big") + text.encode()
