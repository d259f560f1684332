"""The layout of a project: its root, the files that may be broken, and the files of its tests.

Reads an unpacked sdist or a commit's tree as text; no project code runs. Makes a `Layout`. Guarantees: no file is
source and test at once; each guess has a reason; a tree without sources is a `TaskError`.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from repairgym.errors import TaskError
from repairgym.tasks.layers.metadata import read_settings
from repairgym.tasks.mutation.settings_operators import parse_entries

_ROOTS = ("", "src", "lib", "python", "source")
_NOT_CODE = frozenset({
    "test", "tests", "testing", "doc", "docs", "example", "examples", "benchmark", "benchmarks", "bench", "scripts",
    "tools", "build", "dist", "fuzz", "fuzzing", "tasks", "ci", "demo", "samples", "contrib", "utils", "bin",
})  # fmt: skip
"""Folders at the top that are no import package, unless the package's metadata says so."""
_NO_SOURCES = frozenset({"test", "tests", "_vendor", "vendor", "vendored", "__pycache__"})
"""Folders inside of an import package without files that may be broken."""
_NO_TESTS = frozenset({"doc", "docs", "example", "examples", "benchmark", "benchmarks", "bench", "build", "fuzz",
                       "fuzzing", "_vendor", "vendor", "vendored", "node_modules", "typing", "perf"})  # fmt: skip
_SCRIPTS = frozenset({"setup.py", "conftest.py", "noxfile.py", "tasks.py", "versioneer.py", "ez_setup.py",
                      "runtests.py", "dodo.py", "fabfile.py", "manage.py", "release.py", "hatch_build.py"})  # fmt: skip
_TEST_FILE = re.compile(r"^(test_?.*|.*_tests?|tests)\.py$", re.IGNORECASE)
_HAS_TESTS = re.compile(r"^\s*(async )?def test|^class \w*Tests?\w*\b|\bTestCase\b", re.MULTILINE)
_GLOBS = ("test_*.py", "*_test.py", "*_tests.py", "test*.py")
MAX_PATTERNS = 40
"""More folders of sources are one recursive pattern."""


@dataclass(frozen=True)
class Layout:
    """Places of a project's code and tests."""

    root: str
    import_names: tuple[str, ...]
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    """Glob patterns; empty: the tree has no tests."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Field of the catalogue -> why it was guessed so."""


def find_layout(tree: Path, name: str) -> Layout:
    """Return the layout of the project ``name`` in ``tree``; TaskError where no code is found."""
    names, named_by = _import_names(tree, name)
    for root in _roots(tree):
        packages = tuple(dict.fromkeys(n for n in names if _is_importable(tree / root, n)))
        if packages:
            break
    else:
        root, packages = _any_package(tree)
        named_by = "the only import packages at that place"
    if not packages:
        raise TaskError(
            f"{name}: no import package or module {' or '.join(names)} in the tree; it cannot be added by itself"
        )
    files = _test_files(tree)
    sources = _source_patterns(tree, root, packages, set(files))
    if not sources:
        raise TaskError(f"{name}: {', '.join(packages)} has no Python files that may be broken")
    reasons = {"sources": f"{', '.join(packages)}: {named_by}; folders of tests and vendored code are left out"}
    if root:
        reasons["root"] = f"the folder {root} holds {', '.join(packages)}"
    reasons["tests"] = f"{len(files)} files have names and contents of tests" + _testpaths_note(tree)
    return Layout(root, packages, sources, _test_patterns(files), reasons)


def pytest_settings(tree: Path) -> dict[str, Any]:
    """Return the pytest settings of the project; a value of an INI file is one text."""
    tool = read_settings(tree).get("tool", {}).get("pytest", {})
    settings = dict(tool.get("ini_options", {k: v for k, v in tool.items() if not isinstance(v, dict)}))
    for file, section in (("pytest.ini", "pytest"), ("tox.ini", "pytest"), ("setup.cfg", "tool:pytest")):
        if settings or not (tree / file).is_file():
            continue
        text = (tree / file).read_text(encoding="utf-8", errors="replace")
        settings = {entry.key: entry.value for entry in parse_entries(text) if entry.section == section}
    return settings


def words(value: object) -> list[str]:
    """Return the items of a setting that is a list or a text."""
    return [str(item) for item in value] if isinstance(value, list) else str(value or "").split()


# --- sources ---------------------------------------------------------------------------------------------------------


def _import_names(tree: Path, name: str) -> tuple[list[str], str]:
    """Return possible import names of the project, and what names them."""
    for path in sorted([*tree.glob("*.egg-info/top_level.txt"), *tree.glob("*/*.egg-info/top_level.txt")]):
        listed = [n for n in path.read_text(encoding="utf-8", errors="replace").split() if n not in _NOT_CODE]
        if listed:
            return listed, "named by top_level.txt"
    settings = read_settings(tree)
    tool = settings.get("tool", {})
    flit = tool.get("flit", {}).get("module", {}).get("name")
    listed = [str(flit)] if flit else []
    listed += [str(item.get("include", "")) for item in tool.get("poetry", {}).get("packages", [])]
    wheel = tool.get("hatch", {}).get("build", {}).get("targets", {}).get("wheel", {})
    listed += [PurePosixPath(str(path)).name for path in wheel.get("packages", [])]
    listed = [n for n in listed if n.isidentifier()]
    if listed:
        return listed, "named by pyproject.toml"
    plain = re.sub(r"[-.]+", "_", name)
    guesses = [
        plain,
        plain.lower(),
        re.sub(r"^(python|py)_?", "", plain.lower()),
        re.sub(r"_?(python|py)$", "", plain.lower()),
    ]
    guesses += [name.replace("-", "/").replace(".", "/")]
    return list(dict.fromkeys(n for n in guesses if n)), "named like the project"


def _roots(tree: Path) -> list[str]:
    """Return folders that may hold the import package, the settings' own first."""
    tool = read_settings(tree).get("tool", {}).get("setuptools", {})
    packages = tool.get("packages", {})
    where = packages.get("find", {}).get("where", []) if isinstance(packages, dict) else []
    declared = [*where, tool.get("package-dir", {}).get("", "")]
    for entry in parse_entries(_text(tree / "setup.cfg")):
        if (entry.section, entry.key) == ("options.packages.find", "where"):
            declared.append(entry.value.strip())
    roots = [str(root).strip("./") for root in declared if root] + list(_ROOTS)
    return [root for root in dict.fromkeys(roots) if (tree / root).is_dir()]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _is_importable(folder: Path, name: str) -> bool:
    place = folder / name
    return place.with_name(f"{place.name}.py").is_file() or any(place.glob("*.py")) or any(place.glob("*/__init__.py"))


def _any_package(tree: Path) -> tuple[str, tuple[str, ...]]:
    """Return the root and names of the packages, else modules, at the first root that has some."""
    for root in _roots(tree):
        folders = sorted(path.parent.name for path in (tree / root).glob("*/__init__.py"))
        names = tuple(n for n in folders if n not in _NOT_CODE)
        modules = sorted(path for path in (tree / root).glob("*.py") if path.name not in _SCRIPTS)
        names = names or tuple(path.stem for path in modules if not _TEST_FILE.match(path.name))
        if names:
            return root, names
    return "", ()


def _source_patterns(tree: Path, root: str, names: tuple[str, ...], tests: set[str]) -> tuple[str, ...]:
    patterns: list[str] = []
    for name in names:
        place = (PurePosixPath(root) / name).as_posix()
        if (tree / f"{place}.py").is_file() and f"{place}.py" not in tests:
            patterns.append(f"{place}.py")
        files = sorted(path.relative_to(tree) for path in (tree / place).rglob("*.py"))
        kept = [path for path in files if not _NO_SOURCES & set(path.parts) and path.as_posix() not in tests]
        folders = dict.fromkeys(path.parent.as_posix() for path in kept)
        if len(kept) == len(files) or len(folders) > MAX_PATTERNS:
            patterns += [f"{place}/**/*.py"] if kept else []
            continue
        for folder in folders:
            own = {path.as_posix() for path in files if path.parent.as_posix() == folder}
            patterns += [f"{folder}/*.py"] if not own & tests else sorted(own - tests)
    return tuple(patterns)


# --- tests -----------------------------------------------------------------------------------------------------------


def _test_files(tree: Path) -> list[str]:
    """Return files of tests below the project's ``testpaths``, or anywhere without any there."""
    files: list[str] = []
    for path in sorted(tree.rglob("*.py")):
        place = path.relative_to(tree)
        is_left_out = _NO_TESTS & {part.lower() for part in place.parts[:-1]} or place.name == "conftest.py"
        if is_left_out or not _TEST_FILE.match(path.name) or not _HAS_TESTS.search(_text(path)):
            continue
        # A module such as `testing.py` that defines base classes is no test.
        if _TEST_FOLDER.isdisjoint(place.parts[:-1]) and not re.match(r"test_|tests?\.py|.*_tests?\.py", path.name):
            continue
        files.append(place.as_posix())
    wanted = tuple(path.strip("./") for path in words(pytest_settings(tree).get("testpaths")))
    inside = [path for path in files if any(PurePosixPath(path).is_relative_to(folder) for folder in wanted)]
    return inside or files


_TEST_FOLDER = {"test", "tests", "Tests", "testing"}


def _testpaths_note(tree: Path) -> str:
    wanted = words(pytest_settings(tree).get("testpaths"))
    return f", below testpaths = {wanted}" if wanted else ""


def _test_patterns(files: Iterable[str]) -> tuple[str, ...]:
    """Return few patterns per folder that match the files, so that files of other releases match, too."""
    by_folder: dict[str, list[PurePosixPath]] = defaultdict(list)
    for file in files:
        by_folder[PurePosixPath(file).parent.as_posix()].append(PurePosixPath(file))
    patterns: list[str] = []
    for folder, members in by_folder.items():
        rest = members
        for glob in _GLOBS:
            matched = [file for file in rest if file.match(glob)]
            # Single modules at the top stay names: a pattern there matches sources of other releases.
            if matched and folder != ".":
                patterns.append(f"{folder}/{glob}")
                rest = [file for file in rest if file not in matched]
        patterns += [file.as_posix() for file in rest]
    return tuple(patterns)


@lru_cache(maxsize=4096)
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file; an empty one if it does not parse."""
    try:
        return ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError, OSError):
        return ast.Module([], [])
