"""Compares the project's wheel with that of the release, and tells what is wrong with it, never what is right.

``sealed.json`` beside this file has digests of what the released wheel holds: any wheel can be compared with them, and
nothing can be read from them. ``expected.json`` has the same in plain words, where nobody repairs the build.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import test_build  # type: ignore[import-not-found]  # noqa: E402

Facts = dict[str, list[list[str]]]
"""Kind -> statements about a wheel."""


def facts(wheel: dict[str, Any]) -> Facts:
    """What ``describe`` tells of a wheel, as statements."""
    return {
        "name": [[wheel["name"]]],
        "version": [[wheel["version"]]],
        "python": [sorted(map(str, SpecifierSet(wheel["requires_python"])))],
        "modules": [list(item) for item in wheel["modules"].items()],
        "data": [list(item) for item in wheel["data"].items()],
        "dependencies": [[text] for text in wheel["dependencies"]],
        "commands": [[name] for name in wheel["entry_points"]],
    }


def seal(kind: str, fact: Iterable[str]) -> str:
    """Digest of a statement."""
    return hashlib.sha256(json.dumps([kind, *fact]).encode()).hexdigest()[:24]


def sealed(wheel: dict[str, Any]) -> dict[str, list[str]]:
    """``facts`` as digests."""
    return {kind: sorted(seal(kind, fact) for fact in own) for kind, own in facts(wheel).items()}


def differences(kind: str) -> tuple[set[str], list[list[str]]]:
    """Digests of what the wheel lacks, and statements about it that the release does not make."""
    wanted = set(json.loads((HERE / "sealed.json").read_text(encoding="utf-8"))[kind])
    own = facts(test_build.built()[1])[kind]
    return wanted - {seal(kind, fact) for fact in own}, [fact for fact in own if seal(kind, fact) not in wanted]


def released() -> dict[str, Any]:
    """What the released wheel holds; empty where the build is to be repaired."""
    return dict(test_build.expected()) if (HERE / "expected.json").exists() else {}


def missing_files(kind: str) -> str:
    """What the wheel lacks of ``kind``: the files of the tree that the release has and the wheel does not."""
    missing, _ = differences(kind)
    names = []
    for path in sorted(HERE.parent.rglob("*")) if missing else ():
        if path.is_file() and HERE not in path.parents:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            parts = path.relative_to(HERE.parent).parts
            suffixes = ("/".join(parts[start:]) for start in range(len(parts)))
            names += [name for name in suffixes if seal(kind, [name, digest]) in missing]
    what = "modules" if kind == "modules" else "data files"
    return f"{len(missing)} {what} are not in the wheel: {', '.join(names[:3])}" if missing else ""


def test_a_wheel_can_be_built() -> None:
    assert test_build.built()[0].suffix == ".whl"


def test_name() -> None:
    _, others = differences("name")
    assert not others, f"the wheel is called {others[0][0]}"


def test_version() -> None:
    _, others = differences("version")
    assert not others, f"the wheel has the version {others[0][0]}"


def test_this_python_is_supported() -> None:
    bound, version = test_build.built()[1]["requires_python"], sys.version.split()[0]
    assert SpecifierSet(bound).contains(version), f"requires Python {bound}, but this is {version}"


def test_supported_pythons_are_those_of_the_release() -> None:
    _, others = differences("python")
    assert not others, f"the release does not require Python {','.join(others[0]) or 'of any version'}"


def test_modules_are_in_the_wheel() -> None:
    assert not (told := missing_files("modules")), told


def test_data_files_are_in_the_wheel() -> None:
    assert not (told := missing_files("data")), told


def test_dependencies() -> None:
    missing, others = differences("dependencies")
    assert not others, f"the wheel requires {others[0][0]}, which the release does not"
    names = {Requirement(text).name for text in released().get("dependencies", ())}
    present = {Requirement(text).name for text in test_build.built()[1]["dependencies"]}
    assert not missing, f"installed alone it lacks {len(missing)} distributions: {', '.join(sorted(names - present))}"


def test_commands_are_there() -> None:
    missing, _ = differences("commands")
    names = sorted(set(released().get("entry_points", ())) - set(test_build.built()[1]["entry_points"]))
    assert not missing, f"{len(missing)} commands are not installed: {', '.join(name.split()[-1] for name in names)}"


def test_commands_can_be_loaded() -> None:
    test_build.test_commands_can_be_loaded()


if __name__ == "__main__":
    wheel = test_build.describe(test_build.build(HERE.parent, Path(tempfile.mkdtemp())))
    print("\nwheel " + json.dumps([wheel, sealed(wheel)]))
