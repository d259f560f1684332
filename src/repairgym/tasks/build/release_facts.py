"""Statements of a tree about its own release, which would tell how a broken build is repaired.

Reads the unpacked tree of an sdist. Makes the texts that replace generated metadata, and the check as an agent sees it:
without plain expectations and the tests that read them. Guarantees: name and version stay, because tools that read
versions from a repository find them there; everything that people wrote stays.
"""

import email
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name

from repairgym.tasks.build.test_files import cut_functions, held_tests
from repairgym.tasks.build.wheel_check import BUILD_TEST, EXPECTED_FILE, RELEASE_TEST
from repairgym.tasks.mutation.settings_operators import SettingsEdit

_KEPT_HEADERS = ("Metadata-Version", "Name", "Version")
_CALLED = frozenset({"test_commands_can_be_loaded"})
"""Tests of the older check that the present one calls; they compare nothing with the release."""


def metadata_files(tree: Path, name: str) -> Iterator[str]:
    """Yield the paths of the metadata that tools wrote for the distribution ``name``."""
    for path in sorted(tree.rglob("*")):
        inner = path.relative_to(tree)
        own = (part for part in inner.parts[:-1] if part.endswith((".egg-info", ".dist-info")))
        stems = {canonicalize_name(part.rpartition(".")[0]) for part in own}
        is_own = any(stem == name or stem.startswith(f"{name}-") for stem in stems)
        if path.is_file() and (is_own or inner.parts == ("PKG-INFO",)):
            yield inner.as_posix()


def plain_metadata(tree: Path, name: str) -> dict[str, str]:
    """Return path -> text of the metadata of ``name`` in ``tree``, without all but its name and version."""
    files: dict[str, str] = {}
    for path in metadata_files(tree, canonicalize_name(name)):
        is_head = PurePosixPath(path).name in ("PKG-INFO", "METADATA")
        text = (tree / path).read_text(encoding="utf-8", errors="replace") if is_head else ""
        head = email.message_from_string(text)
        files[path] = "".join(f"{key}: {head[key]}\n" for key in _KEPT_HEADERS if head[key])
    return files


def check_files(pinned: Mapping[str, str]) -> dict[str, str | None]:
    """Return path -> text of the check as an agent sees it; empty for checks that compare with no release."""
    if RELEASE_TEST not in pinned:
        return {}
    old_tests = {name for name in held_tests(pinned[BUILD_TEST]) - _CALLED if name.startswith("test_")}
    return {EXPECTED_FILE: None, BUILD_TEST: cut_functions(pinned[BUILD_TEST], old_tests)}


_BOUND = re.compile(r"[<>=~!]=?\s*(\d+(?:\.\d+)*)")
_TELLING = ("pyproject.toml", "setup.cfg", "setup.py", "tox.ini", "noxfile.py", "README*", "CHANGE*", "CHANGELOG*",
            "docs/*.rst", "docs/*.md", ".github/workflows/*.yml")  # fmt: skip


def is_told(tree: Path, edit: SettingsEdit, text: str) -> bool:
    """Return True if ``tree`` with ``edit`` tells the bounds that a wheel must state; ``text`` are the whole settings.

    The bounds of the build's own requirements are free: what builds is right.
    """
    before, after = text.splitlines(), edit.text.splitlines()
    lost = "\n".join(line for line in before if line not in after)
    if (
        edit.error_class not in ("dependency", "version")
        or edit.operator in _FREE
        or not (told := _BOUND.findall(lost))
    ):
        return True
    if edit.error_class == "dependency":
        return False
    kept = "\n".join(line for line in after if line in before)
    others = [kept, *(_read(path) for name in _TELLING for path in tree.glob(name) if path.name != edit.path)]
    return all(re.search(rf"(?<![\d.]){re.escape(version)}(?![\d.])", "\n".join(others)) for version in told)


_FREE = frozenset({"removed_build_requirement", "bad_build_bound", "old_build_cap"})


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
