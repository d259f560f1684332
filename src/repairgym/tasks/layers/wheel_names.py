"""Names that the modules of a wheel define, and names that code uses of other distributions, read as text.

Reads wheels and Python files; nothing runs. Makes `WheelNames` and the `Use` objects of a file. Guarantees: a name that
may exist (a compiled module, a module whose names are made when it is imported) is never reported as absent; a use that
the code itself guards (``try`` with a handler, a check of a version) is not listed.
"""

import ast
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from email import message_from_string
from pathlib import Path
from typing import NamedTuple

_COMPILED = (".so", ".pyd", ".pyx")
_GUARD = re.compile(r"TYPE_CHECKING|\bPY[23]\d*\b|version|hasattr|\bpy[23]\b", re.IGNORECASE)
_GUARDING = frozenset({"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"})
_DYNAMIC = re.compile(r"globals\(\)|sys\.modules\[|__getattr__\s*(,[^=\n]*)?=|\bvars\(\)|\bexec\(")


class Use(NamedTuple):
    """A use of a name of another module."""

    dotted: str
    """Module and name, from the import: ``jinja2.Markup``."""
    local: str
    """The name in the code that uses it."""


@dataclass
class WheelNames:
    """The modules of one wheel."""

    path: Path
    known: dict[str, frozenset[str] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the list of files and the metadata."""
        with zipfile.ZipFile(self.path) as archive:
            self.files = frozenset(archive.namelist())
            info = next((name for name in self.files if name.endswith(".dist-info/METADATA")), "")
            self.metadata = archive.read(info).decode(errors="replace") if info else ""
        self.modules = {_module_of(name) for name in self.files if name.endswith((".py", *_COMPILED))}
        self.modules |= {parent for module in list(self.modules) for parent in _parents(module)}

    @property
    def tops(self) -> frozenset[str]:
        """Top-level modules."""
        return frozenset(module.partition(".")[0] for module in self.modules)

    @property
    def requirements(self) -> tuple[str, ...]:
        """Requirements of the distribution, extras included."""
        return tuple(message_from_string(self.metadata).get_all("Requires-Dist") or ())

    def lacks(self, dotted: str) -> bool:
        """Return True if ``dotted``, whose first part is a module of the wheel, is certainly not there."""
        module, *rest = dotted.split(".")
        for part in rest:
            if f"{module}.{part}" in self.modules:
                module = f"{module}.{part}"
                continue
            names = self.names(module)
            return names is not None and part not in names and not (part.startswith("__") and part.endswith("__"))
        return False

    def names(self, module: str) -> frozenset[str] | None:
        """Return the names of ``module``; None where they cannot be known."""
        if module not in self.known:
            self.known[module] = frozenset()  # a circle of star imports ends here
            self.known[module] = self._read(module)
        return self.known[module]

    def _read(self, module: str) -> frozenset[str] | None:
        base = module.replace(".", "/")
        path = next((path for path in (f"{base}/__init__.py", f"{base}.py") if path in self.files), "")
        if not path:
            return None
        with zipfile.ZipFile(self.path) as archive:
            text = archive.read(path).decode(errors="replace")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return None
        if _DYNAMIC.search(text):
            return None
        names: set[str] = set()
        for node in _top_statements(tree.body):
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                others = self.names(_absolute(node, module, path))
                if others is None:
                    return None
                names |= others
            names |= set(_bound(node))
        if "__getattr__" in names:  # names that it can give are texts of the module
            texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
            names |= {word for text in texts if isinstance(text, str) for word in text.replace(":", ".").split(".")}
        return frozenset(names)


def _module_of(name: str) -> str:
    stem = name.partition(".")[0] if name.endswith((".so", ".pyd")) else name.rpartition(".")[0]
    return stem.removesuffix("/__init__").replace("/", ".")


def _parents(module: str) -> Iterator[str]:
    while module := module.rpartition(".")[0]:
        yield module


def _absolute(node: ast.ImportFrom, module: str, path: str) -> str:
    """Return the module from which ``node`` in ``module`` imports."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + path.endswith("/__init__.py")]
    return ".".join((*parts, *filter(None, (node.module,))))


def _top_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements that run when a module is imported."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            inner = getattr(node, part, None)
            if isinstance(inner, list) and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _top_statements(inner)
        for handler in getattr(node, "handlers", ()):
            yield from _top_statements(handler.body)


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement gives a value."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    else:
        head = [node.items] if isinstance(node, ast.With) else [getattr(node, "target", None)]
        targets = [*getattr(node, "targets", ()), *head]
        for target in targets:
            for item in target if isinstance(target, list) else [target]:
                inner = ast.walk(item) if isinstance(item, ast.AST) else ()
                yield from (name.id for name in inner if isinstance(name, ast.Name))


# --- uses ----------------------------------------------------------------------------------------------------------


def read_uses(text: str) -> frozenset[Use]:
    """Return the unguarded uses of other modules in the code ``text``; SyntaxError if this Python cannot read it."""
    reader = _UseReader()
    reader.visit(ast.parse(text))
    return frozenset(reader.uses)


class _UseReader(ast.NodeVisitor):
    """Collects uses; imports come before what they bind."""

    def __init__(self) -> None:
        self.uses: set[Use] = set()
        self._modules: dict[str, str] = {}

    def visit_Try(self, node: ast.Try) -> None:
        """Skip what a handler guards."""
        types = [ast.unparse(handler.type) if handler.type else "Exception" for handler in node.handlers]
        is_guarded = any(word in _GUARDING for text in types for word in re.findall(r"\w+", text))
        for part in node.finalbody if is_guarded else (*node.body, *node.handlers, *node.orelse, *node.finalbody):
            self.visit(part)

    def visit_If(self, node: ast.If) -> None:
        """Skip what depends on a version."""
        if not _GUARD.search(ast.unparse(node.test)):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        """Note modules and their names here."""
        for alias in node.names:
            self.uses.add(Use(alias.name, alias.asname or alias.name.rpartition(".")[2]))
            bound = alias.asname or alias.name.partition(".")[0]
            self._modules[bound] = alias.name if alias.asname else bound

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Note imported names."""
        if node.level or not node.module:
            return
        for alias in node.names:
            dotted = node.module if alias.name == "*" else f"{node.module}.{alias.name}"
            self.uses.add(Use(dotted, alias.asname or alias.name))
            self._modules[alias.asname or alias.name] = dotted

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Note attributes of modules."""
        parts, inner = [node.attr], node.value
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in self._modules:
            self.uses.add(Use(".".join((self._modules[inner.id], *reversed(parts))), node.attr))
        else:
            self.generic_visit(node)
