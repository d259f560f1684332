"""The pins: complete, hashed, free of accelerator packages and of anybody's index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def locked() -> dict[str, list[str]]:
    """Name -> the lines of its entry, version first."""
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", "\n")
    entries: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith(("#", " ")):
            name = canonicalize_name(line.split("==")[0])
            entries[name] = [line.strip()]
        elif line.strip().startswith("--hash"):
            entries[name].append(line.strip())
    return entries


def declared() -> list[Requirement]:
    """The core's requirements and those of ``dev``; extras of the project itself are expanded."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [Requirement(text) for text in project["dependencies"]]
    waiting, seen = ["dev"], set()
    while waiting:
        extra = waiting.pop()
        for need in map(Requirement, project["optional-dependencies"][extra]):
            if need.name == project["name"]:
                waiting += sorted(need.extras - seen)
                seen |= need.extras
            else:
                needs.append(need)
    return needs


def test_the_core_needs_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"torch", "transformers", "ray", "verl"}.isdisjoint(
        Requirement(text).name for text in project["dependencies"]
    )


def version_of(entry: list[str]) -> str:
    return entry[0].split("==")[1].split(" ")[0]


def test_every_locked_package_has_hashes() -> None:
    for name, (_, *hashes) in locked().items():
        assert hashes, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", text) for text in hashes), name


@pytest.mark.parametrize("requirement", declared(), ids=lambda requirement: requirement.name)
def test_each_dependency_is_pinned_to_a_version_within_its_range(requirement: Requirement) -> None:
    if requirement.name == "torch":
        pin = Requirement((ROOT / "requirements-torch.txt").read_text().splitlines()[-1])
        assert requirement.specifier.contains(next(iter(pin.specifier)).version)
    else:
        entry = locked()[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version_of(entry))


def test_no_accelerator_package_is_locked() -> None:
    assert [name for name in locked() if re.match(r"torch$|triton|nvidia-|cuda-", name)] == []


def test_the_lock_names_no_index() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert re.findall(r"https?://|file://|--(?:extra-)?index-url|--find-links", text) == []
