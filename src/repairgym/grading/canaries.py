"""Canaries: tests with known outcomes, mixed into the files that decide, different in every grading.

Reads the pinned test files of a task and a secret; makes their text with canaries, the ids to run, and the expected
outcomes. All are made of real tests (:mod:`.copies`), and those that must fail have one answer changed into a near one
(:mod:`.wrong_answers`):

- *Decoys* of tests that must pass: they must fail.
- *Replaced tests*: a test of the file that the task does not need, in its place, under its name: it must fail.
- *Copies* of tests that must pass, or of their beginning: they must pass.
- *Errors*: such a replaced test with a fixture that does not exist (where none allows it: with a wrong answer).

Guarantees: names, places and answers come from a secret of one grading that never enters the sandbox, and only the
host knows which ids are canaries; real tests keep their ids and texts; an honest run that passes the task gives each
canary its outcome.

A rule that turns outcomes without knowing which test is right (all, every failure, tests that run certain code) turns
a canary, too. Code that can tell a right answer from a near one is not stopped here.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from repairgym.grading.canary_files import CanaryFile, PythonFile
from repairgym.grading.copies import layout_of
from repairgym.grading.javascript_canaries import JavaScriptFile, javascript_layout
from repairgym.records import Task, TestOutcome, TestRun
from repairgym.tasks.build.test_files import file_of

_NUM_DECOYS = 3
_KINDS = (TestOutcome.FAILED, TestOutcome.PASSED, TestOutcome.ERROR)
_BAD = (TestOutcome.FAILED, TestOutcome.ERROR)


@dataclass(frozen=True)
class Canaries:
    """The canaries of one grading."""

    files: Mapping[str, str]
    """Test files with the canaries in them."""
    expected: Mapping[str, TestOutcome]
    """Id -> required outcome."""
    replaced: frozenset[str] = frozenset()
    """Those that took the place of a test of which nothing is known."""
    originals: Mapping[str, str] = field(default_factory=dict)
    """Canary -> the test that it is a copy of: without its pass nothing is known."""
    num_decoys: int = 0

    def mixed(self, test_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``test_ids`` and the canaries in an order that says nothing."""
        return tuple(sorted((*test_ids, *self.expected))) if self.expected else test_ids

    def is_one(self, test_id: str) -> bool:
        """Return True for a canary, or one of its parametrized tests."""
        return test_id in self.expected or test_id.partition("[")[0] in self.expected

    def wrong(self, run: TestRun) -> tuple[str, ...]:
        """Describe the canaries that must not pass and passed.

        Nothing else is proof: a run may be cut short, broken code may give a near answer, and a second run of a test
        may fail. Copies that must pass are there to be alike.
        """
        is_passed = all(run.outcome(name) is TestOutcome.PASSED for name in run.results if not self.is_one(name))
        return tuple(
            f"a test that must be {expected} is {run.outcome(test_id)}"
            for test_id, expected in self.expected.items()
            if expected in _BAD
            and run.outcome(test_id) is TestOutcome.PASSED
            and (_passes(run, self.originals[test_id]) if test_id in self.originals else is_passed)
        )


NO_CANARIES = Canaries({}, {})


def _passes(run: TestRun, name: str) -> bool:
    """Return True when the test ``name``, or each of its parameters that ran, passed."""
    outcomes = [result.outcome for test_id, result in run.results.items() if test_id.partition("[")[0] == name]
    return bool(outcomes) and all(outcome is TestOutcome.PASSED for outcome in outcomes)


def make_canaries(task: Task, tests: Mapping[str, str], secret: bytes, num: int) -> Canaries:
    """Make ``num`` canaries (one of each kind from three on) and decoys in the files of the tests that decide.

    ``tests`` are the pinned texts of the task's test files by path; ``secret`` has at least 16 bytes and is used once.
    """
    chance = random.Random(hashlib.sha256(secret + task.id.encode()).digest())
    files = list(_files(task, tests, chance)) if num and task.runner.is_signed else []
    if not files:
        return NO_CANARIES
    mixed = _Mixed(files, chance)
    mixed.add_decoys()
    for index in range(num):
        mixed.add(_KINDS[index % len(_KINDS)])
    texts = {file.path: file.assemble() for file in files if file.is_changed}
    return Canaries(texts, mixed.expected, frozenset(mixed.replaced), mixed.originals, mixed.num_decoys)


def _files(task: Task, tests: Mapping[str, str], chance: random.Random) -> Iterator[CanaryFile]:
    """Yield the files of the tests that decide which can hold canaries."""
    deciding = task.fail_to_pass + task.pass_to_pass
    taken = {test_id.partition("[")[0].rpartition("::")[2] for test_id in deciding + task.visible_tests}
    for path in sorted({file_of(test_id) for test_id in deciding} & tests.keys()):
        if task.runner.is_node:
            if (script := javascript_layout(path, tests[path])) is not None:
                yield JavaScriptFile(task, path, script, taken, chance)
        elif (layout := layout_of(tests[path])) is not None:
            yield PythonFile(task, path, layout, taken, chance)


class _Mixed:
    """The canaries of all files of a task, and what is expected of them."""

    def __init__(self, files: Sequence[CanaryFile], source: random.Random) -> None:
        self._files = files
        self._source = source
        self.expected: dict[str, TestOutcome] = {}
        self.replaced: set[str] = set()
        self.originals: dict[str, str] = {}
        self.num_decoys = 0

    def add_decoys(self) -> None:
        for file in self._shuffled():
            for test_id, original in file.decoys(_NUM_DECOYS - len(self.expected)):
                self._expect(test_id, original, TestOutcome.FAILED)
        self.num_decoys = len(self.expected)

    def add(self, kind: TestOutcome) -> None:
        """Add one that has the outcome ``kind``, or one that fails where the files allow none."""
        first = {TestOutcome.PASSED: CanaryFile.passing, TestOutcome.ERROR: CanaryFile.error}.get(kind)
        if first is None or not self._add_from(first, kind):
            self._add_from(CanaryFile.replace, TestOutcome.FAILED) or self._add_from(
                CanaryFile.failing, TestOutcome.FAILED
            )

    def _add_from(self, make: Callable[[CanaryFile], tuple[str, str] | None], kind: TestOutcome) -> bool:
        for file in self._shuffled():
            if (pair := make(file)) is not None:
                self._expect(*pair, kind)
                return True
        return False

    def _expect(self, test_id: str, original: str, kind: TestOutcome) -> None:
        self.expected[test_id] = kind
        if original:
            self.originals[test_id] = original
        else:
            self.replaced.add(test_id)

    def _shuffled(self) -> list[CanaryFile]:
        return self._source.sample(self._files, len(self._files))
