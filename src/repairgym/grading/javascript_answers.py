"""Wrong variants of tests of JavaScript: the same test with one answer that an honest repair does not give.

Reads the function of a test (tree-sitter) and the framework that runs it; makes edits, of each of which it is sure that
a run in which the test passed fails: another value near the expected one, or the opposite of an assertion. Guarantees:
only statements that every run of the test reaches are edited, and none whose failure something around it could swallow;
in tape, where an exception would end the process of all tests, an edit makes an assertion fail and never throws.
"""

import random
import re
from collections.abc import Iterator, Sequence

from tree_sitter import Node

from repairgym.grading.wrong_answers import Edit, near_text
from repairgym.tasks.javascript.syntax import text_of

_VALUES, _FLIPPED, _OPPOSITE, _UNEQUAL = 40.0, 12.0, 3.0, 0.5
"""Weights of the kinds: a variant that looks like a test of its own is chosen before one that looks denied."""
_EQUALITY = re.compile(
    r"(strict|deep|deepStrict|loose|deepLoose|is)?Equals?|is|same|eq|isEquivalent|isDeeply|toBe|toEqual|toStrictEqual|"
    r"eql|exactly|toHaveLength|lengthOf",
    re.I,
)
_PAIRS = (
    "throws doesNotThrow", "rejects doesNotReject", "match doesNotMatch", "equal notEqual", "equals notEquals",
    "is isNot", "same notSame", "strictEqual notStrictEqual", "deepEqual notDeepEqual",
    "deepStrictEqual notDeepStrictEqual",
)  # fmt: skip
_OPPOSITES = {a: b for pair in _PAIRS for a, b in (pair.split(), pair.split()[::-1])}
_OF_TAPE = {"ok": "notOk", "notOk": "ok", "true": "notOk", "false": "ok"}
_ASSERTING_MODULE = re.compile(r"""(require\(|\bfrom\s)\s*['"](node:)?(assert|assert/strict|chai)['"]""")
_CHAIN = re.compile(r"to|should|not|have|with|deep|nested|own|be|been|is|an?|and|resolves|rejects")
_FAILS = re.compile(r"(\w+\.)?(assert\.)?fail\(")
_STRINGS = ("string", "template_string")
_ABSENT = ("null", "undefined")


def wrong_edits(function: Node, file: str, framework: str, values: Sequence[str], chance: random.Random) -> list[Edit]:
    """Return possible edits of the test ``function`` of the text ``file``, each of which makes a passing run fail.

    ``values`` are short texts of the file; plausible wrong ones are chosen from them.
    """
    finder = _Finder(file, framework, _parameter(function), values, chance)
    return [edit for statement in statements_of(function) for edit in finder.edits(statement)]


def statements_of(function: Node) -> list[Node]:
    """Return the statements of a function's body; of ``() => value`` the value."""
    body = function.child_by_field_name("body")
    if body is None:
        return []
    return (
        [node for node in body.named_children if node.type != "comment"] if body.type == "statement_block" else [body]
    )


def _parameter(function: Node) -> str:
    single, many = function.child_by_field_name("parameter"), function.child_by_field_name("parameters")
    named = many.named_children[:1] if many is not None else [single] if single is not None else []
    return text_of(named[0]).partition(":")[0].strip() if named else ""


class _Finder:
    """The assertions of one test that an edit can make wrong."""

    def __init__(self, file: str, framework: str, parameter: str, values: Sequence[str], chance: random.Random) -> None:
        modules = {match.group(3) for match in _ASSERTING_MODULE.finditer(file)}
        self._is_tape = framework == "tape"
        own = {parameter} if self._is_tape else {f"{parameter}.assert"} if framework == "node_test" else set()
        self._roots = own - {"", ".assert"} | ({"assert", "chai.assert"} if modules and not self._is_tape else set())
        self._has_expect = not self._is_tape and ("chai" in modules or framework in ("vitest", "jest"))
        self._values = values
        self._source = chance

    def edits(self, statement: Node) -> Iterator[Edit]:
        if statement.type == "try_statement":
            for caught in _reached_handler(statement):
                yield from self.edits(caught)
            return
        node = statement.named_children[0] if statement.type == "expression_statement" else statement
        is_awaited = node.type == "await_expression"
        node = node.named_children[0] if is_awaited else node
        until = statement.end_point[0] + 1
        function = node.child_by_field_name("function") if node.type == "call_expression" else None
        if function is None:
            edits = self._of_chain(node, [], is_awaited) if node.type == "member_expression" else iter(())
        else:
            arguments = node.child_by_field_name("arguments")
            given = [part for part in arguments.named_children if part.type != "comment"] if arguments else []
            root, name = _method(function)
            if root in self._roots or (not root and name in self._roots):
                edits = self._of_method(function, name if root else "ok", given, is_awaited)
            else:
                edits = self._of_chain(function, given, is_awaited)
        yield from (edit._replace(until=until) for edit in edits)

    def _of_method(self, function: Node, name: str, given: list[Node], is_awaited: bool) -> Iterator[Edit]:
        """Edit ``assert.name(...)``, or the assertion of the test's own parameter."""
        if _EQUALITY.fullmatch(name) and len(given) > 1:
            yield from self._near_sides(given[:2])
        opposite = (_OF_TAPE if self._is_tape else {}).get(name) or _OPPOSITES.get(name)
        place = _name_node(function)
        is_asynchronous = name in ("rejects", "doesNotReject")
        if opposite is not None and place is not None and given and is_asynchronous <= is_awaited:
            yield _over(place, opposite, _UNEQUAL if _EQUALITY.fullmatch(name) else _OPPOSITE)
        elif name == "ok" and given and not self._is_tape:
            yield from _denied(given[0])
        if name in ("ok", "true") and given and _operator(given[0]) in ("==", "==="):
            yield from self._near_sides(given[0].named_children)

    def _of_chain(self, chain: Node, given: list[Node], is_awaited: bool) -> Iterator[Edit]:
        """Edit ``expect(a).to.equal(b)``, ``expect(a).toBe(b)``, ``a.should.equal(b)`` or ``expect(a).to.be.true``."""
        last, links = _name_node(chain), _links(chain)
        if last is None or not self._has_expect or not (links[:1] == ["expect()"] or "should" in links):
            return
        is_asynchronous = not {"resolves", "rejects"}.isdisjoint(links)
        if "not" in links or is_asynchronous > is_awaited or not all(_CHAIN.fullmatch(link) for link in links[1:-1]):
            return
        name, is_called = text_of(last), bool(chain.parent and chain.parent.type == "call_expression")
        if _EQUALITY.fullmatch(name) and len(given) == 1:
            yield from self._near_sides(given)
        if name == "property" and len(given) > 1:
            yield from self._near_sides(given[1:])
        if name in ("true", "false") and not is_called:
            yield _over(last, "false" if name == "true" else "true", _FLIPPED)
        elif not is_asynchronous and (is_called or name in ("null", "undefined", "ok", "empty")):
            yield _at(last, "not.", _UNEQUAL)

    # --- values ---

    def _near_sides(self, sides: Sequence[Node]) -> Iterator[Edit]:
        for side in sides:
            if (edit := self._near(side)) is not None:
                yield edit

    def _near(self, node: Node) -> Edit | None:
        """Return an edit of one literal in ``node`` that changes the value of the whole."""
        text = text_of(node)
        if node.type in ("true", "false"):
            return _over(node, "false" if text == "true" else "true", _FLIPPED)
        if node.type in _ABSENT:  # which equal each other where a comparison is loose
            return _over(node, self._source.choice(("false", "0", "1")), _FLIPPED)
        if node.type == "number" or node.type in _STRINGS:
            changed = self._near_literal(node, text)
            return _over(node, changed, _VALUES) if changed else None
        if node.type == "array" and not node.named_children:
            return _over(node, f"[{self._source.choice(('0', '1', 'null', 'true'))}]", _FLIPPED)
        parts = _parts(node)
        for part in self._source.sample(parts, len(parts)):
            if (edit := self._near(part)) is not None:
                return edit
        return None

    def _near_literal(self, node: Node, text: str) -> str | None:
        if node.type == "number":
            if not re.fullmatch(r"0|[1-9]\d{0,14}|\d{1,8}\.\d{1,6}", text):
                return None
            changed = near_text(text.encode(), int(text) if text.isdigit() else float(text), (), self._source)
            return changed.decode() if changed else None
        mark, own = text[0], text[1:-1]
        if any(mark_ in own for mark_ in "\"'`\n\\") or "${" in own:
            return None
        changed = near_text(f'"{own}"'.encode(), own, self._values, self._source)
        return f"{mark}{changed.decode()[1:-1]}{mark}" if changed else None


def _reached_handler(statement: Node) -> list[Node]:
    """Return what a ``try`` does with an exception, where a run without one fails: its body ends with ``fail``."""
    body, handler = statement.child_by_field_name("body"), statement.child_by_field_name("handler")
    last = body.named_children[-1:] if body is not None else []
    if handler is None or statement.child_by_field_name("finalizer") is not None:
        return []
    return statements_of(handler) if last and _FAILS.match(text_of(last[0])) else []


def _method(function: Node) -> tuple[str, str]:
    """Return the object and the name of a called function; no object for a bare name."""
    if function.type == "identifier":
        return "", text_of(function)
    owner, name = function.child_by_field_name("object"), _name_node(function)
    return (text_of(owner), text_of(name)) if owner is not None and name is not None else ("?", "")


def _name_node(function: Node) -> Node | None:
    """Return the part of ``a.name`` or ``a['name']`` that holds the name."""
    if function.type == "member_expression":
        return function.child_by_field_name("property")
    index = function.child_by_field_name("index") if function.type == "subscript_expression" else None
    is_text = index is not None and index.type == "string" and len(index.named_children) == 1
    return index.named_children[0] if index is not None and is_text else None


def _links(chain: Node) -> list[str]:
    """Return the names of a chain; its first link is a name, or a name and brackets for a call."""
    names: list[str] = []
    while chain.type == "member_expression":
        owner, name = chain.child_by_field_name("object"), chain.child_by_field_name("property")
        if owner is None or name is None:
            break
        names.insert(0, text_of(name))
        chain = owner
    function = chain.child_by_field_name("function") if chain.type == "call_expression" else None
    return [f"{text_of(function)}()" if function is not None else text_of(chain)[:20], *names]


def _parts(node: Node) -> list[Node]:
    """Return the values within an array, an object, brackets or a sign, where each decides the value of the whole."""
    if node.type == "parenthesized_expression" or (node.type == "unary_expression" and text_of(node)[0] == "-"):
        return [part for part in node.named_children if text_of(part) != "0"]
    if node.type == "array":
        return [part for part in node.named_children if part.type != "spread_element"]
    if node.type != "object":
        return []
    pairs = [part for part in node.named_children if part.type != "comment"]
    keys = [part if part.type.startswith("shorthand") else part.child_by_field_name("key") for part in pairs]
    names = [text_of(key).strip("'\"") for key in keys if key is not None and key.type != "computed_property_name"]
    if len({*names, "__proto__"}) != len(pairs) + 1:  # one that is given twice, spread or computed may be another's
        return []
    return [value for part in pairs if (value := part.child_by_field_name("value")) is not None]


def _operator(node: Node) -> str:
    operator = node.child_by_field_name("operator") if node.type == "binary_expression" else None
    return text_of(operator) if operator is not None else ""


def _denied(node: Node) -> Iterator[Edit]:
    """Yield the edit that turns the truth of ``node`` over."""
    if node.type == "unary_expression" and text_of(node).startswith("!"):
        yield _over(node, text_of(node.named_children[0]), _OPPOSITE)
    elif node.type in ("identifier", "call_expression", "member_expression", "parenthesized_expression"):
        yield _at(node, "!", _OPPOSITE)
    else:
        yield _over(node, f"!({text_of(node)})", _UNEQUAL)


def _over(node: Node, text: str, weight: float) -> Edit:
    (first, start), (last, end) = node.start_point, node.end_point
    return Edit(weight, (first + 1, start), (last + 1, end), text.encode())


def _at(node: Node, text: str, weight: float) -> Edit:
    place = (node.start_point[0] + 1, node.start_point[1])
    return Edit(weight, place, place, text.encode())
