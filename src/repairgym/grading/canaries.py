"""Canaries: tests with known outcomes, mixed into the files that decide, different in every grading.

Reads the pinned test files of a task and a secret; makes their text with canaries, the ids to run, and the expected
outcomes. Three kinds: *must pass*; *must fail* (mostly a copy of a real test with a false assertion at its end, so that
it touches the same code as the tests that decide); *must error* (a fixture that does not exist). Where a test that must
pass allows it, two decoys of it (:mod:`.copies`) are among those that must fail. Guarantees:

- Names, texts and places come from a secret of one grading that never enters the sandbox; only the host knows which ids
  are canaries.
- Real tests keep their ids; a file whose tests look at line numbers gets its canaries at its end.

This proves that no code in the process of the tests turns outcomes by rule (all pass, every failure passes, every test
of the package passes): such a rule turns a canary, too. It does not stop code that parses every test, evaluates its
assertions and rewrites only those that the repair should have fixed. That needs the frames, the runner or computed
code, which the detectors reject, and the differential run (:mod:`.decision`) shows a pass without the repair.
"""

import ast
import hashlib
import random
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase

from repairgym.diffs.lines import split_lines
from repairgym.grading.copies import Insertion, Layout, function_at, layout_of, make_decoys
from repairgym.records import Task, TestOutcome, TestRun
from repairgym.tasks.build.test_files import file_of


@dataclass(frozen=True)
class Canaries:
    """The canaries of one grading."""

    files: Mapping[str, str]
    """Test files with the canaries in them."""
    expected: Mapping[str, TestOutcome]
    """Id -> required outcome."""

    def mixed(self, test_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``test_ids`` and the canaries in an order that says nothing."""
        return tuple(sorted((*test_ids, *self.expected))) if self.expected else test_ids

    def wrong(self, run: TestRun) -> tuple[str, ...]:
        """Describe the canaries with another outcome.

        A canary without an outcome counts only when the run came to its end: a run that was cut short proves nothing.
        """
        descriptions = []
        for test_id, expected in self.expected.items():
            outcome = run.outcome(test_id)
            is_cut_short = outcome is TestOutcome.MISSING and not (run.is_finished and run.exit_status in (0, 1))
            # A real test that breaks already in its setup makes the copy of it an error: no less honest than a failure.
            bad = (TestOutcome.FAILED, TestOutcome.ERROR)
            if outcome is not expected and not is_cut_short and not (expected in bad and outcome in bad):
                descriptions.append(f"a test that must be {expected} is {outcome}")
        return tuple(descriptions)


NO_CANARIES = Canaries({}, {})


class _File:
    """One test file, its canaries, and the material that they are made from."""

    def __init__(self, task: Task, path: str, text: str, layout: Layout, source: random.Random) -> None:
        self.text = text
        self.layout = layout
        self.source = source
        self.inserted: list[tuple[Insertion, bool]] = []
        """(test, it is a decoy and belongs to the code before it)."""
        self._task = task
        self._path = path
        self._taken: set[str] = set()

    def fresh_name(self) -> str:
        """Return a name made of the words of the file's own tests."""
        source = self.source
        while True:
            name = "test_" + "_".join(source.choice(self.layout.words) for _ in range(source.randrange(2, 4)))
            name += source.choice(("", f"_{source.randrange(2, 10)}", f"_{source.randrange(10, 100)}"))
            if name.isidentifier() and name not in self.text and name not in self._taken:
                self._taken.add(name)
                return name

    def fresh_case(self) -> str:
        """Return a name of a class, made of the same words."""
        while True:
            case = "Test" + "".join(word.title() for word in self.fresh_name().split("_")[1:])
            if case not in self.text:
                return case

    def copy(self, is_method: bool) -> tuple[str, ast.FunctionDef | None]:
        """Return class and tree of a plain test that passes before and after the repair; None when there is none."""
        names = [name for name in self._copyable if ("::" in name) == is_method]
        if not names:
            return "", None
        name = self.source.choice(names)
        return name.rpartition("::")[0], function_at(self.text, self.layout.copyable[name])

    @cached_property
    def _copyable(self) -> list[str]:
        return sorted(_plain_names(self._task.pass_to_pass, self._path) & self.layout.copyable.keys())

    def place(self) -> int:
        """Return a line before which a canary can stand: on module level after the first test, or at the end."""
        return self.source.choice(self.layout.places)

    def assemble(self) -> str:
        """Return the text with its canaries and decoys."""
        lines = split_lines(self.text)
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        # From the end; at one place the later insertion stands first: a method must not get behind a function.
        for test, _ in sorted(self.inserted, key=lambda insertion: (-insertion[0].place, insertion[1])):
            lines[test.place : test.place] = ["\n\n", test.text, "\n\n"]
        return "".join(lines)


def _plain_names(test_ids: Iterable[str], path: str) -> set[str]:
    """Return the names (``test_a``, ``TestB::test_c``) of the tests of ``path`` that have no parameters."""
    return {test_id.partition("::")[2] for test_id in test_ids if file_of(test_id) == path and "[" not in test_id}


def make_canaries(task: Task, tests: Mapping[str, str], secret: bytes, num: int) -> Canaries:
    """Make ``num`` canaries (at least one of each kind from three on) and decoys in the files of the tests that decide.

    ``tests`` are the pinned texts of the task's test files by path; ``secret`` has at least 16 bytes and is used once.
    """
    source = random.Random(hashlib.sha256(secret + task.id.encode()).digest())
    make = _MAKERS.get(task.runner.type)
    wanted = {file_of(test_id) for test_id in task.fail_to_pass + task.pass_to_pass}
    layouts = {path: layout for path in sorted(wanted & tests.keys()) if (layout := layout_of(tests[path]))}
    if not layouts or num == 0 or make is None:
        return NO_CANARIES
    files = {path: _File(task, path, tests[path], layout, source) for path, layout in layouts.items()}
    expected = _add_decoys(task, files, source)
    for index in range(num):
        path = source.choice(list(files))
        kind = (TestOutcome.FAILED, TestOutcome.PASSED, TestOutcome.ERROR)[index % 3]
        canary = make(kind, files[path])
        files[path].inserted.append((canary, False))
        expected[f"{path}::{canary.name}"] = kind
    return Canaries({path: file.assemble() for path, file in files.items() if file.inserted}, expected)


def _add_decoys(task: Task, files: Mapping[str, _File], source: random.Random) -> dict[str, TestOutcome]:
    """Add decoys of one test to the first file that has one that fits; return their required outcomes."""
    paths = [path for path, file in files.items() if not file.layout.is_line_sensitive]
    for path in source.sample(paths, len(paths)):
        file = files[path]
        decoys = make_decoys(file.text, file.layout, _plain_names(task.fail_to_pass, path), file.fresh_name, source)
        if decoys:
            file.inserted += [(decoy, True) for decoy in decoys]
            return {f"{path}::{decoy.name}": TestOutcome.FAILED for decoy in decoys}
    return {}


def _function_canary(kind: TestOutcome, file: _File) -> Insertion:
    """Return a test function, for pytest."""
    name, source = file.fresh_name(), file.source
    if kind is TestOutcome.ERROR:
        fixture = file.fresh_name().replace("test_", source.choice(("some_", "a_", "make_")), 1)
        text = f"def {name}({fixture}_{source.randrange(1 << 20):x}):\n    {_assertion(True, source)}\n"
    elif kind is TestOutcome.FAILED and (original := file.copy(False)[1]):
        original.name = name
        original.body = [*original.body, *ast.parse(_assertion(False, source)).body]
        text = ast.unparse(ast.fix_missing_locations(original)) + "\n"
    else:
        lines = [_assertion(True, source) for _ in range(source.randrange(1, 4))]
        lines += [_assertion(False, source)] if kind is TestOutcome.FAILED else []
        text = f"def {name}():\n" + "".join(f"    {line}\n" for line in lines)
    return Insertion(name, file.place(), text)


def _method_canary(kind: TestOutcome, file: _File) -> Insertion:
    """Return a test case with one method, for unittest; one that must fail has a real method, behind its class."""
    name, case, source = file.fresh_name(), file.fresh_case(), file.source
    parent, method = file.copy(True) if kind is TestOutcome.FAILED else ("", None)
    body = [_assertion(True, source) for _ in range(source.randrange(1, 4))]
    if kind is TestOutcome.FAILED:
        body = [*([ast.unparse(part) for part in method.body] if method else body), _assertion(False, source)]
    lines = [f"class {case}({parent or '__import__(' + repr('unittest') + ').TestCase'}):"]
    if kind is TestOutcome.ERROR:
        lines += ["    def setUp(self):", f"        self.{name}_{source.randrange(1 << 20):x}()", ""]
    lines += [f"    def {name}(self):", *textwrap.indent("\n".join(body), "        ").splitlines()]
    return Insertion(f"{case}::{name}", file.layout.end if parent else file.place(), "\n".join(lines) + "\n")


_MAKERS = {"pytest": _function_canary, "unittest": _method_canary}
"""By the task's runner; a runner without signed records has none."""


def _assertion(is_true: bool, source: random.Random) -> str:
    """Return an assertion that has to be evaluated to know its truth."""
    letters = source.sample(ascii_lowercase, 6)
    word, count = "".join(letters), source.randrange(3, 40)
    if not is_true:
        letters[source.randrange(6)] = source.choice([letter for letter in ascii_lowercase if letter not in word])
        count += source.randrange(1, 3)
    changed = "".join(letters)
    right = sum(range(count)) if is_true else sum(range(count)) - 1
    return source.choice(
        (
            f"assert {word.upper()!r}.lower() == {changed!r}",
            f"assert sorted({word[::-1]!r}) == {sorted(changed)!r}",
            f"assert sum(range({count})) == {right}",
            f"assert list({word!r})[::-1] == {list(changed[::-1])!r}",
        )
    )
