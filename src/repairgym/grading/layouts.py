"""Layouts: the parts of a test file that canaries use: words of names, places between statements, copyable tests.

Reads the text of a test file; makes a :class:`Layout`, once per text and process, because parsing a large test file
costs more than everything else that a grading does on the host. Guarantee: a layout holds no syntax tree.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from repairgym.diffs.lines import split_lines
from repairgym.grading.exploits.syntax import span_of

_LINE_SENSITIVE = re.compile(r"lineno|getsource|co_first|__line__|tb_|traceback|__file__|read_text|open\(")
_MARKS_ALL = re.compile(r"^pytestmark\b|pytest_generate_tests|^__test__|^load_tests", re.M)
_DEFAULT_WORDS = ("value", "empty", "case")


@dataclass(frozen=True)
class Layout:
    """One test file."""

    words: tuple[str, ...]
    """Of the names of its tests, sorted."""
    end: int
    """Number of its lines."""
    places: tuple[int, ...]
    """Lines before which a canary can stand; the end is always one."""
    is_line_sensitive: bool
    """Its tests may look at line numbers: nothing can stand between them."""
    copyable: Mapping[str, tuple[int, int]]
    """Plain tests (``test_a``, ``TestB::test_c``) -> first line (from 0) and the line behind the last."""


class Insertion(NamedTuple):
    """A test to put into a test file."""

    name: str
    """``test_x`` or ``TestClass::test_x``."""
    place: int
    """The line (from 0) of the pinned file before which it stands."""
    text: str
    """Indented as it stands in the file."""


@lru_cache(maxsize=256)
def layout_of(text: str) -> Layout | None:
    """Return the layout of a test file; None when it can hold no canary."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    if _MARKS_ALL.search(text):
        return None
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    words = sorted({word for name in names for word in name.split("_")[1:] if word})
    end = len(split_lines(text))
    is_line_sensitive = bool(_LINE_SENSITIVE.search(text))
    places = () if is_line_sensitive else tuple(_places(tree))
    copyable = {
        name: span_of(node) for name, node in plain_tests(tree) if "::" not in name or not _names(node, "super")
    }
    return Layout(tuple(words) or _DEFAULT_WORDS, end, (end, *places), is_line_sensitive, copyable)


def function_at(text: str, span: tuple[int, int]) -> ast.FunctionDef | None:
    """Return the tree of the function in the lines ``span`` of ``text``; None when they do not parse alone."""
    first, last = span
    lines = split_lines(text)[first:last]
    # A method stands in a block of its own: taking its indentation away would change the texts in it, or break them.
    head = ["if True:\n"] if lines and lines[0][:1].isspace() else []
    try:
        node = ast.parse("".join(head + lines)).body[0]
    except SyntaxError:
        return None
    node = node.body[0] if isinstance(node, ast.If) else node
    return node if isinstance(node, ast.FunctionDef) else None


def _places(tree: ast.Module) -> Iterator[int]:
    previous_end, has_test = 0, False
    for node in tree.body:
        is_definition = isinstance(node, ast.FunctionDef | ast.ClassDef)
        first, end = span_of(node)
        if has_test and first >= previous_end and is_definition:
            yield first
        has_test = has_test or (is_definition and getattr(node, "name", "").lower().startswith("test"))
        previous_end = end


def plain_tests(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield (``test_a`` or ``TestB::test_c``, node) of tests whose copy runs to its end, twice in one process."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and _is_plain(node):
            yield node.name, node
        elif isinstance(node, ast.ClassDef) and not node.decorator_list:
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and _is_plain(part):
                    yield f"{node.name}::{part.name}", part


def _is_plain(node: ast.FunctionDef) -> bool:
    # A `return` or a `yield` could leave before the false assertion; a decorator could change the outcome.
    # A copy changes state behind the API (`registry._entries`) or in a global for a second time.
    unfit = (ast.Return, ast.Yield, ast.YieldFrom, ast.Global)
    return not node.decorator_list and not any(isinstance(part, unfit) or _is_hidden(part) for part in ast.walk(node))


def _is_hidden(node: ast.AST) -> bool:
    """Return True for a private attribute of another object."""
    if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.endswith("__"):
        return False
    return not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))


def _names(node: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))
