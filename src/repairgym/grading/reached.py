"""Scripts that a submission cannot have changed: they run none of the functions in which it differs from gold.

Reads the graded files and the functions that ran in each script on gold; names scripts. Guarantees: nothing is named
where more than bodies of functions differ, so in a named script the same code runs as on gold. What a differing
function could do to other scripts of its process is bounded by its words: it uses no name, attribute or keyword that
neither gold nor the broken code has there, and stores nowhere else.
"""

import ast
from collections.abc import Mapping
from itertools import zip_longest

from repairgym.diffs.lines import source_lines
from repairgym.grading.exploits.syntax import FunctionNode, Unit, nodes_of, units
from repairgym.records import Task
from repairgym.tasks.build.validation import graded_files
from repairgym.tasks.replay.oracle import Oracle

_Files = Mapping[str, str | None]
_NUM_HEAD_LINES = 2
"""Lines of a file that can name its encoding."""


def unreached(oracle: Oracle, task: Task, sources: _Files) -> frozenset[str]:
    """Return the ids of those scripts of `pass_to_pass` that answer on ``sources`` as on gold."""
    differing = differing_functions(graded_files(task, task.gold_files), graded_files(task), sources)
    if differing is None:
        return frozenset()
    return frozenset(name for name, executed in oracle.executed.items() if executed.isdisjoint(differing))


def differing_functions(gold: _Files, broken: _Files, own: _Files) -> frozenset[str] | None:
    """Return the functions (``path::first_line`` in ``gold``) with another body in ``own``; None: more than that."""
    functions: set[str] = set()
    for path in gold.keys() | own.keys():
        text, other = gold.get(path), own.get(path)
        if path not in gold or path not in own or not path.endswith(".py") or text is None or other is None:
            if path not in gold or text != own.get(path, ""):
                return None
            continue
        lines = _differing(text, broken.get(path) or "", other)
        if lines is None:
            return None
        functions |= {f"{path}::{line}" for line in lines}
    return frozenset(functions)


def _differing(gold: str, broken: str, own: str) -> set[int] | None:
    """Return the first lines in ``gold`` of the functions with another body; None where more differs."""
    if gold == own:
        return set()
    if source_lines(gold)[:_NUM_HEAD_LINES] != source_lines(own)[:_NUM_HEAD_LINES] or not units(own):
        return None
    before = {(unit.prefix, getattr(unit.node, "name", "")): unit.node for unit in units(broken)}
    lines: set[int] = set()
    for unit, other in zip_longest(units(gold), units(own)):
        if unit is None or other is None or unit.prefix != other.prefix:
            return None
        if unit.text == other.text:
            continue
        node = unit.node
        if not isinstance(node, FunctionNode) or not _is_other_body(unit, other):
            return None
        known = [node, *filter(None, [before.get((unit.prefix, node.name))])]
        if not _words(other.node) <= frozenset().union(*map(_words, known)):
            return None
        lines.add(min([node.lineno, *(mark.lineno for mark in node.decorator_list)]))
    return lines


def _is_other_body(unit: Unit, other: Unit) -> bool:
    """Return True when two functions differ in nothing but the statements after the docstring."""
    return _head(unit.node) == _head(other.node) != ""


def _head(node: ast.stmt) -> str:
    if not isinstance(node, FunctionNode):
        return ""
    parts = {name: getattr(node, name) for name in node._fields}
    is_generator = any(isinstance(part, ast.Yield | ast.YieldFrom) for part in nodes_of(node))
    return f"{is_generator} {ast.get_docstring(node, clean=False)!r} {ast.dump(type(node)(**{**parts, 'body': []}))}"


def _words(node: ast.stmt) -> frozenset[str]:
    """Return the names that ``node`` uses but for those of its own variables, and the places where it stores."""
    words, own, shared = set[str](), set[str](), set[str]()
    for part in nodes_of(node):
        match part:
            case ast.Name(name, ast.Load()):
                words.add(name)
            case ast.Name(name):
                own.add(name)
            case ast.Global(names) | ast.Nonlocal(names):
                shared |= {*names}
            case ast.alias(name):
                words.add(f"import {name}")
            case ast.keyword(str(name)):
                words.add(f"{name}=")
            case ast.Attribute(_, name, context) if isinstance(context, ast.Load):
                words.add(f".{name}")
            case ast.Attribute() | ast.Subscript() if not isinstance(part.ctx, ast.Load):
                words.add(ast.dump(part))
    return frozenset((words - (own - shared)) | {f"global {name}" for name in shared})
