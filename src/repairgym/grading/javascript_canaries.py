"""The canaries of a test file of JavaScript or TypeScript: copies of its tests under other titles.

A :class:`Script` is made once per text and process. A copy is the text of a test, a statement of its own with a literal
title, with a wrong answer (:mod:`.javascript_answers`) or cut, between the tests that its own stands between: behind
what is declared before that. Tests that may leave something behind for others are not copied.
"""

import random
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tree_sitter import Node

from repairgym.diffs.lines import split_lines
from repairgym.grading.canary_files import CanaryFile, Span
from repairgym.grading.copies import SHARE_OF_CUTS, Insertion, fresh_name, words_beside
from repairgym.grading.javascript_answers import statements_of, wrong_edits
from repairgym.grading.wrong_answers import Edit, choose, edited_lines
from repairgym.records import Task, TestOutcome
from repairgym.sandbox.guest.runners.node_runner import clean
from repairgym.tasks.javascript.syntax import FUNCTIONS, parse, statements_of_tests, text_of, walk

_LEAVES_SOMETHING = re.compile(
    r"process\.(on|once|off|emit|exit|env|chdir|std|abort|remove)|emitWarning|listen\(|createServer|child_process|spawn|"
    r"fork\(|worker_threads|Snapshot|\.(skip|todo|only)\b|mock|useFakeTimers|sinon|stackTraceLimit|require\.cache|\bset(Timeout|"
    r"Interval)|\bglobal(This)?\b|\bfs\.|writeFile|__dirname|\.stack\b"
)
"""Words of tests whose copy might change what other tests see, keep the process alive, or know where it stands."""
_CHANGING_METHOD = re.compile(
    r"add|append|clear|delete|del|enable|disable|extend|install|uninstall|insert|pop|push|register|remove|reset|set|"
    r"shift|unshift|sort|splice|update|use|on|once|emit|defineProperty|assign"
)
_CLEANS = re.compile(r"\.(close|destroy|restore|stop|remove\w*|off|end\w+)\(|\bdone\b")
_ENDS = re.compile(r"\w+\.end\(\);?")
_PLANS = re.compile(r"\.plan\(")
_TITLE = re.compile(r"[^'\"`\\$\n\r\[\]]{1,120}")
_MAX_VALUE_CHARS = 60
_DECLARING = {
    "variable_declarator": "name", "function_declaration": "name", "class_declaration": "name",
    "generator_function_declaration": "name", "catch_clause": "parameter", "arrow_function": "parameter",
    "for_in_statement": "left", "function_expression": "name",
}  # fmt: skip


class ScriptTest(NamedTuple):
    """A test whose copy runs to its end, twice in one process."""

    span: Span
    title: Node
    function: Node
    places: tuple[int, ...]
    """Lines before which a copy can stand."""


@dataclass(frozen=True)
class Script:
    """One test file; it reads as `copies.NamedTests`."""

    text: str
    names: tuple[str, ...]
    """Titles of its tests that a copy could have, without those of the suites around them, sorted."""
    other_words: tuple[str, ...]
    plain: Mapping[str, ScriptTest]
    """``title::title`` -> the test."""
    values: tuple[str, ...]
    """Its short texts without quotes and escapes."""

    def is_name(self, text: str) -> bool:
        """Return True for a title that needs no escapes and stands in ids as it is."""
        return bool(_TITLE.fullmatch(text)) and clean(text) == text

    def longer(self, name: str, word: str) -> str:
        """Return ``name`` with one more word."""
        return f"{name} {word}"


@lru_cache(maxsize=128)
def javascript_layout(path: str, text: str) -> Script | None:
    """Return the layout of a test file; None when it can hold no canary."""
    statements = statements_of_tests(path, text)
    lines = split_lines(text)
    plain = {name: test for name, node in statements.items() if (test := _plain_test(node, statements, lines))}
    if not plain:
        return None
    titles = {text_of(_call_of(node)[1])[1:-1] for node in statements.values()}
    names = tuple(sorted(title for title in titles if _TITLE.fullmatch(title)))
    strings = (text_of(node)[1:-1] for node in walk(parse(path, text)) if node.type == "string")
    values = tuple(
        sorted({value for value in strings if 0 < len(value) < _MAX_VALUE_CHARS and _TITLE.fullmatch(value)})
    )
    return Script(text, names, words_beside(text, names), plain, values)


def _call_of(statement: Node) -> tuple[Node, ...]:
    """Return what is called in the statement of a test, its title, its options and its function."""
    call = statement.named_children[0]
    function, arguments = call.child_by_field_name("function"), call.child_by_field_name("arguments")
    assert function is not None
    assert arguments is not None  # a call with a title
    return function, *(part for part in arguments.named_children if part.type != "comment")


def _plain_test(statement: Node, statements: Mapping[str, Node], lines: list[str]) -> ScriptTest | None:
    called, title, *options, function = _call_of(statement)
    first, last = statement.start_point[0], statement.end_point[0]
    is_alone = not lines[first].encode()[: statement.start_point[1]].strip()
    is_alone = is_alone and lines[last].encode()[statement.end_point[1] :].strip() in (b"", b";")
    is_fit = not options and is_alone and not _LEAVES_SOMETHING.search(text_of(statement)) and title.type == "string"
    if not is_fit or "generator" in function.type or _is_in_plan(statement) or _may_differ(function):
        return None
    if text_of(called).rpartition(".")[2] in ("only", "skip"):
        return None
    own = {node.id for node in statements.values()}
    return ScriptTest((first, last + 1), title, function, tuple(_places(statement, own, lines)))


def _is_in_plan(statement: Node) -> bool:
    """Return True when a test around ``statement`` counts its parts."""
    node = statement.parent
    while node is not None:
        children = node.named_children if node.type == "statement_block" else []
        if any(child.type == "expression_statement" and _PLANS.search(text_of(child)[:40]) for child in children):
            return True
        node = node.parent
    return False


def _places(statement: Node, tests: Set[int], lines: list[str]) -> Iterator[int]:
    """Yield the lines between tests next to ``statement`` where a copy can stand."""
    siblings = [
        node for node in (statement.parent.named_children if statement.parent else []) if node.type != "comment"
    ]
    index = next(number for number, node in enumerate(siblings) if node.id == statement.id)
    declared = [number for number, node in enumerate(siblings[:index]) if node.id not in tests]
    for node in siblings[declared[-1] + 1 if declared else 0 :]:
        if node.id not in tests:
            break
        yield node.start_point[0]
        last = node.end_point[0]
        if not lines[last].encode()[node.end_point[1] :].strip(b"; \t\r\n"):
            yield last + 1


def _may_differ(function: Node) -> bool:
    """Return True for a test that may leave early, or changes something from outside of it."""
    body = function.child_by_field_name("body")
    if body is None or any(node.type in ("return_statement", "yield_expression") for node in _own(body)):
        return True
    nodes = list(walk(function))
    local = {"this", *(name for node in nodes for name in _declared(node))}
    return any(_changes(node, local) for node in nodes)


def _own(node: Node) -> Iterator[Node]:
    """Yield the nodes of ``node`` that run with it, not those of functions in it."""
    yield node
    for child in node.named_children:
        if child.type not in FUNCTIONS:
            yield from _own(child)


def _declared(node: Node) -> Iterator[str]:
    if node.type == "formal_parameters":
        targets: list[Node | None] = list(node.named_children)
    else:
        targets = [node.child_by_field_name(_DECLARING[node.type])] if node.type in _DECLARING else []
    for target in targets:
        for part in walk(target) if target is not None else ():
            if part.type in ("identifier", "shorthand_property_identifier_pattern"):
                yield text_of(part)


def _changes(node: Node, local: Set[str]) -> bool:
    """Return True for a change of an object that ``local`` does not name."""
    if node.type in ("assignment_expression", "augmented_assignment_expression"):
        return not _is_of(node.child_by_field_name("left"), local)
    if node.type == "update_expression" or (node.type == "unary_expression" and text_of(node).startswith("delete")):
        return not _is_of(node.child_by_field_name("argument"), local)
    call = node.named_children[0] if node.type == "expression_statement" and node.named_children else None
    function = call.child_by_field_name("function") if call is not None and call.type == "call_expression" else None
    if call is None or function is None or function.type != "member_expression":
        return False
    name, arguments = function.child_by_field_name("property"), call.child_by_field_name("arguments")
    if name is None or not _CHANGING_METHOD.fullmatch(text_of(name)) or _is_of(function, local):
        return False
    first = arguments.named_children[0] if arguments is not None and arguments.named_children else None
    return first is None or not (first.type in ("object", "array", "new_expression") or _is_of(first, local))


def _is_of(node: Node | None, local: Set[str]) -> bool:
    """Return True for a part of an object that a name of ``local`` holds."""
    while node is not None and node.type in ("member_expression", "subscript_expression", "call_expression"):
        node = node.child_by_field_name("object") or node.child_by_field_name("function")
    return node is not None and (node.type in ("this", "array_pattern", "object_pattern") or text_of(node) in local)


class JavaScriptFile(CanaryFile):
    """A test file of JavaScript or TypeScript.

    None of its canaries ends in an error: in tape that would end the process of all tests.
    """

    def __init__(self, task: Task, path: str, script: Script, taken: set[str], chance: random.Random) -> None:
        """Prepare ``path``; no copy takes a title of ``taken``."""
        lines = split_lines(script.text)
        super().__init__(task, path, script.plain, lines, chance)
        self._script = script
        self._taken = taken
        self._framework = task.runner.type
        self._encoded = [line.encode() for line in lines]
        # A test that decides fails where one of its parts does.
        deciding = {*task.fail_to_pass, *task.pass_to_pass}
        self._is_part = {name for name in script.plain if f"{path}::{name.rpartition('::')[0]}" in deciding}
        self._others = [name for name in self._others if name not in self._is_part]

    def _changed(self, name: str, kind: TestOutcome) -> tuple[Span, str] | None:
        edits = self._edits(name, is_wrong=True) if kind is TestOutcome.FAILED else None
        return (self._script.plain[name].span, self._edited(name, edits)) if edits else None

    def _copy(self, name: str, is_wrong: bool) -> tuple[str, Insertion] | None:
        test = self._script.plain[name]
        edits = self._edits(name, is_wrong)
        if edits is None or not test.places or name in self._is_part:
            return None
        own = fresh_name(self._script, self._taken, self._source)
        (first, start), (last, end) = test.title.start_point, test.title.end_point
        title = Edit(1.0, (first + 1, start + 1), (last + 1, end - 1), own.encode())
        suite = name.rpartition("::")[0]
        qualified = f"{suite}::{own}" if suite else own
        return qualified, Insertion(qualified, self._source.choice(test.places), self._edited(name, [*edits, title]))

    def _gap(self, name: str) -> str:
        return "\n"

    def _edited(self, name: str, edits: list[Edit]) -> str:
        return b"".join(edited_lines(self._encoded, edits)[slice(*self._script.plain[name].span)]).decode()

    def _edits(self, name: str, is_wrong: bool) -> list[Edit] | None:
        """Return the edits that make a copy of ``name`` wrong, or cut it; None when there is nothing to make wrong."""
        function = self._script.plain[name].function
        if not is_wrong:
            return self._cut(function, 0)
        edits = wrong_edits(function, self._script.text, self._framework, self._script.values, self._source)
        if not edits:
            return None
        edit = choose(edits, self._source)
        return [edit, *self._cut(function, edit.until)]

    def _cut(self, function: Node, first: int) -> list[Edit]:
        """Return the edit that ends a copy early, often but not always, behind line ``first`` and an assertion."""
        statements = statements_of(function)
        is_ended = bool(statements) and bool(_ENDS.fullmatch(text_of(statements[-1])))
        rest = statements[:-1] if is_ended else statements
        kept = [number for number, node in enumerate(rest) if node.end_point[0] + 1 >= first and _asserts(node)]
        if not kept or _PLANS.search(text_of(function)) or self._source.random() >= SHARE_OF_CUTS:
            return []
        if self._framework == "tape" and not is_ended:
            return []
        cut = rest[self._source.choice(kept) + 1 :]
        if not cut or any(node.type != "expression_statement" or _CLEANS.search(text_of(node)) for node in cut):
            return []
        before, behind = rest[len(rest) - len(cut) - 1].end_point, cut[-1].end_point
        return [Edit(1.0, (before[0] + 1, before[1]), (behind[0] + 1, behind[1]), b"")]


def _asserts(statement: Node) -> bool:
    return statement.type == "expression_statement" and bool(re.search(r"assert|expect|\w\.\w+\(", text_of(statement)))
