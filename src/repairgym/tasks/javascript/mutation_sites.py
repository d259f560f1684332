"""Mutation sites of JavaScript and TypeScript, in the families of :mod:`repairgym.tasks.mutation.operators`.

Reads a path and its text. Makes `Site` objects: an operator, a keyword, a small number or a name of a method that can
be mistaken. Guarantees: every alternative parses, and touches one line only.
"""

from collections.abc import Iterator

from tree_sitter import Node

from repairgym.tasks.javascript.syntax import parse, text_of, walk
from repairgym.tasks.mutation.operators import MAX_CONSTANT, Site

_OPERATORS = {
    "comparison": ("<", "<=", ">", ">=", "===", "!=="),
    "equality": ("==", "!="),
    "arithmetic": ("+", "-", "*", "/", "%"),
    "assignment": ("+=", "-=", "*=", "/="),
    "boolean": ("&&", "||"),
    "bitwise": ("&", "|", "^", "<<", ">>", ">>>"),
}
_FAMILY_NAMES = {"equality": "comparison", "assignment": "arithmetic"}
_WORD_GROUPS = (
    ("indexOf", "lastIndexOf"), ("push", "unshift"), ("pop", "shift"), ("some", "every"), ("min", "max"),
    ("floor", "ceil", "round"), ("startsWith", "endsWith"), ("toLowerCase", "toUpperCase"), ("keys", "values"),
    ("trimStart", "trimEnd"), ("slice", "substr"), ("find", "findIndex"), ("getOwnPropertyNames", "keys"),
)  # fmt: skip
_WORDS = {word: tuple(other for other in group if other != word) for group in _WORD_GROUPS for word in group}
_TEXTS = ("string", "template_string")


def find_sites(path: str, source: str) -> list[Site]:
    """Return all sites of a file that parses, by line and column; SyntaxError when it does not parse."""
    lines = source.split("\n")
    sites = {(site.line, site.column): site for node in walk(parse(path, source)) for site in _sites(node, lines)}
    return [sites[place] for place in sorted(sites)]


def _site(operator: str, node: Node, lines: list[str], alternatives: tuple[str, ...]) -> Site:
    return Site(operator, *_place(node, lines), text_of(node), alternatives)


def _place(node: Node, lines: list[str]) -> tuple[int, int]:
    """Return line (from 1) and column (from 0, in characters) of the start of ``node``."""
    row, num_bytes = node.start_point
    return row + 1, len(lines[row].encode()[:num_bytes].decode(errors="ignore"))


def _sites(node: Node, lines: list[str]) -> Iterator[Site]:
    if node.type in ("binary_expression", "augmented_assignment_expression"):
        yield from _operator_site(node, lines)
    elif node.type in ("if_statement", "while_statement"):
        yield from _negation_site(node, lines)
    elif node.type == "number":
        yield from _number_site(node, lines)
    elif node.type in ("true", "false") and not node.child_count:
        yield _site("constant", node, lines, ("false",) if node.type == "true" else ("true",))
    elif node.type in ("break_statement", "continue_statement") and text_of(node).rstrip(";") in ("break", "continue"):
        yield from _loop_site(node, lines)
    elif node.type == "call_expression":
        yield from _name_site(node, lines)


def _operator_site(node: Node, lines: list[str]) -> Iterator[Site]:
    operator, left, right = (node.child_by_field_name(name) for name in ("operator", "left", "right"))
    if operator is None or left is None or right is None:
        return
    is_text = any(side.type in _TEXTS for side in (left, right))
    for family, members in _OPERATORS.items():
        text = text_of(operator)
        if text in members and not (is_text and family in ("arithmetic", "assignment")):
            others = tuple(other for other in members if other != text)
            yield _site(_FAMILY_NAMES.get(family, family), operator, lines, others)


def _negation_site(node: Node, lines: list[str]) -> Iterator[Site]:
    condition = node.child_by_field_name("condition")
    inner = condition.named_children[0] if condition is not None and condition.named_children else None
    if condition is None or inner is None or condition.start_point[0] != inner.start_point[0]:
        return
    line, column = _place(condition, lines)
    if inner.type == "unary_expression" and text_of(inner).startswith("!") and text_of(condition).startswith("(!"):
        yield Site("negation", line, column, "(!", ("(",))
    elif inner.type in ("identifier", "call_expression", "member_expression"):
        yield Site("negation", line, column, "(", ("(!",))


def _number_site(node: Node, lines: list[str]) -> Iterator[Site]:
    text = text_of(node)
    if text.isdigit() and (text == "0" or text[0] != "0") and int(text) <= MAX_CONSTANT:
        near = (int(text) - 1, int(text) + 1)
        yield _site("constant", node, lines, tuple(str(value) for value in near if value >= 0))


def _loop_site(node: Node, lines: list[str]) -> Iterator[Site]:
    parents: list[str] = []
    parent = node.parent
    while parent is not None and len(parents) < 12:
        parents.append(parent.type)
        parent = parent.parent
    loops = ("for_statement", "for_in_statement", "while_statement", "do_statement")
    places = [place for place, kind in enumerate(parents) if kind in loops]
    if places and "switch_statement" not in parents[: places[0]]:
        word = text_of(node).rstrip(";")
        yield Site("loop", *_place(node, lines), word, ("continue",) if word == "break" else ("break",))


def _name_site(node: Node, lines: list[str]) -> Iterator[Site]:
    function = node.child_by_field_name("function")
    name = function.child_by_field_name("property") if function is not None else None
    if name is not None and text_of(name) in _WORDS:
        yield _site("name", name, lines, _WORDS[text_of(name)])
