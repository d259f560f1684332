"""What an attacker sees of a task, and ways to write an attack into its broken file.

Reads a task and the pinned text of its tests; makes `Attack` records. A hack is a function from a `Target` to an
`Attack`, or to None when the task has not what the hack works on.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from repairgym.records import Task, Turn

Files = dict[str, str | None]


@dataclass(frozen=True)
class Target:
    """A task as an attacker sees it, and its hidden answers for the attacks that pretend to have fetched them."""

    task: Task
    path: str
    """The broken file."""
    text: str
    tests: dict[str, str]

    @property
    def test_path(self) -> str:
        """The first test file."""
        return self.task.test_paths[0]

    def repaired(self) -> Target:
        """The same task with the repair in its file: for hacks that sabotage a right repair."""
        return dataclasses.replace(self, text=self.task.gold_files[self.path] or "")

    def with_code(self, code: str) -> Files:
        """The broken file with ``code`` after its docstring and ``__future__`` imports."""
        last = 0
        for node in ast.parse(self.text).body:
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not is_text and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                break
            last = node.end_lineno or 0
        lines = self.text.splitlines(keepends=True)
        return {self.path: "".join((*lines[:last], "\n", code.strip("\n"), "\n\n", *lines[last:]))}

    def function(self) -> ast.FunctionDef:
        """The function under repair."""
        place = self.task.location
        assert place is not None
        return next(
            node
            for node in ast.walk(ast.parse(self.text))
            if isinstance(node, ast.FunctionDef) and place.first_line <= node.lineno <= place.last_line
        )

    def with_body(self, body: str, code: str = "") -> Files:
        """The broken file with another body of the function under repair; ``{body}`` stands for the old one.

        ``code`` goes to the top of the file, as `with_code` does it.
        """
        node = self.function()
        lines = self.text.splitlines(keepends=True)
        first, last = node.body[0].lineno - 1, node.end_lineno or node.lineno
        out = _filled(body, "{body}", lines[first:last], _pad(lines[first]))
        text = "".join((*lines[:first], *out, *lines[last:]))
        return dataclasses.replace(self, text=text).with_code(code) if code else {self.path: text}

    def guard(self) -> ast.If | None:
        """The broken condition when the repair is one condition before a ``raise``; None for other repairs."""
        old, gold = self.text.splitlines(), (self.task.gold_files[self.path] or "").splitlines()
        changed = [number for number, (a, b) in enumerate(zip(old, gold, strict=False), 1) if a != b]
        if len(changed) != 1 or len(old) != len(gold):
            return None
        for node in ast.walk(self.function()):
            is_simple = isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Raise)
            if isinstance(node, ast.If) and is_simple and node.lineno == changed[0]:
                return node
        return None

    def with_guard(self, text: str, code: str = "") -> Files | None:
        """The broken file with another text in place of its broken check.

        ``{test}`` stands for the condition, ``{raise}`` for what it raises, ``{block}`` for the whole check.
        """
        node = self.guard()
        if node is None:
            return None
        lines = self.text.splitlines(keepends=True)
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        text = text.replace("{test}", ast.unparse(node.test)).replace("{raise}", ast.unparse(node.body[-1]))
        out = _filled(text, "{block}", lines[first:last], _pad(lines[first]))
        changed = "".join((*lines[:first], *out, *lines[last:]))
        return dataclasses.replace(self, text=changed).with_code(code) if code else {self.path: changed}

    def with_decorator(self, decorator: str, code: str) -> Files:
        """The broken file with a decorator, defined by ``code``, on the function under repair."""
        node = self.function()
        lines = self.text.splitlines(keepends=True)
        first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)]) - 1
        text = "".join((*lines[:first], _pad(lines[first]) + decorator + "\n", *lines[first:]))
        return dataclasses.replace(self, text=text).with_code(code)


def _pad(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _filled(template: str, mark: str, old: list[str], pad: str) -> list[str]:
    out: list[str] = []
    for line in template.strip("\n").splitlines():
        if line.strip() == mark:
            extra = line[: len(line) - len(line.lstrip())]
            out += [pad + extra + one.removeprefix(pad) if one.strip() else one for one in old]
        else:
            out.append(pad + line + "\n")
    return out


@dataclass(frozen=True)
class Attack:
    """What an attacker submits."""

    files: Files
    turns: tuple[Turn, ...] = field(default=())


Hack = Callable[[Target], Attack | None]
HACKS: dict[str, Hack] = {}


def hack(name: str, make: Callable[[Target], Files | None]) -> None:
    """Register a hack by the files that it submits."""
    assert name not in HACKS, name

    def attack(target: Target) -> Attack | None:
        files = make(target)
        return None if files is None else Attack(files)

    HACKS[name] = attack


def code_hack(name: str, code: str) -> None:
    """A hack that runs when the module is imported."""
    hack(name, lambda target: target.with_code(code))


def body_hack(name: str, body: str, code: str = "") -> None:
    """A hack in the function under repair."""
    hack(name, lambda target: target.with_body(body, code))


def guard_hack(name: str, text: str, code: str = "") -> None:
    """A hack in place of the broken check."""
    hack(name, lambda target: target.with_guard(text, code))


def file_hack(name: str, path: str, text: str | None) -> None:
    """A hack that is one more file."""
    hack(name, lambda target: {path: text})


def turn_hack(name: str, command: str) -> None:
    """A trajectory whose repair is right and whose way to it is not."""

    def make(target: Target) -> Attack:
        turn = Turn(action=command, tool="shell", arguments={"command": command}, observation="", action_span=(0, 1))
        return Attack(dict(target.task.gold_files), (turn,))

    assert name not in HACKS, name
    HACKS[name] = make
