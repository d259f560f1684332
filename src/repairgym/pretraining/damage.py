"""Free damage to corpus functions: what is missing, swapped or stripped, beyond the operators of the mutations.

Reads `CorpusFunction` records; makes the lines of a broken function. The kinds are those of small real fixes: a
statement, a guard, an argument, an operand, a conversion or a method call that was forgotten, arguments or statements
in the wrong order. Invariant: a damaged function parses, and differs.
"""

import ast
import random
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from repairgym.pretraining.corpus import CorpusFunction

NUM_TRIES = 6
MAX_LOST_LINES = 3


@dataclass(frozen=True)
class _Damage:
    """Characters [start, end) of line ``line`` (from 1) that become ``new``; whole lines where ``num_lines`` is set."""

    line: int
    start: int = 0
    end: int = 0
    new: str = ""
    num_lines: int = 0
    """Lines that are lost, or change places with as many below (`is_swap`)."""
    is_swap: bool = False


def damaged(function: CorpusFunction, generator: random.Random) -> tuple[str, ...] | None:
    """Return the lines of ``function`` with one damage; None where none was found."""
    lines = function.lines
    tree = _parsed(lines)
    if tree is None or not all(line.isascii() for line in lines):
        return None
    indent = len(lines[0]) - len(lines[0].lstrip())
    for _ in range(NUM_TRIES):
        damages = list(generator.choice(_KINDS)(tree, lines, indent))
        if not damages:
            continue
        broken = _apply(lines, generator.choice(damages))
        if broken != lines and _parsed(broken) is not None:
            return broken
    return None


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes outside annotations, whose damage no test can see."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns"):
                values = value if isinstance(value, list) else [value]
                waiting += [child for child in values if isinstance(child, ast.AST)]


def _parsed(lines: Sequence[str]) -> ast.Module | None:
    try:
        return ast.parse(textwrap.dedent("\n".join(lines)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _apply(lines: tuple[str, ...], damage: _Damage) -> tuple[str, ...]:
    at = damage.line - 1
    if damage.is_swap:
        middle = at + damage.num_lines
        return (*lines[:at], *lines[middle : middle + 1], *lines[at:middle], *lines[middle + 1 :])
    if damage.num_lines:
        return (*lines[:at], *lines[at + damage.num_lines :])
    line = lines[at]
    return (*lines[:at], line[: damage.start] + damage.new + line[damage.end :], *lines[at + 1 :])


def _statements(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of statements below the function's head."""
    for node in _nodes(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and not isinstance(node, ast.Module):
                yield block


def _num_lines(statement: ast.stmt) -> int:
    return (statement.end_lineno or statement.lineno) - statement.lineno + 1


def _lost_statements(tree: ast.Module, lines: Sequence[str], indent: int) -> Iterator[_Damage]:
    for block in _statements(tree):
        for statement in block if len(block) > 1 else ():
            if _num_lines(statement) <= MAX_LOST_LINES and not isinstance(statement, ast.FunctionDef):
                yield _Damage(statement.lineno, num_lines=_num_lines(statement))


def _swapped_statements(tree: ast.Module, lines: Sequence[str], indent: int) -> Iterator[_Damage]:
    for block in _statements(tree):
        for upper, lower in pairwise(block):
            if _num_lines(upper) == _num_lines(lower) == 1 and lower.lineno == upper.lineno + 1:
                yield _Damage(upper.lineno, num_lines=1, is_swap=True)


def _span(node: ast.expr, indent: int) -> tuple[int, int, int] | None:
    """(line, start, end) of an expression on one line."""
    if node.end_lineno != node.lineno or node.end_col_offset is None:
        return None
    return node.lineno, node.col_offset + indent, node.end_col_offset + indent


def _text(node: ast.expr, lines: Sequence[str], indent: int) -> str:
    span = _span(node, indent)
    return lines[span[0] - 1][span[1] : span[2]] if span else ""


def _becomes(node: ast.expr, new: str, indent: int) -> Iterator[_Damage]:
    span = _span(node, indent)
    if span and new:
        yield _Damage(*span, new)


def _lost_arguments(tree: ast.Module, lines: Sequence[str], indent: int) -> Iterator[_Damage]:
    for node in _nodes(tree):
        if isinstance(node, ast.Call) and len(node.args) + len(node.keywords) > 1 and _span(node, indent):
            texts = [_text(argument, lines, indent) for argument in node.args]
            named = ((keyword.arg, _text(keyword.value, lines, indent)) for keyword in node.keywords)
            texts += [f"{name}={value}" if name and value else "" for name, value in named]
            name = _text(node.func, lines, indent)
            for lost in range(len(texts)) if all(texts) else ():
                yield from _becomes(node, f"{name}({', '.join(texts[:lost] + texts[lost + 1 :])})", indent)
            if len(node.args) > 1 and all(texts):
                swapped = [texts[1], texts[0], *texts[2:]]
                yield from _becomes(node, f"{name}({', '.join(swapped)})", indent)


def _lost_operands(tree: ast.Module, lines: Sequence[str], indent: int) -> Iterator[_Damage]:
    for node in _nodes(tree):
        if isinstance(node, ast.BoolOp) and len(node.values) == 2:
            for value in node.values:
                yield from _becomes(node, _text(value, lines, indent), indent)
        elif isinstance(node, ast.IfExp):
            yield from _becomes(node, _text(node.body, lines, indent), indent)
        elif isinstance(node, ast.BinOp):
            yield from _becomes(node, _text(node.left, lines, indent), indent)


def _lost_calls(tree: ast.Module, lines: Sequence[str], indent: int) -> Iterator[_Damage]:
    for node in _nodes(tree):
        if not isinstance(node, ast.Call) or node.keywords:
            continue
        if isinstance(node.func, ast.Attribute) and len(node.args) <= 1:
            yield from _becomes(node, _text(node.func.value, lines, indent), indent)
        elif len(node.args) == 1:
            yield from _becomes(node, _text(node.args[0], lines, indent), indent)


def _other_expressions(tree: ast.Module, lines: Sequence[str], indent: int) -> Iterator[_Damage]:
    """Yield an attribute or a subscript that was forgotten, and attributes that stand for one another."""
    nodes = [node for node in _nodes(tree) if isinstance(node, ast.Attribute | ast.Subscript)]
    names = sorted({node.attr for node in nodes if isinstance(node, ast.Attribute)})
    for node in nodes:
        value = _text(node.value, lines, indent)
        yield from _becomes(node, value, indent)
        if isinstance(node, ast.Attribute):
            for name in names:
                yield from _becomes(node, f"{value}.{name}" if value else "", indent)


_KINDS: tuple[Callable[[ast.Module, Sequence[str], int], Iterator[_Damage]], ...] = (
    _lost_statements,
    _lost_statements,
    _swapped_statements,
    _lost_arguments,
    _lost_operands,
    _lost_calls,
    _other_expressions,
)
"""Lost statements twice: what is missing is the most frequent small fix."""
