"""Add a package of npm to a catalogue: from a name to an entry and a lock.

Reads the registry and the archives of releases. Makes an `Added` record as `adding` does. Guarantees: no code of the
package runs outside of a sandbox; the package is no part of its own environment, where its repaired code could be read;
three runs of the suite decide which test files stay.
"""

import contextlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from repairgym.errors import InputError, PackageNotFoundError, TaskError
from repairgym.records import Split, TestOutcome, TestRequest, TestRun, TestRunner
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.adding.adding import MIN_TESTS, Added
from repairgym.tasks.adding.entry import render_entry
from repairgym.tasks.adding.trial import MAX_SHARE_UNSTABLE, MIN_SHARE_PASSED, Say
from repairgym.tasks.build.validation import run_times
from repairgym.tasks.javascript.syntax import code_of, is_javascript
from repairgym.tasks.layers.catalogue import NpmPackage
from repairgym.tasks.layers.environments import build_environment
from repairgym.tasks.layers.npm_locks import locked_names, names_that_need, resolve_npm_lock
from repairgym.tasks.layers.npm_registry import NpmRegistry
from repairgym.tasks.layers.package_index import Sdist
from repairgym.tasks.layers.store import LayerStore, tree_digest

Runner = Literal["tape", "mocha", "node_test"]
_TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "spec"})
_NO_SOURCES = _TEST_FOLDERS | {
    "dist", "build", "example", "examples", "bench", "benchmark", "benchmarks", "docs", "node_modules", "types"
}  # fmt: skip
_CONFIGURATION = re.compile(r"^(\..*|.*\.config\.\w+|Gruntfile|Gulpfile|gulpfile|karma\.\w+|rollup\.\w+)")
IMPORT = re.compile(r"""(?:\brequire\(\s*|\bfrom\s+|\bimport\s*\(?\s*)['"]([^'"./][^'"]*)['"]""")
_USES: Mapping[Runner, re.Pattern[str]] = {
    "tape": re.compile(r"""['"]tape['"]"""),
    "node_test": re.compile(r"""['"]node:test['"]"""),
    "mocha": re.compile(r"^\s*(?:describe|context)\(", re.MULTILINE),
}
FRAMEWORKS: Mapping[Runner, tuple[Mapping[str, str], ...]] = {
    "tape": ({"tape": "5.9.0"}, {"tape": "4.17.0"}, {"tape": "3.6.1"}),
    "mocha": ({"mocha": "10.8.2"}, {"mocha": "8.4.0"}),
    "node_test": ({},),
}
"""Runner -> versions of its package; a later one where an earlier one needs the package itself."""
_NUM_RUNS = 3
_MAX_NEWEST = 3
_RUN_S, _TEST_S = 300.0, 10.0
_NUM_FETCHED = 6
"""Archives fetched with one start of npm."""


class NpmRelease(NamedTuple):
    """A release with its tests."""

    sdist: Sdist
    tree: Path
    runner: Runner
    tests: tuple[str, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class NpmAdder:
    """Adds packages of npm."""

    store: LayerStore
    backend: SandboxBackend
    split: Split
    command: str
    """The command as the user gave it, for the entry."""
    say: Say
    node_version: str = ""
    """Node of the environment; empty: the machine's."""
    registry: NpmRegistry = field(default_factory=NpmRegistry)

    async def package(self, name: str, num_pairs: int) -> Added:
        """Return the newest usable release of ``name`` with at most ``num_pairs`` pairs of releases.

        Raises:
            PackageNotFoundError: the registry does not have it.
            TaskError: no archive holds tests, none of them passes, or every framework needs the package itself.
        """
        self.say("asks the registry for releases and integrity hashes")
        sdists = self.registry.releases(name)
        newest = self._newest(name, sdists)
        pairs, releases, num_compared = self._pairs(newest, sdists, num_pairs)
        lock, left_out = self._lock(newest, releases)
        pairs = [pair for pair in pairs if not left_out & set(pair)]
        runs = await self._try(newest, lock)
        kept = stable_files(runs, newest.tests)
        if not kept:
            told = runs[0].output_tail[-400:]
            raise TaskError(
                f"{name} {newest.sdist.version}: no file passes most of its tests in each of {_NUM_RUNS} runs: {told}"
            )
        versions = {newest.sdist.version, *(version for pair in pairs for version in pair)}
        package = NpmPackage(
            name=name,
            split=self.split,
            runner=newest.runner,
            sources=newest.sources,
            tests=test_patterns(kept),
            excluded=tuple(path for path in newest.tests if path not in kept),
            version=newest.sdist.version,
            releases=tuple(pairs),
            sdists={sdist.version: sdist.sha256 for sdist in reversed(sdists) if sdist.version in versions},
        )
        return self._added(package, newest, lock, runs[0], (len(kept), num_compared))

    def _newest(self, name: str, sdists: tuple[Sdist, ...]) -> NpmRelease:
        for sdist in sdists[:_MAX_NEWEST]:
            self.say(f"fetches and reads {sdist.name} {sdist.version}")
            if release := read_release(sdist, self.store.tree(sdist)):
                return release
        raise TaskError(
            f"{name}: none of its {len(sdists[:_MAX_NEWEST])} newest archives holds tests of tape, mocha or node:test; "
            "most packages leave their tests out of npm"
        )

    def _lock(self, release: NpmRelease, older: list[NpmRelease]) -> tuple[str, set[str]]:
        """Return a lock with what all releases need, and the versions in ``older`` that it is not for.

        Where each version of the framework leads to the package itself, the packages of tests that do are left out, and
        the older releases whose sources need one that does.
        """
        name, needed, users = release.sdist.name, _needed_by((*older, release)), set[str]()
        for framework in FRAMEWORKS[release.runner]:
            lock = self._resolved({**needed, **framework})
            if name not in locked_names(lock):
                return lock, set()
            users |= names_that_need(lock, name)
        usable = [each for each in older if not users & _required(_settings(each.tree)).keys()]
        needed = {key: wanted for key, wanted in _needed_by((*usable, release)).items() if key not in users}
        is_hopeless = bool(users & _required(_settings(release.tree)).keys())
        for framework in () if is_hopeless else FRAMEWORKS[release.runner]:
            lock = self._resolved({**needed, **framework})
            if name not in locked_names(lock):
                return lock, {each.sdist.version for each in older if each not in usable}
        raise TaskError(
            f"{name}: each known version of {release.runner}, or a package that it needs, needs {name} itself"
        )

    def _resolved(self, needed: Mapping[str, str]) -> str:
        self.say(f"resolves a lock of {', '.join(f'{name}@{wanted}' for name, wanted in needed.items()) or 'nothing'}")
        return resolve_npm_lock(needed, self.node_version)

    async def _try(self, release: NpmRelease, lock: str) -> list[TestRun]:
        self.say(f"runs {len(release.tests)} test files {_NUM_RUNS} times")
        folder = build_environment(self.store, lock)[1]
        spec = SandboxSpec(environment=folder, tree=release.tree)
        runner = TestRunner(type=release.runner)
        request = TestRequest(test_ids=release.tests, timeout_s=_RUN_S, test_timeout_s=_TEST_S, runner=runner)
        return await run_times(self.backend, spec, request, _NUM_RUNS)

    def _pairs(
        self, newest: NpmRelease, sdists: tuple[Sdist, ...], num: int
    ) -> tuple[list[tuple[str, str]], list[NpmRelease], int]:
        """Return pairs of adjacent releases whose sources and tests both changed, the releases, the number compared."""
        pairs: list[tuple[str, str]] = []
        releases: list[NpmRelease] = []
        num_compared, newer, state = 0, newest.sdist, _state(newest)
        place = [sdist.version for sdist in sdists].index(newest.sdist.version)
        others = sdists[place + 1 :][: 2 * num]
        for number, sdist in enumerate(others):
            if len(pairs) == num:
                break
            if number % _NUM_FETCHED == 0:
                self._fetch(others[number : number + _NUM_FETCHED])
            self.say(f"compares {sdist.version} and {newer.version}")
            try:
                older = read_release(sdist, self.store.tree(sdist))
            except (InputError, PackageNotFoundError):
                continue
            if older is None or older.runner != newest.runner:
                break
            num_compared, older_state = num_compared + 1, _state(older)
            if all(state[part] != older_state[part] for part in (0, 1)):
                pairs.insert(0, (sdist.version, newer.version))
            releases.insert(0, older)
            newer, state = sdist, older_state
        return pairs, releases, num_compared

    def _fetch(self, sdists: tuple[Sdist, ...]) -> None:
        """Make the missing trees with one start of npm; one that cannot be made fails where it is read."""
        missing = [sdist for sdist in sdists if not self.store.has("trees", tree_digest(sdist))]
        if len(missing) < 2:
            return
        with tempfile.TemporaryDirectory() as name, contextlib.suppress(PackageNotFoundError, InputError):
            for sdist, path in self.registry.fetch_all(missing, Path(name)).items():
                self.store.tree_of_file(sdist, path)

    def _added(
        self, package: NpmPackage, newest: NpmRelease, lock: str, run: TestRun, counts: tuple[int, int]
    ) -> Added:
        outcomes = Counter(result.outcome for result in run.results.values())
        num_passed = outcomes[TestOutcome.PASSED]
        num_failed = outcomes[TestOutcome.FAILED] + outcomes[TestOutcome.ERROR]
        comments = {
            "split": "as --split says; all tasks of a package are in one split",
            "runner": "the framework that its test files name",
            "tests": f"{num_passed} tests pass, {num_failed} fail",
            "releases": f"of {counts[1]} adjacent pairs, those whose sources and tests both changed",
        }
        return Added(
            name=package.name,
            kind="npm",
            version=package.version,
            is_suite_running=num_passed >= max(MIN_TESTS, num_failed),
            num_passed=num_passed,
            num_failed=num_failed,
            num_files=len(newest.tests),
            num_files_kept=counts[0],
            num_pairs=len(package.releases),
            requirements=tuple(sorted(json.loads(lock)["packages"][""].get("dependencies", {}))),
            plugins=(),
            problems=(),
            entry=render_entry(package, comments, (), self.command),
            lock=lock,
            lock_name=f"npm/{package.file_stem}.json",
        )


# --- the tree of a release --------------------------------------------------------------------------------------------


def read_release(sdist: Sdist, tree: Path) -> NpmRelease | None:
    """Return the release in ``tree`` with its framework, tests and patterns of its sources; None without tests."""
    files = [path.relative_to(tree).as_posix() for path in sorted(tree.rglob("*")) if path.is_file()]
    code = [path for path in files if is_javascript(path) and "node_modules" not in PurePosixPath(path).parts]
    candidates = [path for path in code if may_be_test(path)]
    texts = {path: (tree / path).read_text(encoding="utf-8", errors="replace") for path in candidates}
    by_runner = {runner: tuple(p for p in texts if use.search(texts[p])) for runner, use in _USES.items()}
    runner = max(by_runner, key=lambda kind: len(by_runner[kind]))
    if (
        not by_runner["tape"]
        and not by_runner["node_test"]
        and "mocha" not in _settings(tree).get("devDependencies", {})
    ):
        return None
    sources = source_patterns(path for path in code if path not in candidates)
    return NpmRelease(sdist, tree, runner, by_runner[runner], sources) if by_runner[runner] and sources else None


def may_be_test(path: str) -> bool:
    """Return True for a file in a folder of tests, or with the name of one."""
    pure = PurePosixPath(path)
    return bool(_TEST_FOLDERS & set(pure.parts[:-1])) or bool(re.search(r"(^|[._-])(test|spec)s?\.\w+$", pure.name))


def source_patterns(paths: Iterable[str]) -> tuple[str, ...]:
    """Return glob patterns of the files of ``paths`` that may be broken."""
    own = [PurePosixPath(path) for path in paths if not _NO_SOURCES & set(PurePosixPath(path).parts[:-1])]
    own = [path for path in own if not _CONFIGURATION.match(path.name) and not path.name.endswith((".d.ts", ".min.js"))]
    top = sorted(path.name for path in own if len(path.parts) == 1)
    below = sorted({f"{path.parts[0]}/**/*{path.suffix}" for path in own if len(path.parts) > 1})
    return (*top, *below)


def test_patterns(paths: Iterable[str]) -> tuple[str, ...]:
    """Return patterns of the files of the folders of ``paths``, so that other releases' tests are found as well."""
    pure = [PurePosixPath(path) for path in paths]
    folders = sorted({f"{path.parent.as_posix()}/*{path.suffix}" for path in pure if len(path.parts) > 1})
    return (*sorted(path.name for path in pure if len(path.parts) == 1), *folders)


test_patterns.__test__ = False  # type: ignore[attr-defined]


def _settings(tree: Path) -> dict[str, Any]:
    try:
        content = json.loads((tree / "package.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def requirements_of(release: NpmRelease) -> dict[str, str]:
    """Return the packages that sources and tests need, with their ranges."""
    settings, tree = _settings(release.tree), release.tree
    development = settings.get("devDependencies", {})
    texts = [
        path.read_text(encoding="utf-8", errors="replace")
        for path in tree.rglob("*")
        if is_javascript(path.name) and path.is_file() and may_be_test(path.relative_to(tree).as_posix())
    ]
    names = {package_of(module) for text in texts for module in IMPORT.findall(text)}
    used = {name: development[name] for name in sorted(names) if name in development}
    needed = {**used, **_required(settings)}
    return {name: wanted for name, wanted in needed.items() if name != release.sdist.name}


def _needed_by(releases: Iterable[NpmRelease]) -> dict[str, str]:
    needed: dict[str, str] = {}
    for release in releases:
        needed.update(requirements_of(release))
    return needed


def _required(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the packages that the sources need, with their ranges."""
    return {**settings.get("peerDependencies", {}), **settings.get("dependencies", {})}


def package_of(module: str) -> str:
    """Return the package of a module's name."""
    parts = module.split("/")
    return "/".join(parts[:2]) if module.startswith("@") else parts[0]


def _state(release: NpmRelease) -> tuple[dict[str, object], dict[str, object]]:
    """Return the code of sources and tests without comments, by path."""
    sources = {
        path.relative_to(release.tree).as_posix()
        for pattern in release.sources
        for path in release.tree.glob(pattern)
        if path.is_file()
    }
    return _codes(release.tree, sources), _codes(release.tree, release.tests)


def _codes(tree: Path, paths: Iterable[str]) -> dict[str, object]:
    codes: dict[str, object] = {}
    for path in paths:
        text = (tree / path).read_text(encoding="utf-8", errors="replace")
        try:
            codes[path] = code_of(path, text)
        except SyntaxError:
            codes[path] = text
    return codes


def stable_files(runs: list[TestRun], paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files that pass most of their tests in every run, and few of whose tests change their outcome."""
    kept: list[str] = []
    for path in paths:
        own = {test_id for run in runs for test_id in run.results if test_id.startswith(f"{path}::")}
        outcomes = [{run.outcome(test_id) for run in runs} for test_id in own]
        num_good = sum(seen == {TestOutcome.PASSED} for seen in outcomes)
        num_failing = sum(bool(seen & {TestOutcome.FAILED, TestOutcome.ERROR}) for seen in outcomes)
        num_unstable = sum(len(seen) > 1 for seen in outcomes)
        is_mostly_passing = num_good > 0 and num_good >= MIN_SHARE_PASSED * (num_good + num_failing)
        if is_mostly_passing and num_unstable <= MAX_SHARE_UNSTABLE * len(own):
            kept.append(path)
    return tuple(kept)
