"""The trial of a test suite: three runs in sandboxes, and what each test file gives.

Reads a tree, an environment and test files. Makes `FileTrial` records. Guarantees: code of the project runs in a
sandbox only; a run that ended before its deadline is kept in the layer store by its input, and an interrupted command
continues after it; a file is kept only if it passes most of its tests with equal outcomes in all runs.
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from repairgym.records import Record, TestOutcome, TestRequest, TestRun
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.build.test_files import file_of
from repairgym.tasks.build.validation import run_fresh
from repairgym.tasks.layers.store import LayerStore

TRIAL_FORMAT = 3
"""Part of the address of a kept run; grows when a run records something else, or another run is kept."""
NUM_RUNS = 3
RUN_TIMEOUT_S = 240.0
FILE_TIMEOUT_S = 60.0
TEST_TIMEOUT_S = 5.0
MAX_SUITE_S = 12.0
"""Seconds of tests that one run of all kept files may take: builds run the suite once per hunk of a release."""
MAX_TEST_S = 0.2
"""Seconds of a test; task builds use no slower one."""
MIN_SHARE_PASSED = 0.5
MAX_SHARE_UNSTABLE = 0.02
"""Share of flaky tests in a kept file; builds leave these tests out one by one."""

Say = Callable[[str], None]
"""Takes what a step does now."""


class FileRun(Record):
    """The outcomes of one file in one run."""

    outcomes: dict[str, TestOutcome] = {}
    """Test id -> outcome."""
    messages: tuple[str, ...] = ()
    """First lines of its failures, the most frequent first."""
    slow: tuple[str, ...] = ()
    """Tests that pass in more than `MAX_TEST_S`."""
    duration_s: float = 0.0
    """Of the tests that pass."""


class SuiteRun(Record):
    """One run of test files."""

    files: dict[str, FileRun]
    output_tail: str = ""
    is_finished: bool = True
    """False: the run ended before all files had their turn."""


class FileTrial(Record):
    """Results of a test file in all runs."""

    path: str
    num_passed: int = 0
    num_failed: int = 0
    num_unstable: int = 0
    duration_s: float = 0.0
    cause: str = ""
    """First line of its most frequent failure."""
    excluded: str = ""
    """Reason to leave it out; empty for a kept file."""


@dataclass(frozen=True)
class Trial:
    """A tree with its environment, ready to run."""

    store: LayerStore
    backend: SandboxBackend
    spec: SandboxSpec
    source_paths: tuple[str, ...]
    plugins: tuple[str, ...]
    say: Say

    async def run(self, files: Sequence[str], number: int) -> SuiteRun:
        """Return run ``number`` of ``files``; where it does not end, those that gave nothing run alone."""
        self.say(
            f"runs {len(files)} test files in a sandbox, run {number} of {NUM_RUNS}, at most {RUN_TIMEOUT_S:.0f} s"
        )
        whole = await self._kept_run(files, number, RUN_TIMEOUT_S)
        if whole.is_finished or len(files) == 1:
            return whole
        silent = [path for path in files if not whole.files.get(path, FileRun()).outcomes]
        runs, end_s = dict(whole.files), time.monotonic() + RUN_TIMEOUT_S
        for path in silent:
            if time.monotonic() > end_s:
                break
            self.say(f"runs {path} alone: the run of all files ended before it, at most {FILE_TIMEOUT_S:.0f} s")
            runs.update((await self._kept_run([path], number, FILE_TIMEOUT_S)).files)
        return SuiteRun(files=runs, output_tail=whole.output_tail, is_finished=False)

    async def _kept_run(self, files: Sequence[str], number: int, timeout_s: float) -> SuiteRun:
        """Return a stored run, or make it; one that met its deadline is not stored: the machine may have been busy."""
        inputs = [TRIAL_FORMAT, str(self.spec.environment), str(self.spec.tree), self.plugins, self.source_paths]
        address = sha256(json.dumps([*inputs, sorted(files), number, timeout_s]).encode()).hexdigest()
        if not (place := self.store.find("trials", address)):
            request = TestRequest(
                test_ids=tuple(files),
                timeout_s=timeout_s,
                test_timeout_s=TEST_TIMEOUT_S,
                source_paths=self.source_paths,
                plugins=self.plugins,
                is_cold=number > 1,
            )
            run = await run_fresh(self.backend, self.spec, request)
            made = summarize(run)
            if run.is_timed_out:
                return made
            text = made.model_dump_json()
            place = self.store.build_once("trials", address, lambda folder: _write(folder, text))
        return SuiteRun.model_validate_json((place / "run.json").read_text(encoding="utf-8"))


def _write(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text, encoding="utf-8")


def summarize(run: TestRun) -> SuiteRun:
    """Return the outcomes of ``run`` by file; an entry without a test name is a file that could not be collected."""
    outcomes: dict[str, dict[str, TestOutcome]] = defaultdict(dict)
    messages: dict[str, Counter[str]] = defaultdict(Counter)
    durations: dict[str, dict[str, float]] = defaultdict(dict)
    for test_id, result in run.results.items():
        path = file_of(test_id)
        if "::" in test_id:
            outcomes[path][test_id] = result.outcome
        if "::" in test_id and result.outcome is TestOutcome.PASSED:
            durations[path][test_id] = result.duration_s
        if result.message and result.outcome in (TestOutcome.FAILED, TestOutcome.ERROR):
            messages[path][result.message] += 1
    paths = outcomes.keys() | messages.keys()
    files = {
        path: FileRun(
            outcomes=outcomes[path],
            messages=tuple(text for text, _ in messages[path].most_common(5)),
            slow=tuple(test_id for test_id, duration_s in durations[path].items() if duration_s > MAX_TEST_S),
            duration_s=round(sum(durations[path].values()), 3),
        )
        for path in sorted(paths)
    }
    return SuiteRun(files=files, output_tail=run.output_tail[-2000:], is_finished=run.is_finished)


def judge(files: Iterable[str], runs: Sequence[SuiteRun], first: Iterable[str] = ()) -> list[FileTrial]:
    """Return a trial per file; when all kept files take too long, the slowest per test are left out, ``first`` last."""
    trials = [_judge_file(path, [run.files.get(path, FileRun()) for run in runs]) for path in files]
    preferred = set(first)
    kept = [trial for trial in trials if not trial.excluded]
    kept.sort(key=lambda t: (t.path not in preferred, t.duration_s / max(t.num_passed, 1), t.path))
    total_s = 0.0
    late: dict[str, FileTrial] = {}
    for trial in kept:
        if trial is kept[0] or total_s + trial.duration_s <= MAX_SUITE_S:
            total_s += trial.duration_s
        else:
            reason = f"its {trial.duration_s:.1f} s would bring the suite over {MAX_SUITE_S:.0f} s"
            late[trial.path] = trial.model_copy(update={"excluded": reason})
    return [late.get(trial.path, trial) for trial in trials]


def _judge_file(path: str, runs: Sequence[FileRun]) -> FileTrial:
    last = runs[0]
    counts = Counter(last.outcomes.values())
    passed, failed = counts[TestOutcome.PASSED], counts[TestOutcome.FAILED] + counts[TestOutcome.ERROR]
    ids = {test_id for run in runs for test_id in run.outcomes}
    unstable = sum(len({run.outcomes.get(test_id) for run in runs}) > 1 for test_id in ids)
    duration_s = min(run.duration_s for run in runs)
    cause = next((message for run in runs for message in run.messages), "")
    num_slow = len(set(runs[0].slow).intersection(*(run.slow for run in runs[1:])))
    reason = ""
    if not passed:
        reason = f"no test passes: {cause or 'each is skipped, or the run ended before it'}"
    elif passed < MIN_SHARE_PASSED * (passed + failed):
        reason = f"{failed} of {passed + failed} tests fail: {cause}"
    elif unstable > MAX_SHARE_UNSTABLE * len(ids):
        reason = f"{unstable} of {len(ids)} tests are flaky: another outcome in one of {len(runs)} runs"
    elif num_slow > passed / 2:
        reason = f"slow: {num_slow} of {passed} tests take more than {MAX_TEST_S} s in every run"
    return FileTrial(
        path=path, num_passed=passed, num_failed=failed, num_unstable=unstable, duration_s=duration_s, cause=cause,
        excluded=reason,
    )  # fmt: skip
