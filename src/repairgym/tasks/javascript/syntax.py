"""Syntax of JavaScript and TypeScript: functions, tests and code of a file, by tree-sitter.

Reads a path, whose suffix names the grammar, and its text. Makes spans of functions, the tests that a file defines, the
file without some of them, and its code without comments. Guarantees: a file with a syntax error raises ``SyntaxError``;
a file without some tests has none of their text, keeps its line numbers, and parses.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from textwrap import dedent

import tree_sitter_javascript
import tree_sitter_typescript
from tree_sitter import Language, Node, Parser

from repairgym.errors import TaskError
from repairgym.sandbox.guest.runners.node_runner import clean

_GRAMMARS = {
    "javascript": (Language(tree_sitter_javascript.language()), (".js", ".cjs", ".mjs", ".jsx")),
    "typescript": (Language(tree_sitter_typescript.language_typescript()), (".ts", ".cts", ".mts")),
    "tsx": (Language(tree_sitter_typescript.language_tsx()), (".tsx",)),
}
_LANGUAGES = {suffix: language for language, suffixes in _GRAMMARS.values() for suffix in suffixes}
FUNCTIONS = frozenset({
    "function_declaration", "function_expression", "arrow_function", "method_definition",
    "generator_function", "generator_function_declaration",
})  # fmt: skip
CLASSES = frozenset({"class", "class_declaration", "abstract_class_declaration"})
_TEST_WORDS = frozenset({"test", "it", "describe", "context", "suite", "specify", "tape", "only", "skip"})
"""Last names of functions that define a test or a group of tests."""


def is_javascript(path: str) -> bool:
    """Return True for a file of JavaScript or TypeScript."""
    return PurePosixPath(path).suffix in _LANGUAGES


@lru_cache(maxsize=64)
def parse(path: str, source: str) -> Node:
    """Return the root of the syntax tree of ``source``; SyntaxError when it has an error."""
    root = Parser(_LANGUAGES[PurePosixPath(path).suffix]).parse(source.encode()).root_node
    if root.has_error:
        raise SyntaxError(f"{path} has a syntax error")
    return root


def walk(node: Node, left_out: frozenset[int] = frozenset()) -> Iterator[Node]:
    """Yield ``node`` and all nodes below it but those (by their ids) ``left_out``, in source order."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(child for child in reversed(current.children) if child.id not in left_out)


def text_of(node: Node) -> str:
    """Return the source text of ``node``."""
    return (node.text or b"").decode()


def code_of(path: str, source: str) -> tuple[str, ...]:
    """Return the words of ``source`` without comments and white space; SyntaxError when it does not parse."""
    return _code_below(parse(path, source), frozenset())


def _code_below(root: Node, left_out: frozenset[int]) -> tuple[str, ...]:
    leaves = (node for node in walk(root, left_out) if not node.child_count)
    return tuple(text_of(node) for node in leaves if node.type not in ("comment", "html_comment"))


# --- functions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedFunction:
    """A function with a name: a declaration, a method, or an expression that is assigned."""

    name: str
    """Names of the functions and classes around it first, joined by dots; without white space."""
    first_line: int
    """Line (from 1) at which the function itself begins."""
    last_line: int


def named_functions(path: str, source: str) -> list[NamedFunction]:
    """Return the functions of ``source``, in source order; SyntaxError when it does not parse."""
    return [function for function, _ in _functions_below(parse(path, source), "")]


def function_at(path: str, source: str, first_line: int) -> Node | None:
    """Return the outermost function with a name that begins on ``first_line``; SyntaxError as `named_functions`."""
    functions = _functions_below(parse(path, source), "")
    return next((node for function, node in functions if function.first_line == first_line), None)


def function_codes(path: str, source: str) -> list[tuple[str, ...]]:
    """Return the words of each of `named_functions`, without those of functions with names inside of it."""
    nodes = [node for _, node in _functions_below(parse(path, source), "")]
    ids = frozenset(node.id for node in nodes)
    return [_code_below(node, ids) for node in nodes]


def _functions_below(node: Node, prefix: str) -> Iterator[tuple[NamedFunction, Node]]:
    for child in node.named_children:
        name = _name_of(child) if child.type in FUNCTIONS or child.type in CLASSES else ""
        if name and child.type in FUNCTIONS:
            yield NamedFunction(prefix + name, child.start_point[0] + 1, child.end_point[0] + 1), child
        yield from _functions_below(child, f"{prefix}{name}." if name else prefix)


def _name_of(node: Node) -> str:
    named = node.child_by_field_name("name")
    if named is None and node.parent is not None:
        fields = {"variable_declarator": "name", "assignment_expression": "left", "pair": "key"}
        named = node.parent.child_by_field_name(fields.get(node.parent.type, "name"))
    text = text_of(named) if named is not None and named.id != node.id else ""
    return text if text and not any(character.isspace() for character in text) and len(text) <= 80 else ""


# --- tests ------------------------------------------------------------------------------------------------------------


def cuttable_tests(path: str, source: str) -> frozenset[str]:
    """Return the names (``title::title``) of the tests that can be cut out of ``source``; none when it is broken."""
    return frozenset(statements_of_tests(path, source))


def test_source(path: str, source: str, name: str) -> str:
    """Return the text of the test ``name`` of ``source``; empty where it is none that can be cut out."""
    tests = statements_of_tests(path, source)
    return text_of(tests[name]) if name in tests else ""


test_source.__test__ = False  # type: ignore[attr-defined]


def without_tests(path: str, source: str, names: Iterable[str]) -> str:
    """Return ``source`` without the tests ``names``; TaskError when one cannot be cut out alone."""
    wanted, tests = sorted(set(names)), statements_of_tests(path, source)
    if missing := [name for name in wanted if name not in tests]:
        raise TaskError(f"tests that {path} does not define by a title of its own: {', '.join(missing)}")
    lines = source.encode().split(b"\n")
    for name in wanted:
        statement = tests[name]
        (first, start), (last, end) = statement.start_point, statement.end_point
        if lines[first][:start].strip() or lines[last][end:].strip():
            raise TaskError(f"the test {name} of {path} shares a line with other code")
        lines[first : last + 1] = [b""] * (last + 1 - first)
    text = b"\n".join(lines).decode()
    try:
        parse(path, text)
    except SyntaxError as error:
        raise TaskError(f"{path} does not parse without its hidden tests") from error
    return text


@lru_cache(maxsize=64)
def statements_of_tests(path: str, source: str) -> dict[str, Node]:
    """Return name (``title::title``) -> statement of each test that can be cut out of ``source``; do not change it."""
    try:
        tests = list(_tests_below(parse(path, source), ""))
    except SyntaxError:
        return {}
    counts = Counter(name for name, _ in tests)
    parents = {name.rpartition("::")[0] for name, _ in tests}
    return {
        name: node
        for name, node in tests
        if counts[name] == 1 and name not in parents and node.type == "expression_statement"
    }


def _tests_below(node: Node, prefix: str) -> Iterator[tuple[str, Node]]:
    """Yield (name, statement) of each call that defines a test with a literal title, outer ones first."""
    for child in node.children:
        written = _title(child) if child.type == "call_expression" else ""
        title = clean(written) if written else ""
        if title:
            statement = child.parent if child.parent is not None else child
            yield prefix + title, statement
        yield from _tests_below(child, f"{prefix}{title}::" if title else prefix)


def written_title(path: str, source: str, name: str) -> str:
    """Return the title of the test ``name`` (``title::title``) as ``source`` has it, its groups first.

    ``name`` itself where a title is no literal; ids of tests hold no brackets, for example.
    """
    try:
        node = parse(path, source)
    except SyntaxError:
        return name
    titles: list[str] = []
    for part in name.split("::"):
        calls = ((call, _title(call)) for call in walk(node) if call.type == "call_expression")
        found = next(((call, title) for call, title in calls if title and clean(title) == part), None)
        node, title = found or (node, part)
        titles.append(title)
    return ": ".join(titles)


def _title(call: Node) -> str:
    """Return the title of a test that ``call`` defines, as written; empty without a test or without a literal."""
    function, arguments = call.child_by_field_name("function"), call.child_by_field_name("arguments")
    if function is None or arguments is None or text_of(function).rpartition(".")[2] not in _TEST_WORDS:
        return ""
    given = arguments.named_children
    if len(given) < 2 or given[0].type not in ("string", "template_string") or given[-1].type not in FUNCTIONS:
        return ""
    if any(part.type in ("template_substitution", "escape_sequence") for part in given[0].children):
        return ""
    return text_of(given[0])[1:-1]


def statement_at(path: str, source: str, line: int) -> str:
    """Return the statement of a test that begins or goes on at ``line`` (from 1): the innermost one; empty without."""
    try:
        nodes, lines = list(walk(parse(path, source))), source.split("\n")
    except SyntaxError:
        return ""
    kinds = ("expression_statement", "lexical_declaration", "variable_declaration", "return_statement")
    around = [n for n in nodes if n.type in kinds and n.start_point[0] < line <= n.end_point[0] + 1]
    if not around:
        return ""
    first = lines[around[-1].start_point[0]]
    return dedent(first[: len(first) - len(first.lstrip())] + text_of(around[-1]))
