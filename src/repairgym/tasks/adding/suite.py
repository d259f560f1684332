"""The test suite of a project, made to run: requirements, lock, environment, plugins, and three trial runs.

Reads a tree and an index. Makes a `Suite`. Guarantees: a module or fixture that a run misses is looked for on the
index once and the run repeated; a requirement that no wheel on the index fulfils is left out and named; the suite has
at least one file that passes, or a `TaskError` names the cause.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name

from repairgym.errors import PackageNotFoundError, TaskError
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.adding.layout import Layout, pytest_settings, words
from repairgym.tasks.adding.test_requirements import (
    PLUGINS,
    REMOVED_MODULES,
    distribution_of,
    find_requirements,
    own_plugins,
    plugins_of,
)
from repairgym.tasks.adding.trial import NUM_RUNS, FileTrial, Say, SuiteRun, Trial, judge
from repairgym.tasks.layers.catalogue import matching_files
from repairgym.tasks.layers.environments import build_environment, requirement_name, resolve_lock
from repairgym.tasks.layers.metadata import METADATA_FOLDER
from repairgym.tasks.layers.store import LayerStore

Resolver = Callable[[tuple[str, ...]], str]
"""Returns the lock of requirements; PackageNotFoundError where no versions fit together."""
MAX_ROUNDS = 4
"""First runs with more requirements each time."""
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_FIXTURE = re.compile(r"fixture '(\w+)' not found")
_EFFECTIVE = ("asyncio_mode", "consider_namespace_packages", "DJANGO_SETTINGS_MODULE", "env", "python_classes",
              "python_functions", "pythonpath", "usefixtures")  # fmt: skip
"""Settings of pytest and its plugins that can change which tests pass."""


@dataclass
class Suite:
    """A suite that ran."""

    requirements: tuple[str, ...]
    plugins: tuple[str, ...]
    lock: str
    environment: Path
    trials: list[FileTrial] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """Field of the catalogue -> why it was guessed so."""
    problems: list[str] = field(default_factory=list)
    """Things that could not be done, a sentence each."""

    @property
    def kept(self) -> list[FileTrial]:
        """Files that are not left out."""
        return [trial for trial in self.trials if not trial.excluded]

    @property
    def num_passed(self) -> int:
        """Tests that pass, of all files."""
        return sum(trial.num_passed for trial in self.trials)

    @property
    def num_failed(self) -> int:
        """Tests that fail, of all files."""
        return sum(trial.num_failed for trial in self.trials)


def missing_requirements(run: SuiteRun, tree: Path, layout: Layout) -> dict[str, str]:
    """Return the requirements that failures of ``run`` name -> reason."""
    texts = [(path, text) for path, file in run.files.items() for text in file.messages] + [("", run.output_tail)]
    missing: dict[str, str] = {}
    for path, text in texts:
        for module in _NO_MODULE.findall(text):
            top = module.partition(".")[0]
            distribution = canonicalize_name(distribution_of(module))
            is_own = top in layout.import_names or (tree / top).exists()
            if distribution and not is_own and top not in ("test", "tests"):
                requirement = REMOVED_MODULES.get(top, distribution)
                missing.setdefault(requirement, f"{path or 'the run'} says: No module named '{module}'")
        for fixture in _NO_FIXTURE.findall(text):
            if plugin := PLUGINS.get(fixture):
                missing.setdefault(plugin, f"{path or 'the run'} says: fixture '{fixture}' not found")
    return missing


def joined(requirements: Iterable[str], further: Iterable[str]) -> tuple[str, ...]:
    """Return both, sorted; a further requirement takes the place of one of the same name."""
    names = {requirement_name(text) for text in further}
    return tuple(sorted({*(text for text in requirements if requirement_name(text) not in names), *further}))


@dataclass(frozen=True)
class SuiteMaker:
    """Finds what a suite needs by running it."""

    tree: Path
    name: str
    layout: Layout
    store: LayerStore
    backend: SandboxBackend
    say: Say
    resolve: Resolver = resolve_lock

    async def make(self, preferred: Iterable[str] = ()) -> Suite:
        """Return the suite; ``preferred`` files are the last to be left out for time. TaskError if nothing passes."""
        files = self.test_files()
        needed = find_requirements(self.tree, self.name, self.layout, files)
        reasons, requirements = dict(needed.reasons), needed.requirements
        unavailable: dict[str, str] = {}
        for number in range(1, MAX_ROUNDS + 1):
            suite = self._build(requirements, reasons, unavailable)
            first = await self._trial(suite).run(files, 1)
            known = {*requirements, *reasons, *unavailable}
            missing = {
                text: why
                for text, why in missing_requirements(first, self.tree, self.layout).items()
                if text not in known
            }
            if not missing or number == MAX_ROUNDS:
                break
            self.say(f"needs {', '.join(missing)} as well: {'; '.join(missing.values())}")
            reasons |= {requirement_name(text): why for text, why in missing.items()}
            requirements = joined(requirements, missing)
        await self._judge(suite, files, first, preferred)
        self._note_settings(suite)
        return suite

    def test_files(self) -> tuple[str, ...]:
        """Return the files that the layout's patterns match."""
        return matching_files(self.tree, self.layout.tests)

    def _build(self, requirements: tuple[str, ...], reasons: dict[str, str], unavailable: dict[str, str]) -> Suite:
        """Lock and build the environment; requirements that cannot be had go from ``reasons`` to ``unavailable``."""
        left = list(requirements)
        while True:
            self.say(f"locks pytest and {len(left)} requirements: {', '.join(left) or 'none'}")
            try:
                lock = self.resolve(tuple(left))
                break
            except PackageNotFoundError as error:
                culprit = _culprit(left, reasons, str(error))
                left.remove(culprit)
                why = reasons.pop(requirement_name(culprit), "")
                unavailable[requirement_name(culprit)] = (
                    f"{culprit} ({why}) is left out: no wheels of it fit on the index"
                )
        self.say("builds the environment")
        _, environment = build_environment(self.store, lock)
        plugins = (*own_plugins(self.tree), *plugins_of(environment, left))
        return Suite(tuple(left), plugins, lock, environment, [], dict(reasons), list(unavailable.values()))

    def _trial(self, suite: Suite) -> Trial:
        spec = SandboxSpec(environment=suite.environment, tree=self.tree)
        return Trial(self.store, self.backend, spec, (self.layout.root, METADATA_FOLDER), suite.plugins, self.say)

    async def _judge(self, suite: Suite, files: Sequence[str], first: SuiteRun, preferred: Iterable[str]) -> None:
        runs = [first]
        tried = judge(files, runs, preferred)
        wanted = [trial.path for trial in tried if not trial.excluded]
        if not wanted:
            raise TaskError(f"{self.name}: no file of its tests can be kept; {_main_cause(tried, first)}")
        runs += [await self._trial(suite).run(wanted, number) for number in range(2, NUM_RUNS + 1)]
        by_path = {trial.path: trial for trial in [*tried, *judge(wanted, runs, preferred)]}
        suite.trials = list(by_path.values())
        if not suite.kept:
            raise TaskError(f"{self.name}: no file of its tests can be kept; {_main_cause(suite.trials, first)}")
        suite.problems += [f"{t.path} is left out: {t.excluded}" for t in suite.trials if t.excluded]
        suite.problems += [
            f"{t.path}: {t.num_failed} tests fail, {t.num_unstable} are flaky; builds leave them out. {t.cause}"
            for t in suite.kept
            if t.num_failed or t.num_unstable
        ]

    def _note_settings(self, suite: Suite) -> None:
        """Name the project's pytest settings that runs here do not have."""
        settings = pytest_settings(self.tree)
        used = {key: words(settings[key]) for key in _EFFECTIVE if key in settings}
        if set(used.get("pythonpath", ())) <= {self.layout.root, "."}:
            used.pop("pythonpath", None)
        for key, value in used.items():
            problem = f"the pytest setting {key} = {' '.join(value)} is not used: runs read no settings of the project"
            suite.problems.append(problem)


def _culprit(requirements: list[str], reasons: dict[str, str], error: str) -> str:
    """Return the requirement that ``error`` of the resolver names, one that the package itself lacks first."""
    if not requirements:
        raise TaskError(f"pytest itself cannot be locked: {error}")
    is_own = {text: "package requires" in reasons.get(requirement_name(text), "") for text in requirements}
    named = [text for text in requirements if re.search(rf"\b{re.escape(requirement_name(text))}\b", error)]
    return min(named or requirements, key=lambda text: (is_own[text], -error.rfind(requirement_name(text))))


def _main_cause(trials: Sequence[FileTrial], run: SuiteRun) -> str:
    """Return the most frequent reason to leave a file out; the end of the output where no test gave an outcome."""
    reason, count = Counter(trial.excluded for trial in trials).most_common(1)[0]
    output = (
        "" if any(file.messages for file in run.files.values()) else f": {' '.join(run.output_tail.split())[-400:]}"
    )
    return f"{count} of {len(trials)} files: {reason}{output}"
