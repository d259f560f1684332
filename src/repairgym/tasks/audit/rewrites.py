"""Behaviour-preserving rewrites of functions: what a right repair may look like when somebody else writes it.

Reads a module's source and the places of functions. Makes the source with those functions rewritten. Guarantees: each
rewrite keeps the behaviour by construction (which calls, in which order, with which values, is the same), so a test
that fails on one rejects a right repair. What a rewrite cannot keep for sure it leaves alone; only line numbers, names
of locals and the frame of an extracted expression change.
"""

import ast
import copy
import random
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import cast

from repairgym.diffs.lines import source_lines

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Block = list[ast.stmt]
_SCOPE_READERS = frozenset({"locals", "vars", "eval", "exec", "dir", "globals", "super", "__class__"})
"""Names that see the frame they are in."""
_ENDINGS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.IsNot: ast.Is, ast.NotIn: ast.In}


def rewrite_function(source: str, first_line: int, kinds: tuple[str, ...]) -> str | None:
    """Return ``source`` with the function whose ``def`` is on ``first_line`` rewritten in every one of ``kinds``.

    None when one of them finds nothing to rewrite.
    """
    node = copy.deepcopy(_function(source, first_line))
    return _spliced(source, node) if node and all(REWRITES[kind](node) for kind in kinds) else None


def choose_rewrites(source: str, first_line: int, num: int, seed: str) -> Iterator[tuple[str, str]]:
    """Yield at most ``num`` (kinds, source): single rewrites in random order, the last one with several of them."""
    node = _function(source, first_line)
    kinds = [kind for kind, rewrite in REWRITES.items() if node and rewrite(copy.deepcopy(node))]
    yield from draw_rewrites(kinds, partial(rewrite_function, source, first_line), num, seed)


def draw_rewrites(
    kinds: list[str], rewrite: Callable[[tuple[str, ...]], str | None], num: int, seed: str
) -> Iterator[tuple[str, str]]:
    """Yield what ``rewrite`` makes of single ``kinds`` in random order, and last of several; see `choose_rewrites`."""
    random.Random(f"rewrites:{seed}").shuffle(kinds)
    chosen: list[tuple[str, ...]] = [(kind,) for kind in kinds[:num]]
    if len(kinds) > 1 and chosen:
        chosen[num - 1 :] = [tuple(kinds[:4])]
    for part in chosen:
        if text := rewrite(part):
            yield "+".join(part), text


def _function(source: str, first_line: int) -> FunctionNode | None:
    """Return the function whose ``def`` is on ``first_line``; callers change a copy."""
    return _functions(source).get(first_line)


@lru_cache(maxsize=32)
def _functions(source: str) -> dict[int, FunctionNode]:
    return {node.lineno: node for node in ast.walk(ast.parse(source)) if isinstance(node, FunctionNode)}


def _spliced(source: str, node: FunctionNode) -> str | None:
    """Put the text of ``node`` in the place of the function it was read from; None when it cannot be written."""
    lines = source_lines(source, keepends=True)
    depth, rest = divmod(node.col_offset, 4)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    wrapped: ast.stmt = node
    for _ in range(depth):  # gives the text its indentation and leaves texts over several lines as they are
        wrapped = ast.ClassDef(name="C", bases=[], keywords=[], body=[wrapped], decorator_list=[])
    try:
        written = ast.unparse(ast.fix_missing_locations(wrapped)).split("\n")
        headers = [number for number, line in enumerate(written) if line.strip() == "class C:"][:depth]
        text = "\n".join(written[headers[-1] + 1 if headers else 0 :]).strip("\n")
        result = "".join([*lines[:first], text, "\n", *lines[node.end_lineno or node.lineno :]])
        compile(result, "rewritten", "exec", dont_inherit=True)
    except (ValueError, SyntaxError, RecursionError):
        return None
    return None if rest else result


# --- parts of a function ---------------------------------------------------------------------------------------------


def _blocks(function: FunctionNode) -> Iterator[Block]:
    """Yield every list of statements that belongs to the frame of ``function``."""
    pending: list[ast.AST] = [function]
    while pending:
        node = pending.pop()
        for name in ("body", "orelse", "finalbody", "handlers"):
            parts = getattr(node, name, None)
            if isinstance(parts, list):
                if parts and isinstance(parts[0], ast.stmt):
                    yield parts
                pending += [part for part in parts if not isinstance(part, _SCOPES)]


def _statements(function: FunctionNode) -> Iterator[tuple[Block, ast.stmt]]:
    for block in list(_blocks(function)):
        for statement in list(block):
            yield block, statement


def _names(node: ast.AST) -> set[str]:
    """Return every name that ``node`` binds or reads, in whatever form."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | _odd_names(node)
    return names | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}


def _odd_names(node: ast.AST) -> set[str]:
    """Return the names that are bound as texts of the tree: imports, handlers, definitions, captures."""
    names: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, (ast.Global, ast.Nonlocal)):
            names |= set(child.names)
        elif isinstance(child, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and child.name:
            names.add(child.name)
        elif isinstance(child, ast.alias):
            names.add((child.asname or child.name).partition(".")[0])
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(child.name)
        elif isinstance(child, ast.MatchMapping) and child.rest:
            names.add(child.rest)
    return names


def _fresh(function: FunctionNode, name: str) -> str:
    known = _names(function)
    while name in known:
        name += "_"
    return name


def _name(name: str, is_stored: bool = False) -> ast.Name:
    return ast.Name(id=name, ctx=ast.Store() if is_stored else ast.Load())


def _negation(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(op=ast.Not(), operand=test)


def _replace(function: FunctionNode, swap: Callable[[ast.expr], ast.expr | None]) -> bool:
    """Replace each expression in the body of ``function`` for which ``swap`` has another."""

    class Swap(ast.NodeTransformer):
        is_changed = False

        def visit(self, node: ast.AST) -> ast.AST:
            node = super().visit(node)
            new = swap(node) if isinstance(node, ast.expr) else None
            self.is_changed |= new is not None
            return new or node

    visitor = Swap()
    function.body[:] = [cast(ast.stmt, visitor.visit(statement)) for statement in function.body]
    return visitor.is_changed


# --- rewrites: each changes the function in place and says whether it found a place ----------------------------------


def _rename_locals(function: FunctionNode) -> bool:
    """Give plain local variables other names."""
    inside = [n for statement in function.body for n in ast.walk(statement)]
    if _SCOPE_READERS & _names(function) or any(isinstance(n, ast.ClassDef) for n in inside):
        return False
    stored = _own_stores(function)
    fixed = _odd_names(function) | {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
    outside = {n.id for part in (function.args, *function.decorator_list) for n in ast.walk(part)
               if isinstance(n, ast.Name)}  # fmt: skip
    new = {name: _fresh(function, f"{name}_value") for name in stored - fixed - outside if not name.startswith("__")}
    for node in inside:
        if isinstance(node, ast.Name) and node.id in new:
            node.id = new[node.id]
    return bool(new)


def _own_stores(function: FunctionNode) -> set[str]:
    """Return the names that are variables of the frame of ``function``, so that no reading of one means a global.

    Variables of an inner function or a comprehension are of that frame alone; ``:=`` in a comprehension is of this one.
    """
    stored: set[str] = set()
    pending: list[tuple[ast.AST, bool]] = [(statement, True) for statement in function.body]
    while pending:
        node, is_own = pending.pop()
        if isinstance(node, ast.NamedExpr):
            stored.add(node.target.id)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and is_own:
            stored.add(node.id)
        if not isinstance(node, _SCOPES):
            is_inside = is_own and not isinstance(node, _COMPREHENSIONS)
            pending += [(child, is_inside) for child in ast.iter_child_nodes(node)]
    return stored


def _swap_branches(function: FunctionNode) -> bool:
    """``if a: x else: y`` as ``if not a: y else: x``."""
    branches = [s for _, s in _statements(function) if isinstance(s, ast.If) and s.orelse]
    for node in branches:
        node.test, node.body, node.orelse = _negation(node.test), node.orelse, node.body
    return bool(branches)


def _swap_ternary(function: FunctionNode) -> bool:
    """``x if a else y`` as ``y if not a else x``."""

    def swap(node: ast.expr) -> ast.expr | None:
        if not isinstance(node, ast.IfExp):
            return None
        return ast.IfExp(test=_negation(node.test), body=node.orelse, orelse=node.body)

    return _replace(function, swap)


def _de_morgan(function: FunctionNode) -> bool:
    """``if a and b`` as ``if not (not a or not b)``: only its truth counts there."""
    is_changed = False
    for _, node in _statements(function):
        if isinstance(node, (ast.If, ast.While)) and isinstance(node.test, ast.BoolOp):
            other = ast.Or() if isinstance(node.test.op, ast.And) else ast.And()
            node.test = _negation(ast.BoolOp(op=other, values=[_negation(value) for value in node.test.values]))
            is_changed = True
    return is_changed


def _negate_outside(function: FunctionNode) -> bool:
    """``a is not b`` as ``not a is b``; ``not in`` alike."""

    def swap(node: ast.expr) -> ast.expr | None:
        if not (isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _NEGATED):
            return None
        positive = _NEGATED[type(node.ops[0])]()
        return _negation(ast.Compare(left=node.left, ops=[positive], comparators=node.comparators))

    return _replace(function, swap)


def _name_result(function: FunctionNode) -> bool:
    """``return x`` as an assignment and ``return``."""
    name, is_changed = _fresh(function, "result"), False
    for block, node in _statements(function):
        if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Name):
            block.insert(block.index(node), ast.Assign(targets=[_name(name, True)], value=node.value))
            node.value, is_changed = _name(name), True
    return is_changed


def _else_after_return(function: FunctionNode) -> bool:
    """Move what follows a branch that leaves the block into its ``else``."""
    is_changed = False
    for block in list(_blocks(function)):
        for place, node in enumerate(block):
            rest = block[place + 1 :]
            if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], _ENDINGS) and rest:
                node.orelse, block[place + 1 :], is_changed = rest, [], True
                break
    return is_changed


def _no_else_after_return(function: FunctionNode) -> bool:
    """Move the ``else`` of a branch that leaves the block behind it."""
    is_changed = False
    # Read again after each change: the statements of an ``else`` are in another list then.
    while place := next(((block, s) for block, s in _statements(function) if _has_needless_else(s)), None):
        block, node = place
        if isinstance(node, ast.If):
            block[block.index(node) + 1 : block.index(node) + 1] = node.orelse
            node.orelse, is_changed = [], True
    return is_changed


def _has_needless_else(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and bool(node.orelse) and isinstance(node.body[-1], _ENDINGS)


def _branch_for_ternary(function: FunctionNode) -> bool:
    """``return x if a else y`` and ``v = x if a else y`` as statements."""
    is_changed = False
    for block, node in _statements(function):
        is_plain = isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        if (isinstance(node, ast.Return) or is_plain) and isinstance(value := getattr(node, "value", None), ast.IfExp):
            sides = [[_with_value(node, part)] for part in (value.body, value.orelse)]
            block[block.index(node)] = ast.If(test=value.test, body=sides[0], orelse=sides[1])
            is_changed = True
    return is_changed


def _with_value(node: ast.stmt, value: ast.expr) -> ast.stmt:
    if isinstance(node, ast.Assign):
        return ast.Assign(targets=node.targets, value=value)
    return ast.Return(value=value)


def _loop_for_comprehension(function: FunctionNode) -> bool:
    """``return [x for a in b if c]`` and ``v = [...]`` as a loop that appends."""
    name, is_changed = _fresh(function, "collected"), False
    if _SCOPE_READERS & _names(function):
        return False
    for block, node in _statements(function):
        value = getattr(node, "value", None)
        is_plain = isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        if (
            (isinstance(node, ast.Return) or is_plain)
            and isinstance(value, ast.ListComp)
            and _can_loop(function, value)
        ):
            part = value.generators[0]
            append = ast.Attribute(value=_name(name), attr="append", ctx=ast.Load())
            inner: ast.stmt = ast.Expr(ast.Call(func=append, args=[value.elt], keywords=[]))
            for test in reversed(part.ifs):
                inner = ast.If(test=test, body=[inner], orelse=[])
            start = ast.Assign(targets=[_name(name, True)], value=ast.List(elts=[], ctx=ast.Load()))
            loop = ast.For(target=part.target, iter=part.iter, body=[inner], orelse=[])
            place = block.index(node)
            block[place : place + 1] = [start, loop, _with_value(node, _name(name))]
            is_changed = True
            break
    return is_changed


def _can_loop(function: FunctionNode, value: ast.ListComp) -> bool:
    """Return True when the variables of a comprehension are in no other place of the function."""
    own = list(ast.walk(value))
    bound = {n.id for n in own if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    odd = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda)
    if len(value.generators) != 1 or value.generators[0].is_async or any(isinstance(n, odd) for n in own):
        return False
    inside = {id(n) for n in own}
    others = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and id(n) not in inside}
    others |= _odd_names(function) | {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
    # The iterable is evaluated outside of the comprehension, before its variables exist.
    return not bound & (others | _names(value.generators[0].iter))


def _format_call(function: FunctionNode) -> bool:
    """``f"{a} b"`` of plain variables as ``"{} b".format(a)``."""

    def swap(node: ast.expr) -> ast.expr | None:
        if not isinstance(node, ast.JoinedStr) or not any(isinstance(v, ast.FormattedValue) for v in node.values):
            return None
        text, values = "", list[ast.expr]()
        for part in node.values:
            if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) and not part.format_spec:
                text += "{" + (f"!{chr(part.conversion)}" if part.conversion > 0 else "") + "}"
                values.append(part.value)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                text += part.value.replace("{", "{{").replace("}", "}}")
            else:
                return None
        call = ast.Attribute(value=ast.Constant(value=text), attr="format", ctx=ast.Load())
        return ast.Call(func=call, args=values, keywords=[])

    return _replace(function, swap)


def _extract_expression(function: FunctionNode) -> bool:
    """Move a returned expression without calls into a function inside."""
    odd = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Constant, ast.Name)
    if _SCOPE_READERS & _names(function):
        return False
    for block, node in _statements(function):
        value = getattr(node, "value", None)
        if not isinstance(node, ast.Return) or value is None or any(isinstance(n, odd[:5]) for n in ast.walk(value)):
            continue
        if not isinstance(value, odd[5:]):
            name = _fresh(function, "compute")
            nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
            inner = ast.FunctionDef(name=name, args=nothing, body=[ast.Return(value)], decorator_list=[])
            block.insert(block.index(node), inner)
            node.value = ast.Call(func=_name(name), args=[], keywords=[])
            return True
    return False


def _reorder_assignments(function: FunctionNode) -> bool:
    """Exchange two neighbouring assignments of constants or variables to different variables."""
    is_changed = False
    for block in _blocks(function):
        for place in range(len(block) - 1):
            pair = block[place : place + 2]
            if all(_is_plain_assignment(statement) for statement in pair) and not is_changed:
                stored = [ast.unparse(getattr(statement, "targets")[0]) for statement in pair]  # noqa: B009
                if stored[0] not in _names(pair[1]) and stored[1] not in _names(pair[0]):
                    block[place : place + 2], is_changed = pair[::-1], True
    return is_changed


def _is_plain_assignment(node: ast.stmt) -> bool:
    """Return True for ``name = x`` where evaluating ``x`` calls nothing."""
    value = getattr(node, "value", None)
    parts = [n for n in ast.iter_child_nodes(value) if isinstance(n, ast.expr)] if isinstance(value, ast.AST) else []
    empty = isinstance(value, (ast.List, ast.Tuple, ast.Dict)) and not parts
    is_one = isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    return is_one and (isinstance(value, (ast.Constant, ast.Name)) or empty)


def _plain_counter(function: FunctionNode) -> bool:
    """``n += 1`` as ``n = n + 1`` where ``n`` is never anything but an integer."""
    stores: dict[str, list[ast.stmt | None]] = {}
    for _, node in _statements(function):
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name):
                stores.setdefault(target.id, []).append(node)
    num = {name: sum(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
                     for n in ast.walk(function)) for name in stores}  # fmt: skip
    fixed = _odd_names(function) | {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
    is_changed = False
    for block, node in _statements(function):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node in block:
            name = node.target.id
            if name not in fixed and len(stores[name]) == num[name] and all(map(_stores_integer, stores[name])):
                value = ast.BinOp(left=_name(name), op=node.op, right=node.value)
                block[block.index(node)] = ast.Assign(targets=[_name(name, True)], value=value)
                is_changed = True
    return is_changed


def _stores_integer(node: ast.stmt | None) -> bool:
    value = getattr(node, "value", None)
    is_kind = isinstance(node, ast.Assign) or (
        isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub))
    )
    return is_kind and isinstance(value, ast.Constant) and type(value.value) is int


REWRITES: dict[str, Callable[[FunctionNode], bool]] = {
    "rename_locals": _rename_locals,
    "swap_branches": _swap_branches,
    "swap_ternary": _swap_ternary,
    "de_morgan": _de_morgan,
    "negate_outside": _negate_outside,
    "name_result": _name_result,
    "else_after_return": _else_after_return,
    "no_else_after_return": _no_else_after_return,
    "branch_for_ternary": _branch_for_ternary,
    "loop_for_comprehension": _loop_for_comprehension,
    "format_call": _format_call,
    "extract_expression": _extract_expression,
    "reorder_assignments": _reorder_assignments,
    "plain_counter": _plain_counter,
}
"""Name -> rewrite; each changes a function in place and returns True when it found a place."""
