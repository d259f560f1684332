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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from repairgym.grading.copies import (
    Insertion,
    Layout,
    copy_edits,
    cut_edits,
    fixture_edits,
    fresh_name,
    is_evaluated,
    layout_of,
)
from repairgym.grading.wrong_answers import Edit, FunctionText, choose, wrong_edits
from repairgym.records import Task, TestOutcome, TestRun
from repairgym.tasks.build.test_files import file_of

_NUM_DECOYS = 3
_MAX_TRIED = 6
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


class _File:
    """One test file with its canaries."""

    def __init__(self, task: Task, path: str, layout: Layout, taken: set[str], source: random.Random) -> None:
        """Prepare ``path``; no copy takes a name of ``taken``: a class may inherit its tests from another file."""
        self.layout = layout
        self.path = path
        self._source = source
        self._taken = taken
        self._inserted: list[Insertion] = []
        self._replaced: dict[tuple[int, int], str] = {}
        needed = _names(task.fail_to_pass, path) | _names(task.pass_to_pass, path) | _names(task.visible_tests, path)
        # An empty name: the file as a whole is asked for, since its tests were unknown when it could not be imported.
        self._others = sorted(_replaceable(layout, needed)) if layout.is_always_run and "" not in needed else []
        self._repaired = [name for name in sorted(_names(task.fail_to_pass, path)) if name in layout.plain]
        self._hidden = [name for name in self._repaired if name not in _names(task.visible_tests, path)]
        self._rows: dict[str, list[str]] = {}
        for test_id in task.fail_to_pass + task.pass_to_pass:
            base, bracket, row = test_id.partition("[")
            if bracket and file_of(test_id) == path:
                self._rows.setdefault(base.partition("::")[2], []).append(bracket + row)
        self._certain = sorted(_certain(task, path) & layout.plain.keys())
        self._passing = sorted(_names(task.pass_to_pass, path) & layout.plain.keys())

    def decoys(self, num: int) -> Iterator[tuple[str, str]]:
        """Add at most ``num`` wrong copies of tests that the repair makes pass; yield (id, id of the test).

        Hidden tests come first: the agent knows the visible ones.
        """
        source = self._source
        visible = [name for name in self._repaired if name not in self._hidden]
        names = [*source.sample(self._hidden, len(self._hidden)), *source.sample(visible, len(visible))]
        for name in (names * num)[: max(num, len(names))]:
            if num and (pair := self._insert(name, self._wrong)) is not None:
                num -= 1
                yield pair

    def replace(self) -> tuple[str, str] | None:
        """Make a test that the task does not need wrong, in its place."""
        return self._in_place(self._wrong)

    def error(self) -> tuple[str, str] | None:
        """Give a test that the task does not need a fixture that does not exist, in its place."""
        return self._in_place(self._with_fixture)

    def failing(self) -> tuple[str, str] | None:
        """Add a wrong copy of a test that passes before and after the repair, or of any that must pass."""
        return self._first(self._passing, self._wrong) or self._first(self._repaired, self._wrong)

    def passing(self) -> tuple[str, str] | None:
        """Add a copy of a test that must pass; return its id and that of the test."""
        return self._first(self._certain, lambda function: cut_edits(function, 0, self._source))

    def _in_place(self, change: "_Change") -> tuple[str, str] | None:
        names = self._source.sample(self._others, min(len(self._others), _MAX_TRIED))
        # A fixture may give a test hundreds of rows: those without any come first.
        for name in sorted(names, key=self.layout.has_fixtures):
            function = self.layout.function(name)
            if function is None or function.node.decorator_list or not self.layout.is_quick(name):
                continue
            edits = change(function)
            if edits and (text := _parsing(function.edited(edits))):
                self._replaced[self.layout.plain[name].span] = text
                self._others.remove(name)
                return f"{self.path}::{name}", ""
        return None

    def _first(self, names: list[str], change: "_Change") -> tuple[str, str] | None:
        pairs = (self._insert(name, change) for name in self._source.sample(names, len(names)))
        return next((pair for pair in pairs if pair is not None), None)

    def _insert(self, name: str, change: "_Change") -> tuple[str, str] | None:
        """Add a copy of the test ``name`` with ``change``; None when the change has no place in it."""
        function, plain = self.layout.function(name), self.layout.plain[name]
        edits = change(function) if function is not None else None
        if function is None or edits is None:
            return None
        own = fresh_name(self.layout, self._taken, self._source)
        renamed = copy_edits(function, own, self._source)
        text = _parsing(function.edited([*edits, *renamed]))
        if not text:
            return None
        qualified = f"{name.rpartition('::')[0]}::{own}" if "::" in name else own
        # Decorators, defaults and annotations are evaluated where the test stands: what they name is defined by then.
        is_late = is_evaluated(function.node)
        places = [place for place in plain.places if place >= plain.span[0] or not is_late]
        if not places:
            return None
        self._inserted.append(Insertion(qualified, self._source.choice(places), text))
        # A copy with all rows, hundreds perhaps, has one that the task asks for.
        rows = self._rows.get(name, []) if len(renamed) == 1 else []
        return f"{self.path}::{qualified}{self._source.choice(rows or [''])}", f"{self.path}::{name}"

    def _wrong(self, function: FunctionText) -> list[Edit] | None:
        edits = wrong_edits(function, self.layout.values, self.layout.text, self._source)
        if not edits:
            return None
        edit = choose(edits, self._source)
        return [edit, *cut_edits(function, max(edit.end[0], edit.until), self._source)]

    def _with_fixture(self, function: FunctionText) -> list[Edit] | None:
        """Make a fixture of the first variable of a test: nobody provides it."""
        words = sorted({word for name in self.layout.names for word in name.split("_")[1:] if word.isalpha()})
        prefix = self._source.choice(words or ["value", "case"])
        return fixture_edits(function, prefix, self.layout.text)

    def assemble(self) -> str:
        """Return the text with its canaries."""
        lines = [*self.layout.lines]
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        changes = [(span, False, text) for span, text in self._replaced.items()]
        for name, place, text in self._inserted:
            is_method = "::" in name
            gap = "\n" if is_method else "\n\n"
            is_behind = place > 0 and bool(lines[place - 1].strip())
            changes.append(((place, place), is_method, gap + _ended(text) if is_behind else _ended(text) + gap))
        # From the end. What stands at the place of a replaced test comes before it, a method before a function: behind
        # one it would be part of it.
        for (first, last), _, text in sorted(changes, key=lambda change: (-change[0][0], -change[0][1], change[1])):
            lines[first:last] = [text]
        return "".join(lines)

    @property
    def is_changed(self) -> bool:
        """True when it holds a canary."""
        return bool(self._inserted or self._replaced)


_Change = Callable[[FunctionText], list[Edit] | None]
"""Makes the edits of a copy; None when it cannot."""


def _replaceable(layout: Layout, needed: Set[str]) -> Iterator[str]:
    """Yield the tests of ``layout`` that no needed one can be: a class may inherit its tests from another."""
    classes, names = ({name.rpartition("::")[part] for name in needed} for part in (0, 2))
    for name in layout.plain:
        case, _, own = name.rpartition("::")
        if own not in names and (not case or case in classes):
            yield name


def _ended(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _parsing(text: str) -> str:
    """Return ``text`` when it is one function, else an empty text."""
    return text if FunctionText.parse(text) is not None else ""


def _names(test_ids: Iterable[str], path: str) -> set[str]:
    """Return the names (``test_a``, ``TestB::test_c``) of the tests of ``path``, without parameters."""
    return {test_id.partition("[")[0].partition("::")[2] for test_id in test_ids if file_of(test_id) == path}


def _certain(task: Task, path: str) -> set[str]:
    """Return the names of the tests of ``path`` that pass with the repair, as a whole."""
    ids = [test_id for test_id in task.fail_to_pass + task.pass_to_pass if file_of(test_id) == path]
    return {test_id.partition("::")[2] for test_id in ids if "[" not in test_id}


def make_canaries(task: Task, tests: Mapping[str, str], secret: bytes, num: int) -> Canaries:
    """Make ``num`` canaries (one of each kind from three on) and decoys in the files of the tests that decide.

    ``tests`` are the pinned texts of the task's test files by path; ``secret`` has at least 16 bytes and is used once.
    """
    source = random.Random(hashlib.sha256(secret + task.id.encode()).digest())
    deciding = task.fail_to_pass + task.pass_to_pass
    wanted = {file_of(test_id) for test_id in deciding}
    layouts = {path: layout for path in sorted(wanted & tests.keys()) if (layout := layout_of(tests[path]))}
    if not layouts or num == 0 or not task.runner.is_signed or task.runner.is_node:
        return NO_CANARIES
    taken = {test_id.partition("[")[0].rpartition("::")[2] for test_id in deciding + task.visible_tests}
    files = [_File(task, path, layout, taken, source) for path, layout in layouts.items()]
    mixed = _Mixed(files, source)
    mixed.add_decoys()
    for index in range(num):
        mixed.add(_KINDS[index % len(_KINDS)])
    texts = {file.path: file.assemble() for file in files if file.is_changed}
    return Canaries(texts, mixed.expected, frozenset(mixed.replaced), mixed.originals, mixed.num_decoys)


class _Mixed:
    """The canaries of all files of a task, and what is expected of them."""

    def __init__(self, files: Sequence[_File], source: random.Random) -> None:
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
        first = {TestOutcome.PASSED: _File.passing, TestOutcome.ERROR: _File.error}.get(kind)
        if first is None or not self._add_from(first, kind):
            self._add_from(_File.replace, TestOutcome.FAILED) or self._add_from(_File.failing, TestOutcome.FAILED)

    def _add_from(self, make: Callable[[_File], tuple[str, str] | None], kind: TestOutcome) -> bool:
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

    def _shuffled(self) -> list[_File]:
        return self._source.sample(self._files, len(self._files))
