"""Scope of a test: the definitions of its file and class that a statement about it needs, and the package's names.

Reads the syntax tree of a test file. Makes a `Scope`. Guarantees: nothing runs; long definitions are left out.
"""

import ast
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from repairgym.tasks.build.test_files import FunctionNode

MAX_DEFINITIONS = 6
MAX_LINES = 14
"""A longer definition is not told."""
_BUILT_IN_FIXTURES = frozenset(
    {
        "tmp_path",
        "tmpdir",
        "tmp_path_factory",
        "monkeypatch",
        "capsys",
        "capfd",
        "caplog",
        "recwarn",
        "request",
        "mocker",
    }
)


@dataclass(frozen=True)
class Scope:
    """Names and definitions around a test function."""

    module: Mapping[str, ast.stmt] = field(default_factory=dict)
    """Name -> the statement of the file that binds it."""
    own: Mapping[str, ast.stmt] = field(default_factory=dict)
    """Attribute of ``self`` -> what binds it: a method, a class attribute, a line of ``setUp``."""
    package_names: frozenset[str] = frozenset()
    """Names of the file that come from the package under test."""

    def definitions(self, nodes: Sequence[ast.AST], local: Collection[str]) -> list[ast.stmt]:
        """Return what ``nodes`` need of the file and class, in order of the file; ``local`` names are of the test."""
        by_line: dict[int, ast.stmt] = {}
        waiting = list(nodes)
        while waiting and len(by_line) < MAX_DEFINITIONS:
            node = waiting.pop(0)
            for stmt in self._needed(node, local):
                if stmt.lineno not in by_line and (stmt.end_lineno or 0) - stmt.lineno < MAX_LINES:
                    by_line[stmt.lineno] = stmt
                    waiting.append(stmt)
        return [by_line[line] for line in sorted(by_line)]

    def _needed(self, node: ast.AST, local: Collection[str]) -> list[ast.stmt]:
        names = [name for name in loaded_names(node) if name not in local and name not in self.package_names]
        needed = [self.module[name] for name in sorted(names) if name in self.module]
        return needed + [self.own[name] for name in sorted(own_attributes(node)) if name in self.own]

    def value_of(self, node: ast.expr) -> ast.expr:
        """Return what a name of the file stands for; ``node`` itself for anything else."""
        stmt = self.module.get(node.id) if isinstance(node, ast.Name) else None
        return stmt.value if isinstance(stmt, ast.Assign | ast.AnnAssign) and stmt.value is not None else node

    def reaches(self, nodes: Iterable[ast.AST], arguments: Collection[str]) -> bool:
        """Return whether ``nodes`` use the package: a name of it, or a fixture made elsewhere."""
        names = frozenset[str]().union(*map(loaded_names, nodes))
        fixtures = set(arguments) - _BUILT_IN_FIXTURES - {"self"}
        return bool(names & (self.package_names | fixtures))


@lru_cache(maxsize=4096)
def loaded_names(node: ast.AST) -> frozenset[str]:
    """Return the names that ``node`` reads."""
    names = (child for child in ast.walk(node) if isinstance(child, ast.Name))
    return frozenset(name.id for name in names if isinstance(name.ctx, ast.Load))


def own_attributes(node: ast.AST) -> frozenset[str]:
    """Return the attributes of ``self`` that ``node`` uses."""
    return frozenset(
        child.attr
        for child in ast.walk(node)
        if isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name) and child.value.id in ("self", "cls")
    )


def find_scope(tree: ast.Module, name: str, packages: Collection[str], *, is_inside: bool) -> Scope:
    """Return the scope of the test ``name`` (``test_a``, ``TestB::test_c``).

    ``packages`` are the import names under test; ``is_inside`` tells that the file lies in one of them, so that its
    relative imports are of the package.
    """
    module: dict[str, ast.stmt] = {}
    package_names: set[str] = set()
    for stmt in _flat(tree.body):
        if isinstance(stmt, ast.Import | ast.ImportFrom):
            package_names |= _imported(stmt, packages, is_inside=is_inside)
        elif isinstance(stmt, FunctionNode):
            if not stmt.name.startswith("test"):
                module[stmt.name] = stmt
        elif isinstance(stmt, ast.Assign | ast.AnnAssign):
            targets = stmt.targets if isinstance(stmt, ast.Assign) else [stmt.target]
            module |= {target.id: stmt for target in targets if isinstance(target, ast.Name)}
    classes = {stmt.name: stmt for stmt in tree.body if isinstance(stmt, ast.ClassDef)}
    own = _own(classes, name.partition("::")[0], ()) if "::" in name else {}
    return Scope(module, own, frozenset(package_names))


def _flat(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """Yield the statements of a module, also those under ``try`` and ``if``."""
    for stmt in body:
        if isinstance(stmt, ast.Try | ast.If):
            yield from _flat([*stmt.body, *stmt.orelse])
        else:
            yield stmt


def _imported(stmt: ast.Import | ast.ImportFrom, packages: Collection[str], *, is_inside: bool) -> set[str]:
    """Return the names that an import of the package binds."""
    if isinstance(stmt, ast.ImportFrom):
        is_own = is_inside if stmt.level else (stmt.module or "").partition(".")[0] in packages
        return {alias.asname or alias.name for alias in stmt.names} if is_own else set()
    own = [alias for alias in stmt.names if alias.name.partition(".")[0] in packages]
    return {alias.asname or alias.name.partition(".")[0] for alias in own}


def _own(classes: Mapping[str, ast.ClassDef], name: str, seen: tuple[str, ...]) -> dict[str, ast.stmt]:
    if name not in classes or name in seen:
        return {}
    own: dict[str, ast.stmt] = {}
    for base in classes[name].bases:
        if isinstance(base, ast.Name):
            own |= _own(classes, base.id, (*seen, name))
    for stmt in classes[name].body:
        if isinstance(stmt, FunctionNode):
            if stmt.name in ("setUp", "setup_method", "setup"):
                own |= {attribute: line for line in stmt.body for attribute in _stored(line)}
            elif not stmt.name.startswith("test"):
                own[stmt.name] = stmt
        elif isinstance(stmt, ast.Assign):
            own |= {target.id: stmt for target in stmt.targets if isinstance(target, ast.Name)}
    return own


def _stored(stmt: ast.stmt) -> list[str]:
    targets = stmt.targets if isinstance(stmt, ast.Assign) else []
    return [t.attr for t in targets if isinstance(t, ast.Attribute) and ast.unparse(t.value) == "self"]
