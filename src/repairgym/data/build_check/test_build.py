"""Builds the project as an installer would and looks at the wheel.

The build sees the distributions that ``[build-system] requires`` names and what those need, and nothing else that is
installed here. ``expected.json`` beside this file says what a good wheel holds.
"""

from __future__ import annotations

import ast
import configparser
import email
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

HERE = Path(__file__).resolve().parent
HOOK = """
import importlib, json, os, sys
site, paths, backend, name, argument = json.loads(sys.argv[1])
sys.path[:0] = [*paths, site]
module, _, attribute = backend.partition(":")
hooks = importlib.import_module(module)
for part in filter(None, attribute.split(".")):
    hooks = getattr(hooks, part)
made = getattr(hooks, name)(*argument) if hasattr(hooks, name) else []
print("\\nmade " + json.dumps(made))
"""


class BuildError(AssertionError):
    """The project does not build."""


def fitting(requirement: Requirement) -> list[metadata.Distribution]:
    """Installed distributions and those in the wheelhouse (a folder per version) that satisfy it, the newest first."""
    places = [*sys.path, *map(str, (Path(sys.prefix) / "wheelhouse").glob("*"))]
    found = {one.version: one for one in metadata.distributions(name=requirement.name, path=places)}
    fits = [version for version in found if requirement.specifier.contains(version, prereleases=True)]
    if not fits:
        versions = ", ".join(sorted(found, key=Version))
        told = f" (from versions: {versions})" if found else ""
        raise BuildError(f"no matching distribution found for {requirement}{told}")
    return [found[version] for version in sorted(fits, key=Version, reverse=True)]


Distributions = dict[str, metadata.Distribution]


def resolve(wanted: list[Requirement], chosen: Distributions) -> Distributions:
    """``chosen`` with what ``wanted`` needs, the newest versions that go together."""
    if not wanted:
        return chosen
    first, *others = wanted
    name = re.sub(r"[-_.]+", "-", first.name).lower()
    if first.marker and not first.marker.evaluate({"extra": ""}):
        return resolve(others, chosen)
    if name in chosen:
        if first.specifier.contains(chosen[name].version, prereleases=True):
            return resolve(others, chosen)
        raise BuildError(f"conflicting dependencies: {first} and {name} {chosen[name].version}")
    errors: list[BuildError] = []
    for one in fitting(first):
        try:
            return resolve([*others, *map(Requirement, one.requires or [])], {**chosen, name: one})
        except BuildError as error:
            errors.append(error)
    raise errors[0]


def distributions_for(requirements: list[str]) -> Distributions:
    """The newest distributions that satisfy ``requirements``, and those that they need."""
    return resolve([Requirement(text) for text in requirements], {})


def make_site(requirements: list[str], place: Path) -> Path:
    """A folder that holds those distributions and nothing else."""
    place.mkdir(exist_ok=True)
    for distribution in distributions_for(requirements).values():
        for top in {file.parts[0] for file in distribution.files or [] if ".." not in file.parts}:
            link = place / top
            if not link.exists() and top != "__pycache__" and not top.endswith(".pth"):
                link.symlink_to(Path(str(distribution.locate_file(top))).resolve())
    return place


def call_hook(source: Path, site: Path, backend: str, paths: list[str], name: str, argument: list[str]) -> Any:
    """Result of a PEP 517 hook in a process of its own."""
    order = json.dumps([str(site), paths, backend, name, argument])
    command = [sys.executable, "-I", "-S", "-c", HOOK, order]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Invalid\w*)\b", line)]
        raise BuildError(f"{name} failed: {(errors or lines or ['no output'])[-1]}")
    return json.loads(done.stdout.rpartition("\nmade ")[2])


def build(root: Path, place: Path) -> Path:
    """Build a wheel of the project in ``root``."""
    source = place / "source"
    shutil.copytree(root, source, ignore=shutil.ignore_patterns(HERE.name, ".dist", "__pycache__"), symlinks=True)
    settings = source / "pyproject.toml"
    try:
        table = tomllib.loads(settings.read_text(encoding="utf-8")) if settings.exists() else {}
    except tomllib.TOMLDecodeError as error:
        raise BuildError(f"pyproject.toml cannot be read: {error}") from None
    system = table.get("build-system", {"requires": ["setuptools", "wheel"]})
    backend = system.get("build-backend", "setuptools.build_meta:__legacy__")
    paths = [str(source / path) for path in system.get("backend-path", [])]
    if backend.endswith(":__legacy__"):
        paths.append(str(source))
    site = make_site(system["requires"], place / "site")
    more = call_hook(source, site, backend, paths, "get_requires_for_build_wheel", [])
    site = make_site([*system["requires"], *more], place / "whole-site")
    (place / "wheels").mkdir()
    return place / "wheels" / str(call_hook(source, site, backend, paths, "build_wheel", [str(place / "wheels")]))


def describe(wheel: Path) -> dict[str, Any]:
    """What a wheel holds; files by their digest, so that an empty file of the right name is not the file."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        info = next(name.split("/")[0] for name in names if name.split("/")[0].endswith(".dist-info"))
        head = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        points = f"{info}/entry_points.txt"
        entry_points = archive.read(points).decode() if points in names else ""
        inside = sorted(name for name in names if not name.startswith(f"{info}/"))
        content = {name: hashlib.sha256(archive.read(name)).hexdigest()[:16] for name in inside}
    return {
        "name": re.sub(r"[-_.]+", "-", str(head["Name"])).lower(),
        "version": str(head["Version"]),
        "requires_python": str(head["Requires-Python"] or ""),
        "dependencies": sorted(str(Requirement(text)) for text in head.get_all("Requires-Dist") or []),
        "modules": {name: digest for name, digest in content.items() if name.endswith(".py")},
        "data": {name: digest for name, digest in content.items() if not name.endswith(".py")},
        "entry_points": read_entry_points(entry_points),
    }


def read_entry_points(text: str) -> dict[str, str]:
    """``group name`` -> object reference."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return {f"{group} {name}": value for group in parser.sections() for name, value in parser.items(group)}


_made: list[Any] = []


def built() -> tuple[Path, dict[str, Any]]:
    """The wheel and what it holds, made once; fails each time when it cannot be made."""
    if not _made:
        try:
            wheel = build(HERE.parent, Path(tempfile.mkdtemp()))
            _made.append((wheel, describe(wheel)))
        except BuildError as error:
            _made.append(error)
    if isinstance(_made[0], BuildError):
        raise AssertionError(str(_made[0]))
    wheel, found = _made[0]
    return wheel, found


def expected() -> Any:
    """What a good wheel holds."""
    return json.loads((HERE / "expected.json").read_text(encoding="utf-8"))


def test_a_wheel_can_be_built() -> None:
    assert built()[0].suffix == ".whl"


def test_name_and_version() -> None:
    found = built()[1]
    assert (found["name"], found["version"]) == (expected()["name"], expected()["version"])


def test_this_python_is_supported() -> None:
    bound, version = built()[1]["requires_python"], sys.version.split()[0]
    assert SpecifierSet(bound).contains(version), f"requires Python {bound}, but this is {version}"


def test_supported_pythons_are_those_that_were_promised() -> None:
    assert built()[1]["requires_python"] == expected()["requires_python"]


def test_modules_are_in_the_wheel() -> None:
    missing = sorted(name for name, _ in expected()["modules"].items() - built()[1]["modules"].items())
    assert not missing, f"{len(missing)} modules are not in the wheel: {', '.join(missing[:3])}"


def test_data_files_are_in_the_wheel() -> None:
    missing = sorted(name for name, _ in expected()["data"].items() - built()[1]["data"].items())
    assert not missing, f"{len(missing)} data files are not in the wheel: {', '.join(missing[:3])}"


def test_dependencies() -> None:
    assert built()[1]["dependencies"] == expected()["dependencies"]


def test_commands_are_there() -> None:
    missing = sorted(set(expected()["entry_points"]) - set(built()[1]["entry_points"]))
    assert not missing, f"entry points are missing: {', '.join(missing[:3])}"


def test_commands_can_be_loaded() -> None:
    wheel, found = built()
    with zipfile.ZipFile(wheel) as archive:
        for name, reference in found["entry_points"].items():
            module, _, attribute = reference.partition("[")[0].strip().partition(":")
            path = PurePosixPath(*module.split("."))
            files = [file for file in (f"{path}.py", f"{path}/__init__.py") if file in archive.namelist()]
            assert files, f"{name.split()[-1]}: ModuleNotFoundError: No module named {module!r}"
            tree = ast.parse(archive.read(files[0]))
            names = {getattr(node, "name", getattr(node, "asname", None)) for node in ast.walk(tree)}
            names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            top = attribute.split(".")[0]
            assert not top or top in names, f"{name.split()[-1]}: cannot import name {top!r} from {module!r}"


if __name__ == "__main__":
    print("\nwheel " + json.dumps(describe(build(HERE.parent, Path(tempfile.mkdtemp())))))
