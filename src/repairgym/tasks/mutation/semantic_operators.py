"""Mutation operators that change what code means: a lost branch, a wrong key, a lost copy, an order swapped.

Reads a module's source. Makes `Site` objects, some of several whole lines. They are the bugs that people leave behind
when they forget or confuse something, so that a repair often has to write what is not there. A build uses them with
``mutations.has_semantic_operators``. Guarantees: every alternative parses and leaves no line that gives it away, such
as ``pass``; no two sites of one family begin at one place; the sites of a module depend on its source only.
"""

import ast
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from functools import cached_property, lru_cache
from itertools import pairwise

from repairgym.tasks.mutation.free_operators import FunctionNode, find_free_sites
from repairgym.tasks.mutation.operators import Site, SourceTokens, is_text

SHARED_FAMILIES = frozenset({"swapped_arguments", "wrong_variable", "exception_type"})
"""Families of `free_operators` that change the meaning, too."""
SEMANTIC_FAMILIES = frozenset({
    "lost_branch", "lost_call", "lost_update", "lost_copy", "lost_condition", "lost_argument", "lost_exception",
    "early_return", "swapped_statements", "swapped_parameters", "wrong_key", "wrong_field", "wrong_default",
    "off_boundary",
})  # fmt: skip
"""Families of this module."""
MAX_CONFUSED = 2
"""Other keys, fields or defaults to try for one."""
_COPIES = frozenset({"copy", "deepcopy", "dict", "frozenset", "list", "set", "sorted", "tuple"})
_KEY = re.compile(r"[\w.-]+")
_Leaving = ast.Return | ast.Raise | ast.Continue | ast.Break
_Simple = ast.Expr | ast.Assign | ast.AugAssign


def find_semantic_sites(source: str, has_shared: bool = True) -> list[Site]:
    """Return all semantic sites of a module that parses, by line, column and family.

    With ``has_shared`` those of `SHARED_FAMILIES` are among them.
    """
    module = _Module(source)
    sites: dict[tuple[int, int, str], Site] = {}
    for node in ast.walk(module.tree):
        if id(node) not in module.inside_texts:
            for site in (site for find in _FINDERS for site in find(node, module)):
                sites.setdefault((site.line, site.column, site.operator), site)
    shared = [site for site in find_free_sites(source) if site.operator in SHARED_FAMILIES] if has_shared else []
    return sorted([*sites.values(), *shared], key=lambda site: (site.line, site.column, site.operator))


class _Module:
    """A parsed module with places of its text."""

    def __init__(self, source: str) -> None:
        self.source, self.tree, self.tokens = source, ast.parse(source), SourceTokens(source)
        self.lines = self.tokens.lines
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        texts = (node for node in ast.walk(self.tree) if isinstance(node, ast.JoinedStr))
        self.inside_texts = {id(part) for text in texts for part in ast.walk(text)}

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Texts that index something, each once."""
        nodes = (_key_of(node) for node in ast.walk(self.tree))
        return tuple(dict.fromkeys(str(key.value) for key in nodes if key))

    @cached_property
    def text_defaults(self) -> tuple[str, ...]:
        """Source of the texts that are defaults of parameters, each once."""
        functions = (node for node in ast.walk(self.tree) if isinstance(node, FunctionNode))
        texts = (default for node in functions for default in _defaults(node) if isinstance(default.value, str))
        return tuple(dict.fromkeys(self.text(default) for default in texts))

    def start(self, node: ast.AST) -> int:
        """Offset of the first character of ``node``."""
        line, column = self.tokens.position(getattr(node, "lineno", 1), getattr(node, "col_offset", 0))
        return self.starts[line - 1] + column

    def end(self, node: ast.AST) -> int:
        """Offset behind ``node``."""
        line, column = self.tokens.position(getattr(node, "end_lineno", 1), getattr(node, "end_col_offset", 0))
        return self.starts[line - 1] + column

    def text(self, node: ast.AST) -> str:
        """Return the source of ``node``."""
        return self.source[self.start(node) : self.end(node)]

    def replaced(self, operator: str, first: int, last: int, *news: str) -> Iterator[Site]:
        """Yield the site that replaces the characters ``first``..``last`` (exclusive) of one line or whole lines."""
        old = self.source[first:last]
        line = bisect_right(self.starts, first)
        is_whole = first == self.starts[line - 1] and old.endswith("\n")
        others = tuple(dict.fromkeys(new for new in news if new != old))
        if others and (is_whole or "\n" not in old):
            yield Site(operator, line, first - self.starts[line - 1], old, others)

    def replaced_lines(self, operator: str, first_line: int, last_line: int, new: str = "") -> Iterator[Site]:
        """Yield the site that replaces whole lines."""
        yield from self.replaced(operator, self.starts[first_line - 1], self.starts[last_line], new)

    def replaced_node(self, operator: str, node: ast.AST, *news: str) -> Iterator[Site]:
        """Yield the site that replaces ``node``."""
        yield from self.replaced(operator, self.start(node), self.end(node), *news)

    def has_own_lines(self, *stmts: ast.stmt) -> bool:
        """Return True when nothing but comments shares the lines of ``stmts``, which end in a line break."""
        for stmt in stmts:
            first, end = self.start(stmt), self.end(stmt)
            before = self.source[self.starts[stmt.lineno - 1] : first]
            after = self.source[end : self.starts[stmt.end_lineno or stmt.lineno]]
            if before.strip() or not after.endswith("\n") or not (not after.strip() or after.lstrip().startswith("#")):
                return False
        return True


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of statements of ``node``, without docstrings."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield [stmt for stmt in block if not is_text(stmt)]


def _is_elif(node: ast.AST, module: _Module) -> bool:
    return isinstance(node, ast.If) and module.source.startswith("elif", module.start(node))


# --- something was lost --------------------------------------------------------------------------------------------


def _lost_branches(node: ast.AST, module: _Module) -> Iterator[Site]:
    """Remove an ``else``, an ``elif`` or a guard that leaves the block."""
    for block in _blocks(node):
        for stmt in block if len(block) > 1 else ():
            is_guard = isinstance(stmt, ast.If) and not stmt.orelse and isinstance(stmt.body[-1], _Leaving)
            if is_guard and module.has_own_lines(stmt):
                yield from module.replaced_lines("lost_branch", stmt.lineno, stmt.end_lineno or stmt.lineno)
    if not isinstance(node, ast.If) or not module.has_own_lines(*node.body):
        return
    last = node.body[-1].end_lineno or node.lineno
    if _is_elif(node, module):
        yield from module.replaced_lines("lost_branch", node.lineno, last)
    if node.orelse and not _is_elif(node.orelse[0], module) and module.has_own_lines(*node.orelse):
        heads = [n for n in range(last + 1, node.orelse[0].lineno) if module.lines[n - 1].strip().startswith("else:")]
        if heads:
            yield from module.replaced_lines("lost_branch", heads[0], node.orelse[-1].end_lineno or heads[0])


def _lost_statements(node: ast.AST, module: _Module) -> Iterator[Site]:
    """Remove a call, or an assignment to a field or an item."""
    for block in _blocks(node):
        for stmt in block if len(block) > 1 else ():
            targets = stmt.targets if isinstance(stmt, ast.Assign) else [getattr(stmt, "target", None)]
            is_call = isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call)
            is_update = any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
            if (is_call or is_update) and module.has_own_lines(stmt):
                name = "lost_call" if is_call else "lost_update"
                yield from module.replaced_lines(name, stmt.lineno, stmt.end_lineno or stmt.lineno)


def _lost_copy(node: ast.AST, module: _Module) -> Iterator[Site]:
    """Use a value itself where a copy of it was made."""
    kept: ast.AST | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Slice):
        kept = node.value if node.slice.lower is node.slice.upper is node.slice.step is None else None
    elif isinstance(node, ast.Call) and not node.keywords:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name == "copy" and isinstance(node.func, ast.Attribute) and not node.args:
            kept = node.func.value
        elif name in _COPIES and len(node.args) == 1:
            kept = node.args[0]
    if isinstance(kept, ast.Name | ast.Attribute):
        yield from module.replaced_node("lost_copy", node, module.text(kept))


def _lost_condition(node: ast.AST, module: _Module) -> Iterator[Site]:
    """Remove the first or the last part of a condition."""
    is_plain = isinstance(node, ast.BoolOp) and not any(isinstance(value, ast.NamedExpr) for value in node.values)
    if is_plain and isinstance(node, ast.BoolOp) and len(node.values) == 2:
        yield from module.replaced_node("lost_condition", node, *(module.text(value) for value in node.values))


def _lost_argument(node: ast.AST, module: _Module) -> Iterator[Site]:
    """Remove the last keyword of a call, or the default of ``get``."""
    if not isinstance(node, ast.Call):
        return
    parts: list[ast.AST] = sorted((*node.args, *node.keywords), key=module.start)
    name = getattr(node.func, "attr", "")
    is_keyword = bool(parts) and isinstance(parts[-1], ast.keyword) and parts[-1].arg is not None
    if len(parts) < 2 or not (is_keyword or (name == "get" and len(parts) == 2)):
        return
    if module.source[module.end(parts[-2]) : module.start(parts[-1])].strip() == ",":
        yield from module.replaced("lost_argument", module.end(parts[-2]), module.end(parts[-1]), "")


def _lost_exception(node: ast.AST, module: _Module) -> Iterator[Site]:
    """Catch one exception fewer."""
    if isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Tuple) and len(node.type.elts) > 1:
        texts = [module.text(caught) for caught in node.type.elts]
        others = [[text for text in texts if text != left] for left in texts]
        news = [kept[0] if len(kept) == 1 else f"({', '.join(kept)})" for kept in others if kept]
        yield from module.replaced_node("lost_exception", node.type, *news)


# --- something has another place -----------------------------------------------------------------------------------


def _early_return(node: ast.AST, module: _Module) -> Iterator[Site]:
    """Move the return behind a loop into it."""
    for block in _blocks(node):
        for loop, stmt in pairwise(block):
            if not isinstance(loop, ast.For | ast.While) or not isinstance(stmt, ast.Return) or loop.orelse:
                continue
            if stmt.lineno == stmt.end_lineno and module.has_own_lines(stmt, *loop.body):
                line, inner = module.lines[stmt.lineno - 1], module.lines[loop.body[0].lineno - 1]
                indent = inner[: len(inner) - len(inner.lstrip())]
                yield from module.replaced_lines("early_return", stmt.lineno, stmt.lineno, indent + line.lstrip())


def _swapped_statements(node: ast.AST, module: _Module) -> Iterator[Site]:
    """Swap two statements in succession that share a name, unless the second needs what the first binds."""
    for block in _blocks(node):
        for first, second in pairwise(block):
            if not (isinstance(first, _Simple) and isinstance(second, _Simple) and module.has_own_lines(first, second)):
                continue
            bound, loaded = _names(first, ast.Store), _names(second, ast.Load)
            is_adjacent = second.lineno == (first.end_lineno or 0) + 1
            if is_adjacent and not bound & loaded and (_names(first) & _names(second)):
                middle, last = module.starts[second.lineno - 1], module.starts[second.end_lineno or second.lineno]
                start = module.starts[first.lineno - 1]
                swapped = module.source[middle:last] + module.source[start:middle]
                yield from module.replaced("swapped_statements", start, last, swapped)


def _names(stmt: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> set[str]:
    return {n.id for n in ast.walk(stmt) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


def _swapped_parameters(node: ast.AST, module: _Module) -> Iterator[Site]:
    """Swap two parameters without defaults in a signature: its callers, in other functions, stay as they are."""
    if isinstance(node, FunctionNode):
        parameters = [*node.args.posonlyargs, *node.args.args]
        plain = [arg for arg in parameters[: len(parameters) - len(node.args.defaults)] if arg.arg not in _OWN]
        for left, right in pairwise(plain):
            between = module.source[module.end(left) : module.start(right)]
            if between.strip() == ",":
                swapped = module.text(right) + between + module.text(left)
                yield from module.replaced("swapped_parameters", module.start(left), module.end(right), swapped)


_OWN = ("self", "cls")


# --- something was confused ----------------------------------------------------------------------------------------


def _key_of(node: ast.AST) -> ast.Constant | None:
    """Return the text by which ``node`` looks something up."""
    key: ast.AST | None = None
    if isinstance(node, ast.Subscript):
        key = node.slice
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("get", "pop", "setdefault") and node.args:
        key = node.args[0]
    is_plain = isinstance(key, ast.Constant) and isinstance(key.value, str) and _KEY.fullmatch(key.value)
    return key if is_plain and isinstance(key, ast.Constant) else None


def _wrong_key(node: ast.AST, module: _Module) -> Iterator[Site]:
    """Look up one of the module's other keys, the most similar first."""
    if key := _key_of(node):
        old, text = module.text(key), str(key.value)
        if old in (f"'{text}'", f'"{text}"'):
            others = _most_similar(text, module.keys)
            yield from module.replaced_node("wrong_key", key, *(f"{old[0]}{other}{old[0]}" for other in others))


@lru_cache(maxsize=1024)
def _most_similar(text: str, others: tuple[str, ...]) -> list[str]:
    ranked = sorted(others, key=lambda other: (-SequenceMatcher(None, text, other).ratio(), other))
    return [other for other in ranked if other != text][:MAX_CONFUSED]


def _wrong_fields(node: ast.AST, module: _Module) -> Iterator[Site]:
    """Read another field that the class sets on ``self``."""
    if not isinstance(node, ast.ClassDef):
        return
    own = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "self"]
    fields = tuple(dict.fromkeys(n.attr for n in own if isinstance(n.ctx, ast.Store)))
    for read in own:
        if isinstance(read.ctx, ast.Load) and read.attr in fields and id(read) not in module.inside_texts:
            others = _most_similar(read.attr, fields)
            yield from module.replaced_node("wrong_field", read, *(f"self.{other}" for other in others))


def _defaults(node: FunctionNode) -> Iterator[ast.Constant]:
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if isinstance(default, ast.Constant):
            yield default


def _wrong_default(node: ast.AST, module: _Module) -> Iterator[Site]:
    """Give a parameter the default text of another one."""
    for default in _defaults(node) if isinstance(node, FunctionNode) else ():
        if isinstance(default.value, str):
            others = _most_similar(module.text(default), module.text_defaults)
            yield from module.replaced_node("wrong_default", default, *others)


def _off_boundary(node: ast.AST, module: _Module) -> Iterator[Site]:
    """Move the end of a slice by one, lose the ``+ 1`` of its start, or take the first for the last item."""
    if not isinstance(node, ast.Subscript):
        return
    index = module.text(node.slice)
    if index in ("0", "-1"):
        yield from module.replaced_node("off_boundary", node.slice, "-1" if index == "0" else "0")
    if isinstance(node.slice, ast.Slice):
        lower, upper = node.slice.lower, node.slice.upper
        if isinstance(upper, ast.Name | ast.Attribute | ast.Call):
            text = module.text(upper)
            yield from module.replaced_node("off_boundary", upper, f"{text} - 1", f"{text} + 1")
        if isinstance(lower, ast.BinOp) and isinstance(lower.op, ast.Add | ast.Sub) and module.text(lower.right) == "1":
            yield from module.replaced_node("off_boundary", lower, module.text(lower.left))


_FINDERS: tuple[Callable[[ast.AST, _Module], Iterator[Site]], ...] = (
    _lost_branches, _lost_statements, _lost_copy, _lost_condition, _lost_argument, _lost_exception, _early_return,
    _swapped_statements, _swapped_parameters, _wrong_key, _wrong_fields, _wrong_default, _off_boundary,
)  # fmt: skip
