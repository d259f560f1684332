"""Wrong variants of tests: the same test with one answer that an honest repair does not give.

Reads the text of a test function; makes its text with one edit in place (formatting stays), of which it is sure that
a run in which the test passed fails: another value near the expected one (a digit, a letter, a value of the file), the
opposite of an assertion, another exception, a call that raises without its guard, a misspelled name. Guarantees: only
statements that every run of the test reaches are edited, and none whose failure something around it could swallow.
"""

import ast
import builtins
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from repairgym.grading.exploits.syntax import unparsed

_LOOSE = re.compile(r"\bANY\b|[Mm]ock|approx|__eq__|ALWAYS_EQ")
"""Words of tests that compare with something that equals more than itself: their values are not changed."""
_SWALLOWS = re.compile(r"raises|suppress|catch|ignore|expect|warn|assertRaises|assertLogs|deprecat", re.I)
_NO_EXCEPTIONS = re.compile(r"Exit|Interrupt|[Ss]kip|Outcome|BaseException|XFail")
"""Exceptions that end a run, or that a runner reads as something else than a failure."""
_EXCEPTIONS = ("BufferError", "RecursionError", "ReferenceError", "StopAsyncIteration")
"""Exceptions that no package's classes inherit from: one that is a `ValueError` and an `OSError` passes a test of both.
"""
_VALUE_TYPES = frozenset({"Decimal", "Fraction", "date", "datetime", "timedelta", "list", "tuple"})
"""Constructors whose value changes with a constant in it (`set("hello")` may stay the same)."""
_LAZY = (ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MAX_STATEMENTS = 60
_OPPOSITES = {ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}
"""Of the others none is sure: a class may define ``==`` alone, so that two objects are equal and unequal."""
_PAIRS = (
    "True False", "In NotIn", "Is IsNot", "IsNone IsNotNone", "IsInstance NotIsInstance",
    "AlmostEqual NotAlmostEqual", "Regex NotRegex",
)  # fmt: skip
_METHODS = {f"assert{a}": f"assert{b}" for pair in _PAIRS for a, b in (pair.split(), pair.split()[::-1])}
_EQUALITIES = re.compile(r"assert(Equals?|(List|Tuple|Dict|Set|Sequence|MultiLine)Equal)$")
_NEAR, _ERROR, _BARE, _OPPOSITE, _UNEQUAL, _MISSPELLED = 40.0, 12.0, 3.0, 3.0, 0.5, 0.01
"""Weights of the kinds: a variant that looks like a test of its own is chosen before one that looks denied."""


class Edit(NamedTuple):
    """A replacement of a part of a text."""

    weight: float
    start: tuple[int, int]
    """Line (from 1) and column in bytes, as in a syntax tree."""
    end: tuple[int, int]
    text: bytes
    until: int = 0
    """Line of the assertion that fails by it, where that is another."""


@dataclass(frozen=True)
class FunctionText:
    """The text of one test function and its tree."""

    lines: tuple[bytes, ...]
    """The function's lines behind ``num_head`` others."""
    node: ast.FunctionDef
    num_head: int

    @classmethod
    def parse(cls, text: str) -> "FunctionText | None":
        """Parse the lines of one function, indented or not; None when they do not parse alone."""
        # A method stands in a block of its own: taking its indentation away would change the texts in it.
        head = "if True:\n" if text[:1].isspace() else ""
        try:
            node = ast.parse(head + text).body[0]
        except (SyntaxError, ValueError, IndexError):
            return None
        node = node.body[0] if isinstance(node, ast.If) else node
        if not isinstance(node, ast.FunctionDef):
            return None
        return cls(tuple((head + text).encode().splitlines(keepends=True)), node, int(bool(head)))

    def part(self, node: ast.expr) -> bytes:
        """Return the text of ``node``."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        if first == last:
            return self.lines[first][node.col_offset : node.end_col_offset]
        ends = (self.lines[first][node.col_offset :], self.lines[last][: node.end_col_offset])
        return ends[0] + b"".join(self.lines[first + 1 : last]) + ends[1]

    def edited(self, edits: Sequence[Edit]) -> str:
        """Return the text with ``edits``, which do not overlap."""
        return b"".join(edited_lines(self.lines, edits)[self.num_head :]).decode()


def edited_lines(lines: Sequence[bytes], edits: Sequence[Edit]) -> list[bytes]:
    """Return ``lines`` with ``edits``, which do not overlap; as many, some empty."""
    new = list(lines)
    for _, (first, start), (last, end), text, _ in sorted(edits, key=lambda edit: edit.start, reverse=True):
        new[first - 1 : last] = [new[first - 1][:start] + text + new[last - 1][end:], *[b""] * (last - first)]
    return new


def wrong_edits(function: FunctionText, values: Sequence[str | bytes], file: str, source: random.Random) -> list[Edit]:
    """Return possible edits of ``function``, each of which makes a passing run fail.

    ``values`` are literals of the text ``file`` that it stands in; plausible wrong ones are chosen from them.
    """
    if len(function.node.body) > _MAX_STATEMENTS:
        return []
    is_strict = not _LOOSE.search(b"".join(function.lines).decode())
    finder = _Finder(function, values, source, is_strict, file)
    edits = list(finder.edits(function.node.body))
    return edits or list(finder.misspelled())


def choose(edits: Sequence[Edit], source: random.Random) -> Edit:
    """Return one of ``edits`` by weight."""
    return source.choices(edits, [edit.weight for edit in edits])[0]


def _over(node: ast.expr | ast.stmt, text: bytes, weight: float) -> Edit:
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return Edit(weight, (node.lineno, node.col_offset), end, text)


@dataclass(frozen=True)
class _Finder:
    """The places of one function that an edit can make wrong."""

    function: FunctionText
    values: Sequence[str | bytes]
    source: random.Random
    is_strict: bool
    """True when equalities compare by value."""
    file: str

    def edits(self, body: Sequence[ast.stmt]) -> Iterator[Edit]:
        for statement in body:
            match statement:
                case ast.Assert(test=test):
                    yield from self._of_condition(test)
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) as call):
                    yield from self._of_method(statement, call, name)
                case ast.With(items=items, body=inner):
                    yield from self._of_with(statement, items, inner)
                case ast.For(iter=ast.List() | ast.Tuple() as values, body=inner) if values.elts:
                    # The first pass reaches the first statement of the body, whatever leaves the loop later.
                    yield from self.edits(inner[:1])

    def misspelled(self) -> Iterator[Edit]:
        """Edit a name or a method of the test case, so that it is not defined: for tests that assert elsewhere."""
        for statement in self.function.node.body:
            first = getattr(statement, "iter", None) or getattr(statement, "test", statement)
            if not isinstance(first, ast.Expr | ast.Assign | ast.expr):
                continue
            for part in _evaluated(first):
                match part:
                    case ast.Name(id=name, ctx=ast.Load()) if name != "self":
                        start = (part.lineno, part.col_offset)
                    case ast.Attribute(attr=name, value=ast.Name(id="self"), ctx=ast.Load()):
                        start = (_end_of(part)[0], _end_of(part)[1] - len(name.encode()))
                    case _:
                        continue
                # Not `assertEquals`, which old versions have.
                other = name.replace("assert", "assure") if name.startswith("assert") else f"{name}s"
                if not re.search(rf"\b{other}\b", self.file) and not hasattr(builtins, other):
                    yield Edit(_MISSPELLED, start, _end_of(part), other.encode())

    # --- statements ---

    def _of_condition(self, test: ast.expr) -> Iterator[Edit]:
        part = self.function.part
        match test:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                if isinstance(op, ast.Eq) and self.is_strict:
                    yield from self._near_sides(left, right)
                sign = _OPPOSITES.get(type(op))
                if sign is None:
                    yield _over(test, b"not (" + part(test) + b")", _UNEQUAL)
                    return
                middle = Edit(_OPPOSITE, _end_of(left), (right.lineno, right.col_offset), f" {sign} ".encode())
                between = self._between(middle)
                # A bracket or a line break between the sides stays where it is.
                if b"\n" not in between and b"(" not in between and b")" not in between:
                    yield middle
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                text = part(operand)
                yield _over(test, b"(" + text + b")" if b"\n" in text else text, _OPPOSITE)
            case ast.BoolOp() | ast.IfExp() | ast.Lambda() | ast.NamedExpr() | ast.Compare():
                yield _over(test, b"not (" + part(test) + b")", _UNEQUAL)
            case _:
                yield _over(test, b"not " + part(test), _OPPOSITE)

    def _between(self, edit: Edit) -> bytes:
        (first, start), (last, end) = edit.start, edit.end
        return self.function.lines[first - 1][start:end] if first == last else b"\n"

    def _of_method(self, statement: ast.stmt, call: ast.Call, name: str) -> Iterator[Edit]:
        if f"def {name}" in self.file:
            return
        if _EQUALITIES.match(name) and len(call.args) > 1 and self.is_strict:
            yield from self._near_sides(call.args[0], call.args[1])
        if name == "assertEqual" and len(call.args) > 1:
            sides = [b"(" + self.function.part(side) + b")" for side in call.args[:2]]
            yield _over(statement, b"self.assertFalse(" + b" == ".join(sides) + b")", _UNEQUAL)
        if name in _METHODS and isinstance(call.func, ast.Attribute):
            weight = _UNEQUAL if "Equal" in name else _OPPOSITE
            end = _end_of(call.func)
            if call.func.lineno == end[0]:
                yield Edit(weight, (end[0], end[1] - len(name)), end, _METHODS[name].encode())
        if name == "assertRaises" and len(call.args) > 1 and not call.keywords and self._is_plain(call.args[0]):
            yield from self._other_exception(call.args[0])
            rest = b", ".join(self.function.part(part) for part in call.args[2:])
            called = self.function.part(call.args[1])
            is_name = isinstance(call.args[1], ast.Name | ast.Attribute)
            yield _over(statement, (called if is_name else b"(" + called + b")") + b"(" + rest + b")", _BARE)

    def _of_with(self, statement: ast.With, items: list[ast.withitem], inner: list[ast.stmt]) -> Iterator[Edit]:
        calls = [item.context_expr for item in items]
        if not any(_SWALLOWS.search(unparsed(call)) for call in calls):
            yield from self.edits(inner)
            return
        match calls:
            case [ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[error, *_])] if name in (
                "raises",
                "assertRaises",
                "assertRaisesRegex",
            ) and self._is_plain(error):
                yield from self._other_exception(error)
                yield from self._unguarded(statement, inner)

    def _unguarded(self, statement: ast.With, inner: list[ast.stmt]) -> Iterator[Edit]:
        """Take the guard away: the body then raises."""
        depth = inner[0].col_offset - statement.col_offset
        # A function begins with its decorators, which may be all that raises.
        first = min(node.lineno for node in (inner[0], *getattr(inner[0], "decorator_list", ())))
        last, end = _end_of(inner[-1])
        lines = self.function.lines[first - 1 : last]
        is_block = first > statement.lineno and inner[0].col_offset > statement.col_offset
        if is_block and all(not line.strip() or not line[: inner[0].col_offset].strip() for line in lines):
            moved = b"".join(line[depth:] if line.strip() else line for line in lines)
            text = moved[statement.col_offset : len(moved) - len(lines[-1]) + end]
            yield Edit(_BARE, (statement.lineno, statement.col_offset), (last, end), text)

    def _is_plain(self, error: ast.expr) -> bool:
        return isinstance(error, ast.Name | ast.Attribute) and not _NO_EXCEPTIONS.search(unparsed(error))

    def _other_exception(self, error: ast.expr) -> Iterator[Edit]:
        own = getattr(builtins, error.id, None) if isinstance(error, ast.Name) else None
        if isinstance(own, type) and own is not Exception:
            others = [name for name in _EXCEPTIONS if not _is_related(own, getattr(builtins, name))]
            yield _over(error, self.source.choice(others).encode(), _ERROR)

    # --- values ---

    def _near_sides(self, left: ast.expr, right: ast.expr) -> Iterator[Edit]:
        for side in (left, right):
            if (edit := self._near(self._assigned(side))) is not None:
                yield edit._replace(until=_end_of(side)[0])

    def _assigned(self, side: ast.expr) -> ast.expr:
        """Return the value of a variable that the test assigns once and reads once, else ``side``."""
        if isinstance(side, ast.Name):
            uses = [part for part in ast.walk(self.function.node) if isinstance(part, ast.Name) and part.id == side.id]
            for statement in self.function.node.body:
                if isinstance(statement, ast.Assign) and uses == [*statement.targets, side]:
                    return statement.value
        return side

    def _near(self, node: ast.expr) -> Edit | None:
        """Return an edit of one constant in ``node`` that changes the value of the whole."""
        parts: list[ast.expr] = []
        match node:
            case ast.Constant():
                text = near_text(self.function.part(node), node.value, self.values, self.source)
                return _over(node, text, _NEAR) if text else None
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                pass
            case ast.Dict(values=values):
                parts = values
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                parts = [operand]
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=arguments) if name in _VALUE_TYPES:
                parts = arguments[:3]
        for part in self.source.sample(parts, len(parts)):
            if (edit := self._near(part)) is not None:
                return edit
        return None


def _evaluated(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of ``node`` that every run of it evaluates."""
    if isinstance(node, ast.expr):
        yield node
    if not isinstance(node, _LAZY):
        for child in ast.iter_child_nodes(node):
            yield from _evaluated(child)


def _end_of(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _is_related(own: type, other: type) -> bool:
    return issubclass(own, other) or issubclass(other, own)


def _is_other(value: object, known: object) -> bool:
    """Return True for another value, as a number too: `Decimal("1.0")` equals `Decimal("1")`."""
    try:
        is_same_number = isinstance(value, str) and isinstance(known, str) and Decimal(value) == Decimal(known)
    except InvalidOperation:
        is_same_number = False
    return value != known and not is_same_number


def near_text(text: bytes, value: object, values: Sequence[str | bytes], source: random.Random) -> bytes | None:
    """Return the text of another literal of the type of ``value``, which is written as ``text``."""
    match value:
        case bool():
            return str(not value).encode()
        case int() if text.isdigit():
            near = {value + 1, value + 2, value + 10, max(value - 1, 0), int(str(value)[::-1])} - {value}
            return str(source.choice(sorted(near))).encode()
        case float() if re.fullmatch(rb"\d+\.\d+", text):
            return _other_character(text, value, source)
        case str() | bytes():
            like = [other for other in values if type(other) is type(value) and _is_other(other, value)]
            if like and (source.random() < _SHARE_OF_THE_FILE or not value):
                return repr(source.choice(like)).encode()
            return _other_character(text, value, source)
    return None


_SHARE_OF_THE_FILE = 0.3
_CLASSES = (b"0123456789", b"aeiou", b"bcdfghklmnprst", b"AEIOU", b"BCDFGHKLMNPRST")


def _other_character(text: bytes, value: object, source: random.Random) -> bytes | None:
    """Change one letter or digit of a literal into another one of its class; None when it has none to change."""
    places = [place for place, byte in enumerate(text) if any(byte in known for known in _CLASSES)]
    for place in source.sample(places, len(places)):
        known = next(known for known in _CLASSES if text[place] in known)
        other = bytes([source.choice([byte for byte in known if byte != text[place]])])
        changed = text[:place] + other + text[place + 1 :]
        try:
            new = ast.literal_eval(changed.decode())
        except (SyntaxError, ValueError):
            continue
        if type(new) is type(value) and _is_other(new, value) and b"\\" not in text[max(place - 4, 0) : place + 1]:
            return changed
    return None
