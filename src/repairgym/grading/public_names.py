"""Names that a submission removes (public ones) or empties (any), though gold keeps them as they were.

Reads the text of changed files, never their behavior: no test and no recorded call may reach these functions. Makes
names. Guarantees: a name that another statement binds is not missing; a function counts as emptied only where gold
leaves its code alone, it did something, and what is left of it that can be reached computes nothing; a file that
cannot be parsed says nothing.
"""

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePosixPath

from repairgym.grading.exploits.conditions import truth
from repairgym.grading.exploits.syntax import parse, reading_deep_trees
from repairgym.grading.permitted import is_protected
from repairgym.grading.stages import Pinned

_PLAIN = frozenset({
    "bool", "bytes", "dict", "float", "frozenset", "hash", "id", "int", "isinstance", "len", "list", "object", "repr",
    "set", "str", "tuple", "type",
})  # fmt: skip
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Names = dict[str, ast.stmt]


def missing_names(pinned: Pinned) -> list[str]:
    """Return the public functions and classes that the permitted part of a submission removes, and all emptied ones."""
    task, names = pinned.task, list[str]()
    for path, text in pinned.permitted.files.items():
        if not path.endswith(".py") or not _is_source(path, task.source_paths) or is_protected(task, path):
            continue
        base = pinned.base.get(path)
        gold = task.gold_files.get(path, base)
        if base is not None and gold is not None:
            with reading_deep_trees():
                names += [f"{path}: {name}" for name in _missing(base, gold, text)]
    return names


def _is_source(path: str, source_paths: tuple[str, ...]) -> bool:
    roots = [PurePosixPath(root) for root in source_paths]
    return any(PurePosixPath(path).is_relative_to(root) for root in roots)


def _missing(base: str, gold: str, text: str | None) -> Iterator[str]:
    before, kept, there = map(_names_of, (base, gold, text or ""))
    if before is None or kept is None or there is None:
        return
    for name, node in kept.items():
        new = there.get(name) or _moved_up(name, kept, there)
        is_public = not any(part.startswith("_") for part in name.split("."))
        is_gone = is_public and new is None and not _is_bound_elsewhere(name, kept, there)
        # The comparison of whole classes comes last: it takes longer than everything else here.
        if (
            name in before
            and (is_gone or _is_emptied(node, new) or _is_muted(node, new, there))
            and ast.dump(before[name]) == ast.dump(node)
        ):
            yield name


@lru_cache(maxsize=256)
def _names_of(text: str) -> _Names | None:
    """Return the names of ``text``; None when it cannot be parsed."""
    tree = parse(text)
    names = dict(_bound(tree.body)) if tree is not None else None
    return names and {name: node for name, node in names.items() if not isinstance(node, ast.Delete)}


def _bound(body: list[ast.stmt], scope: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Yield each name of a body, and ``*`` where names may come from anywhere; classes are entered."""
    for node in body:
        yield from ((scope + name, node) for name in _names(node))
        if isinstance(node, _Function):
            yield from _bound(
                [part for part in node.body if isinstance(part, _Function)], f"{scope}{node.name}._inner."
            )
        elif isinstance(node, ast.ClassDef):
            yield from _bound(node.body, f"{scope}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            blocks = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
            blocks += [handler.body for handler in getattr(node, "handlers", ())]
            for block in blocks:
                yield from _bound(block, scope)


def _names(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in aliases)
        case ast.Delete(targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.Assign(targets=targets):
            yield from (name for target in targets for name in _stored(target))
        case ast.AugAssign(target=target) | ast.For(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
            yield from _stored(target)
        case ast.Expr():
            yield from (part.target.id for part in ast.walk(node) if isinstance(part, ast.NamedExpr))


def _stored(target: ast.expr) -> Iterator[str]:
    parts = (part for part in ast.walk(target) if isinstance(part, ast.Name))
    yield from (part.id for part in parts if isinstance(part.ctx, ast.Store))


def _is_bound_elsewhere(name: str, kept: _Names, there: _Names) -> bool:
    """Return True where ``name`` may be bound otherwise, is no function or class, or its class is already named."""
    scope = name.rpartition(".")[0]
    old, new = kept.get(scope), there.get(scope)
    prefix = f"{scope}." if scope else ""
    if not isinstance(kept[name], ast.ClassDef | _Function) or f"{prefix}*" in there or f"{prefix}__getattr__" in there:
        return True
    if not scope:
        return False
    # A method may have moved to another base class.
    return not (
        isinstance(old, ast.ClassDef)
        and isinstance(new, ast.ClassDef)
        and list(map(ast.dump, old.bases)) == list(map(ast.dump, new.bases))
    )


def _moved_up(name: str, kept: _Names, there: _Names) -> ast.stmt | None:
    """Return the method that a base class of the same file has now and gold's does not, or has otherwise; else None."""
    scope, _, last = name.rpartition(".")
    classes, seen = [scope], set[str]()
    while classes:
        scope = classes.pop()
        node = there.get(scope)
        if scope in seen or not isinstance(node, ast.ClassDef):
            continue
        seen.add(scope)
        moved = f"{scope}.{last}"
        if moved in there and (moved not in kept or ast.dump(kept[moved]) != ast.dump(there[moved])):
            return there[moved]
        bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)  # `Base[int]`
        classes += [base.id for base in bases if isinstance(base, ast.Name)]
    return None


def _is_emptied(old: ast.stmt, new: ast.stmt | None) -> bool:
    """Return True for a function that did something, if only return an argument, and now does nothing any more.

    Nor does a constant that has its name.
    """
    if not isinstance(old, _Function):
        return False
    before = list(filter(_is_code, old.body))
    if not isinstance(new, _Function):
        values = _values_of(new, old.name)
        return bool(values) and all(map(_is_nothing, values)) and not all(map(_is_constant, before))
    after = list(filter(_is_code, new.body))
    return (
        _is_idle(new)
        and not all(map(_is_constant, before))
        and list(map(ast.dump, before)) != list(map(ast.dump, after))
    )


def _values_of(node: ast.stmt | None, name: str) -> list[ast.expr | None]:
    """Return what a statement binds ``name`` to, as far as its text says; None for what it does not say."""
    values: list[ast.expr | None] = []
    for part in ast.walk(node) if node is not None else ():
        match part:
            case ast.Assign(targets, value):
                values += [found for target in targets for found in _bound_to(target, value, name)]
            case ast.AnnAssign(target, _, ast.expr() as value) | ast.NamedExpr(target, value):
                values += _bound_to(target, value, name)
            case ast.For(target, ast.List(elts=[*_, value]) | ast.Tuple(elts=[*_, value])):
                values += _bound_to(target, value, name)
    return values


def _bound_to(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr | None]:
    match target, value:
        case ast.Name(), _ if target.id == name:
            yield value
        case ((ast.Tuple(parts) | ast.List(parts)), (ast.Tuple(given) | ast.List(given))) if len(parts) == len(given):
            for part, one in zip(parts, given, strict=True):
                yield from _bound_to(part, one, name)
        case ((ast.Tuple() | ast.List()), _) if name in _stored(target):
            yield None


def _is_nothing(value: ast.expr | None) -> bool:
    """Return True for a constant, and for a function that gives one, or its argument."""
    body = value.body if isinstance(value, ast.Lambda) else value
    return isinstance(body, ast.Constant) or (isinstance(value, ast.Lambda) and _is_trivial(ast.Return(value.body)))


def _is_muted(old: ast.stmt, new: ast.stmt | None, there: _Names) -> bool:
    """Return True for a function with a new decorator that never looks at it."""
    if not isinstance(old, _Function) or not isinstance(new, _Function):
        return False
    known = set(map(ast.dump, old.decorator_list))
    names = [mark.id for mark in new.decorator_list if isinstance(mark, ast.Name) and ast.dump(mark) not in known]
    decorators = (there.get(name) for name in names)
    return any(isinstance(mark, _Function) and mark.args.args and not _is_read(mark) for mark in decorators)


def _is_read(function: _Function) -> bool:
    name = function.args.args[0].arg
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(function))


def _is_code(node: ast.stmt) -> bool:
    return not isinstance(node, ast.Pass) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _is_idle(function: _Function) -> bool:
    """Return True where nothing that can be reached computes: constants and arguments are handed on, or an error."""
    return all(map(_is_trivial, filter(_is_code, _reached(function.body))))


def _reached(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of ``body`` that can run; a condition that constants decide gives way to its branch."""
    for node in body:
        decided = None
        if isinstance(node, ast.If | ast.While):
            decided = truth(node.test)
        elif isinstance(node, ast.For) and truth(node.iter) is False:
            decided = False
        if isinstance(node, ast.While) and decided and isinstance(node.body[0], ast.Break):
            continue
        ways = [] if decided is None else getattr(node, "body" if decided else "orelse")
        parts = [node] if decided is None else list(_reached(ways))
        yield from parts
        if parts and isinstance(parts[-1], ast.Return | ast.Raise):
            return


def _is_trivial(node: ast.stmt) -> bool:
    match node:
        case ast.Raise() | ast.Return(None) | ast.Expr(ast.Call(ast.Name(), _, [])):
            return not isinstance(node, ast.Expr) or _is_builtin(node.value)
        case ast.Try(body, handlers, orelse, finalbody):
            parts = [*body, *orelse, *finalbody, *(part for handler in handlers for part in handler.body)]
            return all(map(_is_trivial, filter(_is_code, parts)))
        case ast.Return(value) | ast.Assign([ast.Name()], value) | ast.AnnAssign(ast.Name(), _, value):
            return value is None or isinstance(value, ast.Name) or _is_fixed(value)
    return False


def _is_fixed(value: ast.expr) -> bool:
    """Return True for an expression without a name; the call of a class without arguments, ``list()``, is one."""
    match value:
        case ast.Call(ast.Lambda(_, body), [], []):
            return _is_fixed(body)
        case ast.Call(ast.Name(), [], []):
            return _is_builtin(value)
        case ast.Call(ast.Call(ast.Name("type")), [], []) | ast.Call(ast.Attribute(ast.Call(ast.Name("locals")))):
            return True
    return not any(isinstance(part, ast.Name | ast.Call | ast.Yield | ast.Await) for part in ast.walk(value))


def _is_builtin(value: ast.expr) -> bool:
    """Return True for the call of a built-in that changes nothing; a value that nobody looks at does nothing, then."""
    is_named = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
    return is_named and value.func.id in _PLAIN  # type: ignore[attr-defined]


def _is_constant(node: ast.stmt) -> bool:
    match node:
        case ast.Return(None | ast.Constant()) | ast.Raise():
            return True
    return False
