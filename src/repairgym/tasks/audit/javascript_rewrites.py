"""Behaviour-preserving rewrites of functions of JavaScript and TypeScript, as `rewrites` makes them of Python's.

Reads a path, its text and the place of a function. Makes the text with that function rewritten. Guarantees: each
rewrite keeps the behaviour by construction: which calls, in which order, with which values, is the same, and so are
names, lengths and ``this`` of functions. Where that is not sure there is no rewrite: in files with ``eval`` or
``with``, for variables that name a function, where a line break may end a statement. Line numbers, names of locals
(which node may tell in the text of an error) and the frame of an extracted expression change.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

from tree_sitter import Node

from repairgym.tasks.audit.javascript_locals import fresh_name, numeric_counters, plain_locals, value_names_a_function
from repairgym.tasks.audit.rewrites import draw_rewrites
from repairgym.tasks.javascript.syntax import CLASSES, FUNCTIONS, function_at, parse, text_of, walk

Edit = tuple[int, int, str]
"""First byte, byte behind the last one, and the text that takes their place."""
_ENDINGS = ("return_statement", "throw_statement", "continue_statement", "break_statement")
_PLAIN = ("string", "number", "true", "false", "null", "undefined")
_NAMES = (*_PLAIN, "identifier", "this")
_EQUALITIES = ("===", "!==", "==", "!=")
_POSITIVE = {"!==": "===", "!=": "=="}
_DUALS = {"&&": "||", "||": "&&"}
_CALLS = ("call_expression", "new_expression", "await_expression", "yield_expression", "import", *FUNCTIONS, *CLASSES)
_SIMPLE = ("identifier", "member_expression", "subscript_expression", "call_expression", "this")


def rewrite_function(path: str, source: str, first_line: int, kinds: tuple[str, ...]) -> str | None:
    """Return ``source`` with the function that begins on ``first_line`` rewritten in every one of ``kinds``.

    None when one of them finds nothing to rewrite, or the file does not parse.
    """
    for kind in kinds:
        try:
            function = function_at(path, source, first_line)
            if function is None or _is_unsure(parse(path, source)):
                return None
            source, before = _with_edits(source, _edits(path, function, kind)), source
            parse(path, source)
        except SyntaxError:
            return None
        if source == before:
            return None
    return source


def choose_rewrites(path: str, source: str, first_line: int, num: int, seed: str) -> Iterator[tuple[str, str]]:
    """Yield at most ``num`` (kinds, source): single rewrites in random order, the last one with several of them."""
    kinds = [kind for kind in REWRITES if rewrite_function(path, source, first_line, (kind,))]
    yield from draw_rewrites(kinds, partial(rewrite_function, path, source, first_line), num, seed)


def _edits(path: str, function: Node, kind: str) -> list[Edit]:
    is_typed = path.endswith(("ts", "tsx"))
    return [] if is_typed and kind in _UNTYPED else list(REWRITES[kind](function))


def _with_edits(source: str, edits: list[Edit]) -> str:
    """Return ``source`` with ``edits``; of two that overlap the outer one counts."""
    text, end, parts = source.encode(), 0, list[bytes]()
    for first, last, new in sorted(edits, key=lambda edit: (edit[0], -edit[1])):
        if first >= end:
            parts += [text[end:first], new.encode()]
            end = last
    return b"".join([*parts, text[end:]]).decode()


def _is_unsure(root: Node) -> bool:
    """Return True for a file with code that can see names of variables, or that is read in another way than by node.

    Of ``i++`` and ``(x)`` on two lines the syntax tree makes a call, which node does not.
    """
    for node in walk(root):
        called = node.child_by_field_name("function") or node.child_by_field_name("object")
        if called is not None and called.type in ("update_expression", "arrow_function"):
            return True
        if node.type == "with_statement" or (node.type == "identifier" and node.text == b"eval"):
            return True
    return False


# --- parts of a function ---------------------------------------------------------------------------------------------


def _nodes(function: Node, *types: str) -> Iterator[Node]:
    return (node for node in walk(function) if node.type in types and node.is_named)


def _field(node: Node, name: str) -> Node:
    child = node.child_by_field_name(name)
    if child is None:
        raise SyntaxError(f"{node.type} without {name}")
    return child


def _whole(node: Node, new: str) -> Edit:
    return node.start_byte, node.end_byte, new


def _statements(block: Node) -> list[Node]:
    return [child for child in block.named_children if child.type != "comment"]


def _between(node: Node, first: int, last: int) -> str:
    """Return the text of bytes ``first`` to ``last`` of the file, which lie in ``node``."""
    return (node.text or b"")[first - node.start_byte : last - node.start_byte].decode()


def _is_block(node: Node | None) -> bool:
    """Return True for a block in braces that declares nothing of its own."""
    return node is not None and node.type == "statement_block" and not any(map(_declares, node.named_children))


def _declares(statement: Node) -> bool:
    """Return True for a declaration whose scope is the block that it is in."""
    kind = statement.type
    return kind != "variable_declaration" and kind.endswith(("_declaration", "_signature", "module"))


def _other(node: Node) -> Node | None:
    """Return what follows the ``else`` of an ``if``."""
    clause = node.child_by_field_name("alternative")
    return _statements(clause)[-1] if clause is not None else None


def _leaves(node: Node | None) -> bool:
    """Return True for a block that ends by leaving the block that it is in."""
    statements = _statements(node) if node is not None and node.type == "statement_block" else []
    return bool(statements) and statements[-1].type in _ENDINGS


def _needs_line_break(node: Node) -> bool:
    """Return True for an expression that nothing can continue, so that a line break behind it ends a statement."""
    return text_of(node).endswith(("++", "--", "}"))


def _indent(node: Node) -> str:
    """Return the white space before the line on which ``node`` starts."""
    block = node.parent
    while block is not None and block.parent is not None:
        block = block.parent
    line = (block.text if block is not None and block.text else b"").split(b"\n")[node.start_point[0]].decode()
    return line[: len(line) - len(line.lstrip())]


def _returned(node: Node) -> Node | None:
    """Return the value of a ``return`` that is a statement of a block; None for a plain name and for a function.

    A function without a name would take that of its variable.
    """
    value = _statements(node)[0] if _statements(node) else None
    if node.parent is None or node.parent.type != "statement_block" or value is None or value.type in _NAMES:
        return None
    return None if value_names_a_function(value) else value


# --- rewrites: each yields the edits of the places that it found -----------------------------------------------------


def _rename_locals(function: Node) -> Iterator[Edit]:
    """Give plain local variables other names."""
    for name, places in plain_locals(function).items():
        new = fresh_name(function, f"{name}_value")
        for place in places:
            is_short = place.type == "shorthand_property_identifier"
            yield _whole(place, f"{name}: {new}" if is_short else new)


def _swap_branches(function: Node) -> Iterator[Edit]:
    """``if (a) { x } else { y }`` as ``if (!(a)) { y } else { x }``."""
    for node in _nodes(function, "if_statement"):
        body, other = _field(node, "consequence"), _other(node)
        if other is None or other.type not in ("statement_block", "if_statement") or body.type != "statement_block":
            continue
        if any(_nodes(node, "function_declaration")):
            continue  # which sloppy code lifts out of its block
        block = text_of(other) if other.type == "statement_block" else f"{{ {text_of(other)}\n}}"
        yield _whole(node, f"if (!{text_of(_field(node, 'condition'))}) {block} else {text_of(body)}")


def _swap_ternary(function: Node) -> Iterator[Edit]:
    """``a ? x : y`` as ``!(a) ? y : x``."""
    for node in _nodes(function, "ternary_expression"):
        if not _needs_line_break(_field(node, "alternative")):
            test, left, right = (text_of(_field(node, name)) for name in ("condition", "consequence", "alternative"))
            yield _whole(node, f"!({test}) ? {right} : {left}")


def _de_morgan(function: Node) -> Iterator[Edit]:
    """``if (a && b)`` as ``if (!(!(a) || !(b)))``: only its truth counts there."""
    for node in _nodes(function, "if_statement", "while_statement"):
        condition = _field(node, "condition")
        inner = _statements(condition)[0]
        operator = inner.child_by_field_name("operator")
        if inner.type == "binary_expression" and operator is not None and operator.type in _DUALS:
            left, right = (text_of(_field(inner, name)) for name in ("left", "right"))
            yield _whole(condition, f"(!(!({left}) {_DUALS[operator.type]} !({right})))")


def _negate_outside(function: Node) -> Iterator[Edit]:
    """``a !== b`` as ``!(a === b)``."""
    for node in _nodes(function, "binary_expression"):
        operator = _field(node, "operator").type
        if operator in _POSITIVE and not _needs_line_break(_field(node, "right")):
            left, right = (text_of(_field(node, name)) for name in ("left", "right"))
            yield _whole(node, f"!({left} {_POSITIVE[operator]} {right})")


def _swap_sides(function: Node) -> Iterator[Edit]:
    """``a === "x"`` as ``"x" === a``, where one side is a literal."""
    for node in _nodes(function, "binary_expression"):
        left, right, operator = (_field(node, name) for name in ("left", "right", "operator"))
        if operator.type in _EQUALITIES and right.type in _PLAIN and left.type not in _PLAIN:
            text = text_of(left) if left.type in _SIMPLE else f"({text_of(left)})"
            yield _whole(node, f"{text_of(right)} {operator.type} {text}")


def _name_result(function: Node) -> Iterator[Edit]:
    """``return x`` as a constant and ``return``; one of a block."""
    blocks, name = set[int](), fresh_name(function, "result")
    for node in _nodes(function, "return_statement"):
        value, block = _returned(node), node.parent
        if value is not None and block is not None and block.id not in blocks:
            blocks.add(block.id)
            text = f"({text_of(value)})" if value.type == "sequence_expression" else text_of(value)
            yield _whole(node, f"const {name} = {text};\n{_indent(node)}return {name};")


def _extract_expression(function: Node) -> Iterator[Edit]:
    """Move a returned expression without calls into a function inside."""
    blocks, name = set[int](), fresh_name(function, "compute")
    for node in _nodes(function, "return_statement"):
        value, block = _returned(node), node.parent
        if value is None or block is None or block.id in blocks or any(_nodes(value, *_CALLS)):
            continue
        blocks.add(block.id)
        yield _whole(node, f"const {name} = () => ({text_of(value)});\n{_indent(node)}return {name}();")


def _branch_for_ternary(function: Node) -> Iterator[Edit]:
    """``return a ? x : y`` as branches."""
    for node in _nodes(function, "return_statement"):
        value = _returned(node)
        if value is not None and value.type == "ternary_expression":
            test, left, right = (text_of(_field(value, name)) for name in ("condition", "consequence", "alternative"))
            yield _whole(node, f"if ({test}) {{ return {left}; }} else {{ return {right}; }}")


def _else_after_return(function: Node) -> Iterator[Edit]:
    """Move what follows a branch that leaves the block into its ``else``."""
    for block in _nodes(function, "statement_block"):
        statements = _statements(block)
        for place, node in enumerate(statements[:-1]):
            is_ending = node.type == "if_statement" and _other(node) is None and _leaves(_field(node, "consequence"))
            if is_ending and not any(map(_declares, statements[place + 1 :])):
                first, last = node.end_byte, statements[-1].end_byte
                yield node.start_byte, last, f"{text_of(node)} else {{{_between(block, first, last)}\n}}"
                break


def _no_else_after_return(function: Node) -> Iterator[Edit]:
    """Move the ``else`` of a branch that leaves the block behind it."""
    for node in _nodes(function, "if_statement"):
        body, other = _field(node, "consequence"), _other(node)
        is_inside = node.parent is not None and node.parent.type == "statement_block"
        if not is_inside or other is None or not _leaves(body):
            continue
        before = _between(node, node.start_byte, body.end_byte)
        if other.type == "if_statement":
            yield _whole(node, f"{before}\n{text_of(other)}")
        elif _is_block(other) and (inner := _statements(other)):
            end = inner[-1].end_byte
            stop = "" if text_of(inner[-1]).endswith(";") else ";"  # what follows may continue the statement
            start, rest = _between(other, other.start_byte + 1, end), _between(other, end, other.end_byte - 1)
            yield _whole(node, f"{before}\n{start}{stop}{rest}")


def _arrow_block(function: Node) -> Iterator[Edit]:
    """``x => y`` as ``x => { return y; }``."""
    for node in _nodes(function, "arrow_function"):
        body = _field(node, "body")
        if body.type != "statement_block":
            head = _between(node, node.start_byte, body.start_byte)
            yield _whole(node, f"{head}{{ return {text_of(body)}; }}")


def _reorder_declarations(function: Node) -> Iterator[Edit]:
    """Exchange two neighbouring declarations of different variables with literals as their values."""
    for block in _nodes(function, "statement_block"):
        children = block.named_children
        for first, second in pairwise(children):
            names, texts = [*map(_literal_name, (first, second))], [text_of(first), text_of(second)]
            is_alike = texts[0].endswith(";") == texts[1].endswith(";")
            if all(names) and names[0] != names[1] and is_alike:
                gap = _between(block, first.end_byte, second.start_byte)
                yield first.start_byte, second.end_byte, f"{texts[1]}{gap}{texts[0]}"
                break


def _literal_name(statement: Node) -> str:
    """Return the name that a declaration gives to a literal; empty for any other statement."""
    if statement.type not in ("lexical_declaration", "variable_declaration"):
        return ""
    declarators = [child for child in statement.named_children if child.type == "variable_declarator"]
    value = declarators[0].child_by_field_name("value") if len(declarators) == 1 else None
    if value is None or statement.named_child_count != 1:
        return ""
    is_plain = value.type in _PLAIN or (value.type in ("array", "object") and not value.named_child_count)
    name = _field(declarators[0], "name")
    return text_of(name) if is_plain and name.type == "identifier" else ""


def _plain_counter(function: Node) -> Iterator[Edit]:
    """``i++`` as ``i += 1`` where ``i`` is never anything but a number and the value of the expression is not used."""
    for places in numeric_counters(function).values():
        for node in (place.parent for place in places):
            if node is not None and node.type == "update_expression" and node.parent is not None:
                is_statement = node.parent.type == "expression_statement" and text_of(node.parent).endswith(";")
                if is_statement or node.parent.child_by_field_name("increment") == node:
                    sign = text_of(_field(node, "operator"))[0]
                    yield _whole(node, f"{text_of(_field(node, 'argument'))} {sign}= 1")


REWRITES: dict[str, Callable[[Node], Iterator[Edit]]] = {
    "rename_locals": _rename_locals,
    "swap_branches": _swap_branches,
    "swap_ternary": _swap_ternary,
    "de_morgan": _de_morgan,
    "negate_outside": _negate_outside,
    "swap_sides": _swap_sides,
    "name_result": _name_result,
    "extract_expression": _extract_expression,
    "branch_for_ternary": _branch_for_ternary,
    "else_after_return": _else_after_return,
    "no_else_after_return": _no_else_after_return,
    "arrow_block": _arrow_block,
    "reorder_declarations": _reorder_declarations,
    "plain_counter": _plain_counter,
}
"""Name -> rewrite; each yields edits of a function, none where it finds no place."""
_UNTYPED = ("name_result", "extract_expression")
"""Not in TypeScript: a value takes another type in a variable or a function, and a transformer may check types."""
