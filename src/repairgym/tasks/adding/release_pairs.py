"""Releases of a package on the index: the one to use, and pairs whose tests and sources changed.

Reads sdists through the layer store. Makes versions, pairs and reasons. Guarantees: pairs are adjacent releases, newest
last as in the catalogue; every version of a pair has sources and tests at the same places.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from repairgym.errors import InputError, PackageNotFoundError, TaskError
from repairgym.tasks.adding.layout import Layout, find_layout, parsed
from repairgym.tasks.adding.trial import Say
from repairgym.tasks.layers.catalogue import matching_files
from repairgym.tasks.layers.package_index import Sdist
from repairgym.tasks.layers.store import LayerStore

MAX_NEWEST = 8
"""Newest releases among which one with tests is looked for."""


@dataclass(frozen=True)
class Chosen:
    """The release that is used, and its tree."""

    sdist: Sdist
    tree: Path
    layout: Layout
    problems: tuple[str, ...] = ()


@dataclass
class Pairs:
    """Pairs of releases, the test files that changed in them, and what was looked at."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    changed_tests: set[str] = field(default_factory=set)
    num_compared: int = 0
    problems: list[str] = field(default_factory=list)


def choose_release(sdists: Sequence[Sdist], store: LayerStore, say: Say) -> Chosen:
    """Return the newest release whose sdist holds tests.

    Raises:
        TaskError: none of the newest ones has any; the text names the project's repository if its metadata does.
    """
    problems: list[str] = []
    tree = None
    for sdist in sdists[:MAX_NEWEST]:
        say(f"fetches and reads {sdist.name} {sdist.version}")
        try:
            tree = store.tree(sdist)
            layout = find_layout(tree, sdist.name)
        except (InputError, PackageNotFoundError, TaskError) as error:
            problems.append(str(error))
            continue
        if layout.tests:
            return Chosen(sdist, tree, layout, tuple(problems))
        problems.append(f"the sdist of {sdist.version} holds no tests")
    url = repository_url(tree) if tree else ""
    remedy = f"repairgym tasks add --repository {url or 'URL'}"
    name, num_tried = sdists[0].name, min(len(sdists), MAX_NEWEST)
    raise TaskError(
        f"{name}: none of its {num_tried} newest sdists can be used: {problems[0]}; try its repository: {remedy}"
    )


def repository_url(tree: Path) -> str:
    """Return the address of the repository that the metadata names; empty without one."""
    path = tree / "PKG-INFO"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    lines = [line for line in text.partition("\n\n")[0].splitlines() if line.startswith(("Project-URL", "Home-page"))]
    ranked = sorted(lines, key=lambda line: not any(word in line.lower() for word in ("source", "repository", "code")))
    urls = [line.rpartition(" ")[2].rstrip("/") for line in ranked]
    return next((url for url in urls if url.count("/") == 4 and "git" in url), "")


def find_pairs(chosen: Chosen, sdists: Sequence[Sdist], store: LayerStore, num_pairs: int, say: Say) -> Pairs:
    """Return at most ``num_pairs`` pairs with changed tests, among twice as many releases below the chosen one."""
    result = Pairs()
    index = [sdist.version for sdist in sdists].index(chosen.sdist.version)
    newer, newer_files = chosen.sdist, _state(chosen.tree, chosen.layout)
    for sdist in sdists[index + 1 :][: 2 * num_pairs]:
        if len(result.pairs) == num_pairs:
            break
        say(f"compares the tests of {sdist.version} and {newer.version}")
        try:
            older_files = _state(store.tree(sdist), chosen.layout)
        except (InputError, PackageNotFoundError) as error:
            result.problems.append(f"{sdist.version} is left out: {error}")
            continue
        if not older_files.sources or not older_files.tests:
            lacking = "sources" if not older_files.sources else "tests"
            result.problems.append(f"{sdist.version} and older releases are left out: no {lacking} at the same places")
            break
        result.num_compared += 1
        changed = newer_files.changed_tests(older_files)
        if changed and newer_files.sources != older_files.sources:
            result.pairs.insert(0, (sdist.version, newer.version))
            result.changed_tests |= changed
        newer, newer_files = sdist, older_files
    return result


@dataclass(frozen=True)
class _State:
    """Code of a release without comments and layout: path -> syntax tree as text."""

    sources: dict[str, str]
    tests: dict[str, str]

    def changed_tests(self, older: "_State") -> set[str]:
        return {path for path, code in self.tests.items() if older.tests.get(path) != code}


def _state(tree: Path, layout: Layout) -> _State:
    def read(patterns: Sequence[str]) -> dict[str, str]:
        return {path: ast.dump(parsed(tree / path)) for path in matching_files(tree, patterns)}

    return _State(read(layout.sources), read(layout.tests))
