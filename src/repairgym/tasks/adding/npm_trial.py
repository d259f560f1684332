"""The trial of a suite of JavaScript: three runs in sandboxes, which decide which test files stay.

Reads a `NodeFolder` and the lock of its environment. Makes `Tried` records, and entries from them. Guarantees: no code
of the project runs outside of a sandbox; a file that fails in one run does not run again; what is left out is told with
the first error of its file, and all output is kept in the layer store.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from repairgym.config.tasks import TasksConfig
from repairgym.errors import TaskError
from repairgym.records import Split, TestOutcome, TestRequest, TestResult, TestRun, TestRunner
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.adding.adding import MIN_TESTS, Added
from repairgym.tasks.adding.entry import render_entry
from repairgym.tasks.adding.npm_project import NodeFolder
from repairgym.tasks.adding.trial import MAX_SHARE_UNSTABLE, MIN_SHARE_PASSED, NUM_RUNS, Say
from repairgym.tasks.build.test_files import file_of
from repairgym.tasks.build.validation import run_fresh
from repairgym.tasks.layers.catalogue import NpmPackage, NpmRepository
from repairgym.tasks.layers.environments import build_environment
from repairgym.tasks.layers.store import LayerStore

_TEST_S = 20.0
_NUM_TOGETHER = 10
"""Files that run in one sandbox; between two of these, the progress is told."""
_LEAST_S = 60.0
"""Time of each such run, whatever is left."""
_FAILURES = (TestOutcome.FAILED, TestOutcome.ERROR)
_NUM_FILES_OF_RUN = 2
"""Test files that the run of a mutant often has."""
_NUM_TOLD = 3
"""Files whose first error stands in a message."""


class Tried(NamedTuple):
    """Outcome of three runs of a suite."""

    kept: tuple[str, ...]
    """Files that pass most of their tests in every run, and few of whose tests change their outcome."""
    num_files: int
    num_passed: int
    """Of the first run, as `num_failed`."""
    num_failed: int
    problems: tuple[str, ...] = ()
    """Reasons of what was left out, a sentence each."""


@dataclass(frozen=True)
class NodeTrial:
    """Runs suites of JavaScript, and makes entries from what they told."""

    store: LayerStore
    backend: SandboxBackend
    split: Split
    command: str
    """The command as the user gave it, for the entry."""
    say: Say
    node_version: str = ""
    """Node of the environment; empty: the machine's."""
    max_run_s: float = 300.0
    """Time after which a run starts no other file; those that the first run does not reach are left out."""

    async def run(self, folder: NodeFolder, lock: str) -> Tried:
        """Run the suite of ``folder`` three times in the environment of ``lock``; TaskError when no file stays."""
        spec = SandboxSpec(environment=build_environment(self.store, lock)[1], tree=folder.tree)
        runs: list[TestRun] = []
        kept, is_late, num_reached = folder.tests, False, 0
        for number in range(1, NUM_RUNS + 1):
            run, reached = await self._run(spec, folder, kept, number)
            runs.append(run)
            is_late |= len(reached) < len(kept)
            num_reached = num_reached or len(reached)
            kept = stable_files(runs, reached)
            if not kept:
                break
        problems = () if len(kept) == len(folder.tests) else self._problems(folder, runs, kept, is_late)
        if not kept:
            told = "; ".join(problems)
            raise TaskError(f"{folder.name}: no file passes most of its tests in each of {NUM_RUNS} runs: {told}")
        problems = (*problems, *told_times(runs[0], num_reached))
        outcomes = Counter(result.outcome for test_id, result in runs[0].results.items() if "::" in test_id)
        num_failed = outcomes[TestOutcome.FAILED] + outcomes[TestOutcome.ERROR]
        return Tried(kept, len(folder.tests), outcomes[TestOutcome.PASSED], num_failed, problems)

    async def _run(
        self, spec: SandboxSpec, folder: NodeFolder, paths: Sequence[str], number: int
    ) -> tuple[TestRun, tuple[str, ...]]:
        """Return run ``number`` of ``paths`` as one, and those that it reached in its time."""
        results: dict[str, TestResult] = {}
        duration_s, output, reached, end_s = 0.0, "", 0, time.monotonic() + self.max_run_s
        while together := tuple(paths[reached : reached + _NUM_TOGETHER]):
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            done = f", {reached} done" if reached else ""
            self.say(f"run {number} of {NUM_RUNS} in {folder.runner}: {len(paths)} test files{done}")
            request = TestRequest(
                test_ids=together,
                timeout_s=max(left_s, _LEAST_S),
                test_timeout_s=_TEST_S,
                runner=TestRunner(type=folder.runner),
            )
            part = await run_fresh(self.backend, spec, request)
            results.update(part.results)
            output += part.output_tail
            duration_s += part.duration_s
            reached += len(together)
        run = TestRun(results=results, exit_status=None, output_tail=output, duration_s=duration_s)
        return run, tuple(paths[:reached])

    def _problems(
        self, folder: NodeFolder, runs: Sequence[TestRun], kept: Sequence[str], is_late: bool
    ) -> tuple[str, ...]:
        """Return why files are left out: the first error of some of them, and where all of it is."""
        causes = {path: first_cause(runs, path) for path in folder.tests if path not in kept}
        lines = [f"{path}: {cause}" for path, cause in causes.items()]
        text = "\n".join((*lines, "", *(f"--- output of run {i + 1}\n{run.output_tail}" for i, run in enumerate(runs))))
        place = self._keep(text)
        late = (f"a run starts no file after {self.max_run_s:.0f} s",) if is_late else ()
        more = f" and {len(lines) - _NUM_TOLD} more" if len(lines) > _NUM_TOLD else ""
        told = f"all errors{more} and the output are in {place}"
        left = f"{len(lines)} of {len(folder.tests)} test files are left out"
        return (left, *late, *lines[:_NUM_TOLD], told)

    def _keep(self, text: str) -> Path:
        """Keep ``text`` in the layer store; return its file."""

        def write(place: Path) -> None:
            (place / "output.txt").write_text(text, encoding="utf-8")

        return self.store.build_once("trials", sha256(text.encode()).hexdigest(), write) / "output.txt"

    def added(
        self,
        project: NpmPackage | NpmRepository,
        tried: Tried,
        lock: str,
        comments: Mapping[str, str],
        problems: tuple[str, ...] = (),
    ) -> Added:
        """Return ``project`` with its entry and its counts.

        Args:
            project: The new entry of the catalogue.
            tried: The runs of its suite.
            lock: The environment in which they were made.
            comments: Field -> comment of the entry, next to those of the fields that every project has.
            problems: Things that could not be done, a sentence each.
        """
        common = {
            "split": "as --split says; all tasks of a package are in one split",
            "runner": "the framework that package.json or the test files name",
            "tests": f"{tried.num_passed} tests pass, {tried.num_failed} fail",
        }
        is_package = isinstance(project, NpmPackage)
        return Added(
            name=project.name,
            kind="npm" if is_package else "npm_repository",
            version=project.version if isinstance(project, NpmPackage) else project.revision,
            is_suite_running=tried.num_passed >= max(MIN_TESTS, tried.num_failed),
            num_passed=tried.num_passed,
            num_failed=tried.num_failed,
            num_files=tried.num_files,
            num_files_kept=len(tried.kept),
            num_pairs=len(project.releases) if isinstance(project, NpmPackage) else 0,
            requirements=tuple(sorted(json.loads(lock)["packages"][""].get("dependencies", {}))),
            plugins=(),
            problems=(*problems, *tried.problems),
            entry=render_entry(project, {**common, **comments}, (*problems, *tried.problems), self.command),
            lock=lock,
            lock_name=f"npm/{project.file_stem}.json",
        )


def told_times(run: TestRun, num_files: int) -> tuple[str, ...]:
    """Return the settings for a build, in a sentence, where those of the defaults would cut most of its runs."""
    config = TasksConfig()
    file_s = run.duration_s / max(num_files, 1)
    test_s = max((result.duration_s for result in run.results.values()), default=0.0)
    if _NUM_FILES_OF_RUN * file_s <= config.run_timeout_s and test_s <= config.test_timeout_s:
        return ()
    bounds = max(config.run_timeout_s, _NUM_FILES_OF_RUN * file_s), max(config.test_timeout_s, test_s)
    settings = "run_timeout_s={:.0f} test_timeout_s={:.0f}".format(*map(math.ceil, bounds))
    return (f"a test file takes {file_s:.1f} s here, the slowest test {test_s:.1f} s; build with {settings}",)


def first_cause(runs: Sequence[TestRun], path: str) -> str:
    """Return the first error of the test file ``path``, else what else keeps it out."""
    results = [result for run in runs for test_id, result in run.results.items() if file_of(test_id) == path]
    messages = [result.message for result in results if result.message and result.outcome in _FAILURES]
    if messages:
        return messages[0][:300]
    if not results:
        return "it did not run"
    shares = [share for run in runs if (share := _share_passed(run, path))]
    return f"{', '.join(shares)} tests pass in the runs" if shares else "no test of it gave a result"


def _share_passed(run: TestRun, path: str) -> str:
    """Return how many of the tests of ``path`` passed, as in "3 of 12"; empty where none of it ran."""
    own = [result.outcome for test_id, result in run.results.items() if test_id.startswith(f"{path}::")]
    return f"{own.count(TestOutcome.PASSED)} of {len(own)}" if own else ""


def stable_files(runs: Sequence[TestRun], paths: Sequence[str]) -> tuple[str, ...]:
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
