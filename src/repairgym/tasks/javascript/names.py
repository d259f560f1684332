"""Names of JavaScript code: what a file offers to its callers, and what it uses and lacks.

Reads a path and its text. Makes names. Guarantees: a name that the repaired code has and the broken code lacks is found
by the syntax tree alone; a file that does not parse, or none at all, offers and lacks nothing.
"""

import re
from collections.abc import Callable, Iterator

from tree_sitter import Node

from repairgym.tasks.javascript.syntax import parse, text_of, walk

_WORD = re.compile(r"[\w$]+")
_OPTIONS = frozenset({"opt", "opts", "option", "options", "config", "settings"})
"""Variables that hold the options of a call."""
_GLOBALS = frozenset({
    "arguments", "atob", "btoa", "clearImmediate", "clearInterval", "clearTimeout", "console", "crypto", "decodeURI",
    "decodeURIComponent", "define", "document", "encodeURI", "encodeURIComponent", "escape", "eval", "exports", "fetch",
    "global", "globalThis", "isFinite", "isNaN", "location", "module", "navigator", "parseFloat", "parseInt",
    "performance", "process", "queueMicrotask", "require", "self", "setImmediate", "setInterval", "setTimeout",
    "structuredClone", "undefined", "unescape", "window",
})  # fmt: skip
"""Names that programs have without a definition, those with a capital left out."""
_BOUND_FIELDS = {
    "variable_declarator": "name", "assignment_expression": "left", "for_in_statement": "left",
    "catch_clause": "parameter", "arrow_function": "parameter", "import_statement": "",
}  # fmt: skip
_BINDING = frozenset({"formal_parameters", "import_clause"})


def _of_parsed(find: Callable[[Node], Iterator[str]], path: str, source: str | None) -> frozenset[str]:
    try:
        return frozenset(find(parse(path, source))) if source is not None else frozenset()
    except SyntaxError:
        return frozenset()


def new_names(path: str, broken: str | None, gold: str | None) -> frozenset[str]:
    """Return what callers can name in ``gold`` only: exported and public properties, options, texts of a ``switch``."""
    labels = _of_parsed(_labels, path, gold) - _of_parsed(_labels, path, broken)
    return labels | (_of_parsed(_offered, path, gold) - frozenset(_WORD.findall(broken or "")))


def exported_names(path: str, source: str | None) -> frozenset[str]:
    """Return the keys of the object that a module of CommonJS exports."""
    return _of_parsed(_exported, path, source)


def lacked_names(path: str, broken: str | None, gold: str | None) -> frozenset[str]:
    """Return names that ``broken`` uses and defines nowhere, or keys that an object of its own has in ``gold`` only."""
    bound, defined = _of_parsed(_bound, path, broken), _of_parsed(_bound, path, gold)
    lacked = _of_parsed(_used, path, broken) - bound - _of_parsed(_used_without_definition, path, gold)
    names = {name for name in lacked if "." not in name and (name in defined or _is_plain(name))}
    return frozenset(names | {name for name in lacked & defined if "." in name})


def _is_plain(name: str) -> bool:
    return name not in _GLOBALS and name[:1].islower()


def _used_without_definition(root: Node) -> Iterator[str]:
    """Yield what even the repaired code does not define, such as names of the platform."""
    yield from frozenset(_used(root)) - frozenset(_bound(root))


# --- what a file offers -----------------------------------------------------------------------------------------------


def _offered(root: Node) -> Iterator[str]:
    yield from _exported(root)
    for node in walk(root):
        if node.type == "member_expression":
            holder, name = _parts(node)
            if holder in _OPTIONS or holder == "exports" or holder.endswith((".exports", ".prototype")):
                yield name
        elif node.type == "method_definition":
            yield text_of(node.child_by_field_name("name") or node)
        elif node.type == "variable_declarator":
            yield from _option_keys(node)


def _labels(root: Node) -> Iterator[str]:
    for node in walk(root):
        value = node.child_by_field_name("value") if node.type == "switch_case" else None
        if value is not None and value.type == "string":
            yield text_of(value)[1:-1]


def _option_keys(node: Node) -> Iterator[str]:
    """Yield the keys that a declaration takes out of options, or that it gives to them."""
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name is None or value is None:
        return
    if name.type == "object_pattern" and text_of(value) in _OPTIONS:
        yield from _keys(name)
    if value.type == "object" and text_of(name) in _OPTIONS:
        yield from _keys(value)


def _exported(root: Node) -> Iterator[str]:
    for node in walk(root):
        if node.type == "assignment_expression" and text_of(node).startswith("module.exports"):
            value = node.child_by_field_name("right")
            if value is not None and value.type == "object":
                yield from _keys(value)


def _keys(node: Node) -> Iterator[str]:
    for child in node.named_children:
        key = child.child_by_field_name("key") or child.child_by_field_name("left") or child
        if key.type in (
            "property_identifier",
            "shorthand_property_identifier",
            "shorthand_property_identifier_pattern",
        ):
            yield text_of(key)


def _parts(node: Node) -> tuple[str, str]:
    """Return the object and the property of a member expression."""
    holder, name = node.child_by_field_name("object"), node.child_by_field_name("property")
    return (text_of(holder) if holder else "", text_of(name) if name else "")


# --- what a file uses and defines -------------------------------------------------------------------------------------


def _used(root: Node) -> Iterator[str]:
    """Yield the names in ``root``, and the keys of objects as ``object.key``."""
    for node in walk(root):
        if node.type in ("identifier", "shorthand_property_identifier"):
            yield text_of(node)
        elif node.type == "member_expression":
            holder, name = _parts(node)
            yield f"{holder}.{name}"


def _bound(root: Node) -> Iterator[str]:
    """Yield the names that ``root`` defines, and the keys of its own objects as ``object.key``."""
    for node in walk(root):
        if node.type in _BINDING or node.type in ("import_specifier", "namespace_import"):
            yield from _identifiers(node)
        elif node.type in _BOUND_FIELDS:
            field = node.child_by_field_name(_BOUND_FIELDS[node.type])
            yield from _identifiers(field) if field is not None else ()
            value = node.child_by_field_name("value")
            if field is not None and value is not None and value.type == "object":
                yield from (f"{text_of(field)}.{key}" for key in _keys(value))
            if field is not None and field.type == "member_expression":
                yield text_of(field)
        elif (name := node.child_by_field_name("name")) is not None and name.type == "identifier":
            yield text_of(name)


def _identifiers(node: Node) -> Iterator[str]:
    kinds = ("identifier", "shorthand_property_identifier_pattern")
    return (text_of(child) for child in walk(node) if child.type in kinds)
