"""Mutation operators beyond the closed vocabulary of `operators`: whole expressions and statements of one line.

Reads a module's source. Makes `Site` objects with free texts. They need a policy that can write any text; a build uses
them only with ``mutations.has_free_operators``. Guarantees: every alternative parses, a site lies on one line, and the
sites of a module depend on its source only.
"""

import ast
from collections.abc import Iterator

from repairgym.tasks.mutation.operators import Site, SourceTokens

EXCEPTION_GROUPS = (
    ("ValueError", "TypeError"),
    ("KeyError", "IndexError", "AttributeError"),
    ("OSError", "RuntimeError"),
    ("StopIteration", "ValueError"),
)
"""Built-in exceptions that people confuse."""
MAX_VARIABLES = 3
"""Number of other variables to try for one."""
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def find_free_sites(source: str) -> list[Site]:
    """Return all free sites of a module that parses, by line, column and family."""
    tree, tokens = ast.parse(source), SourceTokens(source)
    inside_texts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    nodes = (node for node in ast.walk(tree) if id(node) not in inside_texts)
    sites: dict[tuple[int, int, str, str], Site] = {}
    for site in (site for node in nodes for site in _sites(node, tokens)):
        # The parser misplaces parts of f-strings.
        if tokens.lines[site.line - 1].startswith(site.old, site.column):
            # A nested function yields its variables twice; those of the outer function come first.
            sites.setdefault((site.line, site.column, site.operator, site.old), site)
    return [sites[place] for place in sorted(sites)]


def _sites(node: ast.AST, tokens: SourceTokens) -> Iterator[Site]:
    if isinstance(node, ast.Call):
        yield from _swapped_arguments(node, tokens)
        yield from _loop_bound(node, tokens)
    elif isinstance(node, ast.Raise) and node.exc is not None:
        yield from _exception(node.exc.func if isinstance(node.exc, ast.Call) else node.exc, tokens)
    elif isinstance(node, ast.ExceptHandler) and node.type is not None:
        for caught in node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]:
            yield from _exception(caught, tokens)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _one(tokens, "removed_call", node, "pass")
    elif isinstance(node, ast.If):
        yield from _one(tokens, "removed_branch", node.test, "False")
    elif isinstance(node, ast.Return) and node.value is not None:
        is_none = isinstance(node.value, ast.Constant) and node.value.value is None
        yield from () if is_none else _one(tokens, "return_value", node.value, "None")
    elif isinstance(node, FunctionNode):
        yield from _defaults(node, tokens)
        yield from _wrong_variables(node, tokens)


def _text(tokens: SourceTokens, node: ast.AST) -> tuple[int, int, str] | None:
    """Return (line, column, text) of ``node`` if it lies on one line."""
    line, end_line = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    if not line or line != end_line:
        return None
    first = tokens.position(line, getattr(node, "col_offset", 0))[1]
    last = tokens.position(line, getattr(node, "end_col_offset", 0))[1]
    return line, first, tokens.lines[line - 1][first:last]


def _one(tokens: SourceTokens, operator: str, node: ast.AST, *alternatives: str) -> Iterator[Site]:
    place = _text(tokens, node)
    new = tuple(text for text in alternatives if place and text != place[2])
    if place and new:
        yield Site(operator, *place, new)


def _swapped_arguments(call: ast.Call, tokens: SourceTokens) -> Iterator[Site]:
    for left, right in zip(call.args, call.args[1:], strict=False):
        places = _text(tokens, left), _text(tokens, right)
        if not places[0] or not places[1] or places[0][0] != places[1][0] or isinstance(left, ast.Starred):
            continue
        line, first, left_text = places[0]
        _, middle, right_text = places[1]
        text = tokens.lines[line - 1]
        between = text[first + len(left_text) : middle]
        if left_text != right_text and not isinstance(right, ast.Starred):
            old = text[first : middle + len(right_text)]
            yield Site("swapped_arguments", line, first, old, (right_text + between + left_text,))


def _loop_bound(call: ast.Call, tokens: SourceTokens) -> Iterator[Site]:
    """Shift the end of a ``range`` by one."""
    if isinstance(call.func, ast.Name) and call.func.id == "range" and call.args:
        bound = call.args[0 if len(call.args) == 1 else 1]
        place = _text(tokens, bound)
        if place and not isinstance(bound, (ast.Constant, ast.Starred)):
            yield Site("loop_bound", *place, (f"{place[2]} - 1", f"{place[2]} + 1"))


def _exception(node: ast.expr, tokens: SourceTokens) -> Iterator[Site]:
    if isinstance(node, ast.Name):
        others = {other for group in EXCEPTION_GROUPS if node.id in group for other in group if other != node.id}
        yield from _one(tokens, "exception_type", node, *sorted(others))


def _defaults(node: FunctionNode, tokens: SourceTokens) -> Iterator[Site]:
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if isinstance(default, ast.Constant) and (default.value is None or isinstance(default.value, str)):
            yield from _one(tokens, "default_argument", default, "0" if default.value is None else "None")


def _wrong_variables(node: FunctionNode, tokens: SourceTokens) -> Iterator[Site]:
    """Read another parameter or local variable of the function."""
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    texts = [part for child in ast.walk(node) if isinstance(child, ast.JoinedStr) for part in ast.walk(child)]
    skipped = {id(part) for part in texts}
    inside = [n for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in skipped]
    names += [child.id for child in inside if isinstance(child.ctx, ast.Store)]
    known = [name for name in dict.fromkeys(names) if name not in ("self", "cls", "_")]
    for child in inside:
        if isinstance(child.ctx, ast.Load) and child.id in known:
            number = known.index(child.id)
            others = [name for name in known[number + 1 :] + known[:number] if name != child.id]
            yield from _one(tokens, "wrong_variable", child, *others[:MAX_VARIABLES])
