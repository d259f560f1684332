"""Environments of a few installed packages, so that a test's sandbox starts without all that the project needs.

Reads the packages of the running interpreter; makes a virtual environment with copies of some of them. Guarantees that
nothing is downloaded, and that the copies have byte code, whatever our variables say of it: no sandbox could write it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


def copy_environment(place: Path, names: Iterable[str] = ("pytest",)) -> Path:
    """Make a virtual environment in ``place`` that holds the packages ``names`` and what they require.

    Raises:
        PackageNotFoundError: A package is not installed.
    """
    site = place / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    site.mkdir(parents=True)
    (place / "bin").mkdir()
    for name in ("python", "python3", f"python3.{sys.version_info.minor}"):
        (place / "bin" / name).symlink_to(Path(sys.executable).resolve())
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", place)
    for package in _closure(names):
        for top in sorted(
            {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}
        ):
            source = Path(str(package.locate_file(top)))
            if source.is_dir():
                shutil.copytree(source, site / top, dirs_exist_ok=True)
            else:
                shutil.copy2(source, site)
    subprocess.run([place / "bin" / "python", "-m", "compileall", "-q", site], env={}, check=True)
    return place


def _closure(names: Iterable[str]) -> Iterator[Distribution]:
    """Give the packages ``names`` and, without extras, all that they require."""
    open_names, seen = list(names), set[str]()
    while open_names:
        package = distribution(open_names.pop())
        if package.name not in seen:
            seen.add(package.name)
            yield package
            required = map(Requirement, package.requires or ())
            open_names += [need.name for need in required if need.marker is None or need.marker.evaluate({"extra": ""})]
