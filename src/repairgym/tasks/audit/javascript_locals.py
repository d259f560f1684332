"""Local variables of a function of JavaScript or TypeScript that can be told from every other name.

Reads a function's syntax tree. Makes the places of variables by their names. Guarantees: a variable is declared once in
the function, each place of its name lies in the scope of the declaration and means it, and it never gives its name to
a function or class.
"""

from collections import defaultdict

from tree_sitter import Node

from repairgym.tasks.javascript.syntax import CLASSES, FUNCTIONS, text_of, walk

_BINDERS = frozenset({
    "formal_parameters", "required_parameter", "optional_parameter", "catch_clause", "rest_pattern", "array_pattern",
    "object_pattern", "pair_pattern", "assignment_pattern", "object_assignment_pattern", "import_specifier",
    "import_clause", "namespace_import", "export_specifier", "nested_identifier", "type_query", "type_predicate",
    "asserts",
})  # fmt: skip
"""Nodes below which a name is bound in another way, or has to stay."""
_BLOCKS = ("statement_block", "for_statement", "for_in_statement", "switch_body", "class_static_block", "class_body")
_SHORT, _SHORT_PATTERN = "shorthand_property_identifier", "shorthand_property_identifier_pattern"


def plain_locals(function: Node) -> dict[str, list[Node]]:
    """Return name -> its places, the declaration first, of the variables that can be renamed.

    A place is an identifier, or a property that is written short (``{ name }``).
    """
    places: dict[str, list[Node]] = defaultdict(list)
    for node in walk(function):
        if node.type in ("identifier", _SHORT, _SHORT_PATTERN):
            places[text_of(node)].append(node)
    return {name: uses for name, uses in places.items() if name != "arguments" and _is_plain(uses)}


def numeric_counters(function: Node) -> dict[str, list[Node]]:
    """Return those of `plain_locals` that hold nothing but numbers: a literal, plus and minus literals."""
    return {name: uses for name, uses in plain_locals(function).items() if all(map(_keeps_number, uses))}


def fresh_name(function: Node, name: str) -> str:
    """Return ``name``, with underscores where the file has that name already."""
    root = function
    while root.parent is not None:
        root = root.parent
    known = {text_of(node) for node in walk(root) if node.type.endswith(("identifier", "identifier_pattern"))}
    while name in known:
        name += "_"
    return name


def value_names_a_function(value: Node) -> bool:
    """Return True for a function or class that takes the name of the variable it is given to."""
    while value.type in ("parenthesized_expression", "as_expression", "satisfies_expression") and value.named_children:
        value = value.named_children[0]
    return value.type in FUNCTIONS or value.type in CLASSES


def _is_plain(uses: list[Node]) -> bool:
    declared = [node for node in uses if _declaration(node) is not None]
    if len(declared) != 1 or any(map(_is_bound_otherwise, uses)):
        return False
    scope = _scope(declared[0])
    is_inside = all(scope.start_byte <= node.start_byte and node.end_byte <= scope.end_byte for node in uses)
    return is_inside and not any(map(_names_a_function, uses))


def _declaration(node: Node) -> Node | None:
    """Return the declarator, or the loop, that declares the variable at ``node``."""
    around = node.parent
    if around is None or node.type != "identifier":
        return None
    if around.type == "variable_declarator":
        return around if around.child_by_field_name("name") == node else None
    is_loop = around.type == "for_in_statement" and around.child_by_field_name("kind") is not None
    return around if is_loop and around.child_by_field_name("left") == node else None


def _scope(node: Node) -> Node:
    """Return the part of the code in which the variable declared at ``node`` is known."""
    declaration = node.parent if node.parent is None or node.parent.type == "for_in_statement" else node.parent.parent
    if declaration is None:
        return node
    kind = declaration.child_by_field_name("kind")
    is_var = declaration.type == "variable_declaration" or (kind is not None and text_of(kind) == "var")
    part = declaration
    while part.parent is not None and not (
        (part.parent.type in FUNCTIONS or part.type == "class_static_block") if is_var else part.type in _BLOCKS
    ):
        part = part.parent
    return part


def _is_bound_otherwise(node: Node) -> bool:
    around = node.parent
    if around is None or node.type == _SHORT_PATTERN or around.type in _BINDERS or around.type.startswith("jsx_"):
        return True
    if around.type == "arrow_function" and around.child_by_field_name("parameter") == node:
        return True
    return around.type != "variable_declarator" and around.child_by_field_name("name") == node


def _names_a_function(node: Node) -> bool:
    around = node.parent
    if around is None:
        return False
    target, name = ("name", "value") if around.type == "variable_declarator" else ("left", "right")
    value = around.child_by_field_name(name)
    is_stored = around.child_by_field_name(target) == node and value is not None
    return is_stored and value is not None and value_names_a_function(value)


def _keeps_number(node: Node) -> bool:
    """Return True where the variable at ``node`` is read, or gets a number literal, or one more or less."""
    around = node.parent
    if around is None or around.type == "for_in_statement":
        return False
    if around.type == "variable_declarator" and around.child_by_field_name("name") == node:
        return _is_number(around.child_by_field_name("value"))
    if around.child_by_field_name("left") != node or not around.type.endswith("assignment_expression"):
        return True
    operator = around.child_by_field_name("operator")
    is_step = operator is None or text_of(operator) in ("+=", "-=")
    return is_step and _is_number(around.child_by_field_name("right"))


def _is_number(node: Node | None) -> bool:
    return node is not None and node.type == "number" and not text_of(node).endswith("n")
