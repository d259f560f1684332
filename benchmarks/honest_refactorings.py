"""Honest patches by a third means: refactorings by hand's rules, and the same function as other releases have it.

Reads a `Target`; makes files, and adds its kinds to those of `honest_patches`. A refactoring keeps what the code does
by construction, and is none of those of `honest_rewrites` or of the audit's rewriter. The function of another release
is what its authors wrote at another time: it may be right in another way, or wrong, which its tests tell.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache

from hacks.target import Files, Target
from honest_patches import HONEST
from honest_rewrites import _first_place, _Function, _gold, _in_function

from repairgym.errors import RepairGymError
from repairgym.tasks.build.assembly import read_text
from repairgym.tasks.layers.catalogue import load_catalogue
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.mutation.operators import find_functions

_SEES_ITS_FRAME = frozenset({"super", "locals", "vars", "dir", "eval", "exec", "__class__", "warn", "warnings"})
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def _names(function: _Function) -> set[str]:
    names = {part.id for part in ast.walk(function) if isinstance(part, ast.Name)}
    return names | {part.attr for part in ast.walk(function) if isinstance(part, ast.Attribute)}


def _blocks(function: _Function) -> Iterator[list[ast.stmt]]:
    """Yield every list of statements."""
    for node in list(ast.walk(function)):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _of_expressions(change: Callable[[ast.expr], ast.expr]) -> Callable[[_Function], None]:
    class Change(ast.NodeTransformer):
        def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
            return node

        def generic_visit(self, node: ast.AST) -> ast.AST:
            node = super().generic_visit(node)
            return change(node) if isinstance(node, ast.expr) else node

    def made(function: _Function) -> None:
        first = _first_place(function)
        function.body[first:] = [Change().visit(node) for node in function.body[first:]]

    return made


def _split_type_check(node: ast.expr) -> ast.expr:
    match node:
        case ast.Call(ast.Name("isinstance"), [ast.Name() as value, ast.Tuple(elts=kinds)]) if len(kinds) > 1:
            return ast.BoolOp(ast.Or(), [ast.Call(node.func, [value, kind], []) for kind in kinds])
    return node


def _called_display(node: ast.expr) -> ast.expr:
    match node:
        case ast.List(elts=[], ctx=ast.Load()):
            return ast.Call(ast.Name("list", ast.Load()), [], [])
        case ast.Dict(keys=[]):
            return ast.Call(ast.Name("dict", ast.Load()), [], [])
    return node


def _unpacked_call(node: ast.expr) -> ast.expr:
    """``f(a, b=c)`` as ``f(*(a,), **{"b": c})``."""
    if not isinstance(node, ast.Call) or any(isinstance(part, ast.Starred) for part in node.args):
        return node
    args: list[ast.expr] = [ast.Starred(ast.Tuple(node.args, ast.Load()), ast.Load())] if node.args else []
    named = [part for part in node.keywords if part.arg]
    given = [part for part in node.keywords if not part.arg]
    keys: list[ast.expr | None] = [ast.Constant(part.arg) for part in named]
    more = [ast.keyword(None, ast.Dict(keys, [part.value for part in named]))] if named and not given else node.keywords
    return ast.Call(node.func, args, more)


def _split_chain(node: ast.expr) -> ast.expr:
    match node:
        case ast.Compare(left, [one, other], [(ast.Name() | ast.Constant()) as middle, right]):
            return ast.BoolOp(ast.And(), [ast.Compare(left, [one], [middle]), ast.Compare(middle, [other], [right])])
    return node


def _from_generator(node: ast.expr) -> ast.expr:
    match node:
        case ast.ListComp(value, loops):
            return ast.Call(ast.Name("list", ast.Load()), [ast.GeneratorExp(value, loops)], [])
        case ast.SetComp(value, loops):
            return ast.Call(ast.Name("set", ast.Load()), [ast.GeneratorExp(value, loops)], [])
    return node


def _leave_early(function: _Function) -> None:
    last = function.body[-1]
    if isinstance(last, ast.If) and not last.orelse and len(last.body) > 1:
        leave = ast.If(ast.UnaryOp(ast.Not(), last.test), [ast.Return(None)], [])
        function.body[-1:] = [leave, *last.body]


def _endless_loops(function: _Function) -> None:
    for node in ast.walk(function):
        is_plain = isinstance(node, ast.While) and not node.orelse and not isinstance(node.test, ast.Constant)
        if is_plain and isinstance(node, ast.While):
            node.body.insert(0, ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Break()], []))
            node.test = ast.Constant(True)


def _join_conditions(function: _Function) -> None:
    for node in ast.walk(function):
        match node:
            case ast.If(body=[ast.If(test=inner, body=body, orelse=[])], orelse=[]):
                node.test, node.body = ast.BoolOp(ast.And(), [node.test, inner]), body


def _split_tuples(function: _Function) -> None:
    for block in _blocks(function):
        for number, node in enumerate(block):
            match node:
                case ast.Assign([ast.Tuple(elts=targets)], ast.Tuple(elts=values)) if len(targets) == len(values):
                    if any(isinstance(part, ast.Starred) for part in (*targets, *values)):
                        continue
                    names = [f"part_{place}_of_{number}" for place in range(len(values))]
                    taken, given = zip(names, values, strict=True), zip(names, targets, strict=True)
                    block[number : number + 1] = [
                        *(ast.Assign([ast.Name(one, ast.Store())], value) for one, value in taken),
                        *(ast.Assign([one], ast.Name(taken, ast.Load())) for taken, one in given),
                    ]
                    return


def _annotate(function: _Function) -> None:
    declared = {
        name for part in ast.walk(function) if isinstance(part, ast.Global | ast.Nonlocal) for name in part.names
    }
    for block in _blocks(function):
        for number, node in enumerate(block):
            match node:
                case ast.Assign([ast.Name(name) as target], value) if name not in declared:
                    block[number] = ast.AnnAssign(target, ast.Constant("object"), value, simple=1)


def _finish(function: _Function) -> None:
    place = _first_place(function)
    function.body[place:] = [ast.Try(function.body[place:], [], [], [ast.Pass()])]


def _wrap(function: _Function) -> None:
    """Move the body to a function inside, called once."""
    place = _first_place(function)
    body = function.body[place:]
    arguments = {part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)}
    stored = {
        part.id for part in ast.walk(function) if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)
    }
    odd = (ast.Yield, ast.YieldFrom, ast.Await, ast.Nonlocal, ast.Global, *_NESTED)
    is_odd = any(isinstance(part, odd) for node in body for part in ast.walk(node))
    if is_odd or arguments & stored or _names(function) & _SEES_ITS_FRAME:
        return
    inner = ast.parse("def _computed():\n    pass\nreturn_value = _computed()").body[0]
    assert isinstance(inner, ast.FunctionDef)
    inner.body = body
    function.body[place:] = [inner, ast.Return(ast.Call(ast.Name("_computed", ast.Load()), [], []))]


def _other_release(is_later: bool) -> Callable[[Target], Files]:
    """Gold with the function under repair as the nearest later or earlier release has it in other words."""

    def make(target: Target) -> Files:
        path, text = _gold(target)
        name = target.function().name
        span = _span(text, name)
        is_broken_there = not is_later and bool(target.task.provenance.base_version)
        if span is None or is_broken_there:
            return {path: text}
        lines = text.splitlines(keepends=True)
        own = "".join(lines[span[0] : span[1]])
        old = _span(target.text, name)
        broken = _code("".join(target.text.splitlines(keepends=True)[old[0] : old[1]])) if old else ""
        for other in _release_texts(target.task.provenance.package, target.task.provenance.version, path, is_later):
            place = _span(other, name)
            new = "".join(other.splitlines(keepends=True)[place[0] : place[1]]) if place else own
            if _code(new) not in (_code(own), broken):
                return {path: "".join((*lines[: span[0]], new, *lines[span[1] :]))}
        return {path: text}

    return make


def _code(text: str) -> str:
    """The code of a function without its docstring, in a form to compare."""
    tree = ast.parse("if True:\n" + text if text[:1] == " " else text)
    function = next(part for part in ast.walk(tree) if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
    if ast.get_docstring(function) is not None:
        function.body = function.body[1:]
    return ast.dump(function)


def _span(text: str, name: str) -> tuple[int, int] | None:
    """Lines of the only function ``name``; None where there is none or several."""
    try:
        spans = [span for span in find_functions(text) if span.qualified_name.rpartition(".")[2] == name]
    except SyntaxError:
        return None
    return (spans[0].first_line - 1, spans[0].last_line) if len(spans) == 1 else None


@cache
def _release_texts(package_name: str, version: str, path: str, is_later: bool) -> tuple[str, ...]:
    """Texts of a file in the releases of the catalogue after or before ``version``, the nearest one first."""
    package = next(one for one in load_catalogue().package if one.name == package_name)
    known = sorted({package.version, *(one for pair in package.releases for one in pair)}, key=_order)
    at, store, texts = known.index(version) if version in known else 0, LayerStore(), []
    for one in known[at + 1 :] if is_later else known[:at][::-1]:
        try:
            text = read_text(store.tree(package.sdist(one)) / path)
        except (RepairGymError, OSError, LookupError):
            continue
        texts += [text] if text else []
    return tuple(texts)


def _order(version: str) -> list[int]:
    return [int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")]


for _name, _change in {
    "split_type_checks": _of_expressions(_split_type_check),
    "called_displays": _of_expressions(_called_display),
    "unpacked_calls": _of_expressions(_unpacked_call),
    "split_chains": _of_expressions(_split_chain),
    "from_generators": _of_expressions(_from_generator),
    "left_early": _leave_early,
    "endless_loops": _endless_loops,
    "joined_conditions": _join_conditions,
    "split_tuples": _split_tuples,
    "annotated_locals": _annotate,
    "finished": _finish,
    "wrapped_body": _wrap,
}.items():
    HONEST["again_" + _name] = _in_function(_change)
HONEST["release_later"] = _other_release(is_later=True)
HONEST["release_earlier"] = _other_release(is_later=False)
