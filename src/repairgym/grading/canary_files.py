"""The canaries of one test file: which of its tests are copied or replaced, and the file's text with them.

Reads a task, a test file and a source of chance; makes ids of canaries and the text that holds them. `CanaryFile` knows
no language and draws the tests. A subclass reads the file and says how one of its tests is made wrong, cut and renamed:
`PythonFile` here, `JavaScriptFile` in :mod:`.javascript_canaries`.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence, Set

from repairgym.grading.copies import (
    Insertion,
    Layout,
    copy_edits,
    cut_edits,
    fixture_edits,
    fresh_name,
    is_evaluated,
)
from repairgym.grading.wrong_answers import Edit, FunctionText, choose, wrong_edits
from repairgym.records import Task, TestOutcome
from repairgym.tasks.build.test_files import file_of

_MAX_TRIED = 6
Span = tuple[int, int]
"""First line (from 0) and the line behind the last."""


class CanaryFile(ABC):
    """One test file with its canaries."""

    def __init__(self, task: Task, path: str, plain: Collection[str], lines: Sequence[str], chance: random.Random):
        """Prepare ``path`` of the text ``lines``, whose tests ``plain`` can run twice in one process."""
        self.path = path
        self._lines = lines
        self._source = chance
        self._inserted: list[Insertion] = []
        self._replaced: dict[Span, str] = {}
        needed = _names(task.fail_to_pass, path) | _names(task.pass_to_pass, path) | _names(task.visible_tests, path)
        # An empty name: the file as a whole is asked for, since its tests were unknown when it could not be imported.
        self._others = sorted(_replaceable(plain, needed)) if "" not in needed else []
        self._repaired = [name for name in sorted(_names(task.fail_to_pass, path)) if name in plain]
        self._hidden = [name for name in self._repaired if name not in _names(task.visible_tests, path)]
        self._certain = sorted(_certain(task, path) & set(plain))
        self._passing = sorted(_names(task.pass_to_pass, path) & set(plain))

    def decoys(self, num: int) -> Iterator[tuple[str, str]]:
        """Add at most ``num`` wrong copies of tests that the repair makes pass; yield (id, id of the test).

        Hidden tests come first: the agent knows the visible ones.
        """
        source = self._source
        visible = [name for name in self._repaired if name not in self._hidden]
        names = [*source.sample(self._hidden, len(self._hidden)), *source.sample(visible, len(visible))]
        for name in (names * num)[: max(num, len(names))]:
            if num and (pair := self._insert(name, is_wrong=True)) is not None:
                num -= 1
                yield pair

    def replace(self) -> tuple[str, str] | None:
        """Make a test that the task does not need wrong, in its place."""
        return self._in_place(TestOutcome.FAILED)

    def error(self) -> tuple[str, str] | None:
        """Make a test that the task does not need end in an error, in its place."""
        return self._in_place(TestOutcome.ERROR)

    def failing(self) -> tuple[str, str] | None:
        """Add a wrong copy of a test that passes before and after the repair, or of any that must pass."""
        return self._first(self._passing, is_wrong=True) or self._first(self._repaired, is_wrong=True)

    def passing(self) -> tuple[str, str] | None:
        """Add a copy of a test that must pass; return its id and that of the test."""
        return self._first(self._certain, is_wrong=False)

    @abstractmethod
    def _copy(self, name: str, is_wrong: bool) -> tuple[str, Insertion] | None:
        """Return the id (without the file) of a copy of the test ``name``, and the copy; None when it has no place."""

    @abstractmethod
    def _changed(self, name: str, kind: TestOutcome) -> tuple[Span, str] | None:
        """Return the place of the test ``name`` and its text with the outcome ``kind``; None when it allows none."""

    @abstractmethod
    def _gap(self, name: str) -> str:
        """Return what stands between the test ``name`` and the next one."""

    def _candidates(self) -> list[str]:
        return self._source.sample(self._others, min(len(self._others), _MAX_TRIED))

    def _in_place(self, kind: TestOutcome) -> tuple[str, str] | None:
        for name in self._candidates():
            if (changed := self._changed(name, kind)) is not None:
                self._replaced[changed[0]] = changed[1]
                self._others.remove(name)
                return f"{self.path}::{name}", ""
        return None

    def _first(self, names: list[str], is_wrong: bool) -> tuple[str, str] | None:
        pairs = (self._insert(name, is_wrong) for name in self._source.sample(names, len(names)))
        return next((pair for pair in pairs if pair is not None), None)

    def _insert(self, name: str, is_wrong: bool) -> tuple[str, str] | None:
        copied = self._copy(name, is_wrong)
        if copied is None:
            return None
        self._inserted.append(copied[1])
        return f"{self.path}::{copied[0]}", f"{self.path}::{name}"

    def assemble(self) -> str:
        """Return the text with its canaries."""
        lines = [*self._lines]
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        changes = [(span, False, text) for span, text in self._replaced.items()]
        for name, place, text in self._inserted:
            gap = self._gap(name)
            is_behind = place > 0 and bool(lines[place - 1].strip())
            whole = text if text.endswith("\n") else text + "\n"
            changes.append(((place, place), "::" in name, gap + whole if is_behind else whole + gap))
        # From the end. What stands at the place of a replaced test comes before it, a method before a function: behind
        # one it would be part of it.
        for (first, last), _, text in sorted(changes, key=lambda change: (-change[0][0], -change[0][1], change[1])):
            lines[first:last] = [text]
        return "".join(lines)

    @property
    def is_changed(self) -> bool:
        """True when it holds a canary."""
        return bool(self._inserted or self._replaced)


class PythonFile(CanaryFile):
    """A test file of Python."""

    def __init__(self, task: Task, path: str, layout: Layout, taken: set[str], chance: random.Random) -> None:
        """Prepare ``path``; no copy takes a name of ``taken``: a class may inherit its tests from another file."""
        super().__init__(task, path, layout.plain, layout.lines, chance)
        self.layout = layout
        self._taken = taken
        if not layout.is_always_run:
            self._others = []
        self._rows: dict[str, list[str]] = {}
        for test_id in task.fail_to_pass + task.pass_to_pass:
            base, bracket, row = test_id.partition("[")
            if bracket and file_of(test_id) == path:
                self._rows.setdefault(base.partition("::")[2], []).append(bracket + row)

    def _candidates(self) -> list[str]:
        # A fixture may give a test hundreds of rows: those without any come first.
        return sorted(super()._candidates(), key=self.layout.has_fixtures)

    def _changed(self, name: str, kind: TestOutcome) -> tuple[Span, str] | None:
        function = self.layout.function(name)
        if function is None or function.node.decorator_list or not self.layout.is_quick(name):
            return None
        edits = self._with_fixture(function) if kind is TestOutcome.ERROR else self._wrong(function)
        text = _parsing(function.edited(edits)) if edits else ""
        return (self.layout.plain[name].span, text) if text else None

    def _copy(self, name: str, is_wrong: bool) -> tuple[str, Insertion] | None:
        function, plain = self.layout.function(name), self.layout.plain[name]
        if function is None:
            return None
        edits = self._wrong(function) if is_wrong else cut_edits(function, 0, self._source)
        if edits is None:
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
        insertion = Insertion(qualified, self._source.choice(places), text)
        # A copy with all rows, hundreds perhaps, has one that the task asks for.
        rows = self._rows.get(name, []) if len(renamed) == 1 else []
        return qualified + self._source.choice(rows or [""]), insertion

    def _gap(self, name: str) -> str:
        return "\n" if "::" in name else "\n\n"

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


def _replaceable(plain: Collection[str], needed: Set[str]) -> Iterator[str]:
    """Yield the tests of ``plain`` that no needed one can be: a class may inherit its tests from another."""
    classes, names = ({name.rpartition("::")[part] for name in needed} for part in (0, 2))
    for name in plain:
        case, _, own = name.rpartition("::")
        if own not in names and (not case or case in classes):
            yield name


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
