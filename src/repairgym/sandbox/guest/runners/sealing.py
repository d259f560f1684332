"""Sealed test files: on disk the tests have no bodies, and the code of a body is handed out when its test starts.

Reads a test file and the names of the tests that will run; makes its text without the bodies of tests, and the code
of the wanted ones. Guarantees: lines keep their numbers, and everything but bodies of tests (fixtures, data,
decorators, names) stays as it is; a body that other code of the files names stays, because it is no test alone; a
file that cannot be sealed (another encoding, tests that look at their own source) is left alone.

Where control has to reach the end of a body for the test to pass, the code ends by telling a number that nothing but
this code and the supervisor holds: a pass without it was not reached by running the test.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections import Counter
from types import CodeType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

REACHED = "@reached"
"""Global name in a test file, which no source can spell, of the function that hears that a body came to its end."""
Key = Tuple[int, str]
"""First line (of the first decorator) and name of a function."""
_OWN_SOURCE = re.compile(
    rb"getsource|findsource|linecache|inspect\.stack|co_consts|co_code|open\(__file__|"
    rb"traceback\.|import traceback|sys\.exc_info|excepthook|print_exc"
)
_OTHER_ENCODING = re.compile(rb"(.*\n)?[ \t\f]*#.*?coding[:=](?![ \t]*utf-?8\b)", re.I)
_IMPORTS = re.compile(rb"^[ \t]*(?:from|import)\b[^\n(]*(?:\([^)]*\)|[^\n]*)", re.M)
_EXPECTS_FAILURE = re.compile(rb"xfail|expectedFailure")
_TRANSPARENT = re.compile(
    r"(pytest\.mark|mark|mock\.patch|patch|unittest\.(skip|mock\.patch)|staticmethod|slow|tag|skip(If|Unless)\w*|"
    r"(override|modify)_settings|isolate_apps|ignore_warnings|translation\.override)\b"
)
"""Decorators under which a test passes only when its body does."""
_STUB = b"raise RuntimeError('this test has not started')"
_STUB_OF_SUBCLASS = b"raise RuntimeError('this test has not started', __class__)"
"""The same for a body with ``super()``: code can replace code with equal free variables only."""
_OPTIMIZED = 1


class Sealed(NamedTuple):
    """One test file."""

    stub: bytes
    """Its text without the bodies of tests."""
    tree: ast.Module
    """The wanted functions, in their classes."""
    wanted: Dict[Key, str]
    """Sealed functions that will run -> the number that the end of the body tells; empty where it tells none."""


class SourceFile:
    """The text of a test file, and the functions that it defines."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.tree: Optional[ast.Module] = None
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            self.tree = ast.parse(source)
        self.functions: List[Tuple[str, Any]] = list(_definitions(self.tree.body)) if self.tree else []
        """Functions of the module and of its classes: ``Class::name``, node."""
        self.names = {name for name, _ in self.functions}
        self.bases = dict(_bases(self.tree.body)) if self.tree else {}
        """Class of the module -> the last parts of the names of its bases."""
        self.num_named = Counter(re.findall(rb"\btest\w*", source))
        self.imported = {word.decode() for line in _IMPORTS.findall(source) for word in re.findall(rb"\w+", line)}
        """Words of the imports, among them the names of the modules."""

    def names_elsewhere(self) -> Iterator[str]:
        """Yield each name of a test that the text has in more places than it defines it."""
        num_defined = Counter(node.name.encode() for _, node in self.functions)
        return (name.decode() for name, number in self.num_named.items() if number > num_defined[name])


def seal(file: SourceFile, wanted: Optional[Set[str]], shared: Set[str]) -> Optional[Sealed]:
    """Seal the tests in ``file``, of which the names in ``wanted`` (None: all) will run; None: nothing to seal.

    The bodies of tests in ``shared`` stay: other code names them.
    """
    source, tree = file.source, file.tree
    if _OWN_SOURCE.search(source) or _OTHER_ENCODING.match(source) or source.startswith(b"\xef\xbb\xbf"):
        return None
    if tree is None:
        return None
    functions = [node for _, node in file.functions if node.name.startswith("test") and node.name not in shared]
    stub = _without_bodies(source, functions)
    if stub is None or not functions:
        return None
    tells = not _EXPECTS_FAILURE.search(source)
    chosen = [node for node in functions if wanted is None or node.name in wanted]
    numbers = {_key(node): _add_end(node) if tells and _has_one_end(node) else "" for node in chosen}
    tree.body = _only(tree.body, {id(node) for node in chosen})
    return Sealed(stub, tree, numbers)


def compile_sealed(sealed: Sealed, source: bytes, path: str) -> Dict[Key, CodeType]:
    """Return the code of the wanted functions; ``path`` is the file's, as the tests' process imports it.

    Assertions say their own text, not the values in it: to rewrite them as pytest does takes longer than most tests.
    """
    lines = source.splitlines()
    for node in ast.walk(sealed.tree):
        if isinstance(node, ast.Assert) and node.msg is None:
            end = node.end_col_offset if node.end_lineno == node.lineno else None
            text = lines[node.lineno - 1][node.col_offset : end].decode(errors="replace").strip()
            node.msg = ast.copy_location(ast.Constant(text), node)
    codes = _functions_in(compile(sealed.tree, path, "exec", dont_inherit=True))
    return {key: code for code in codes for key in [(code.co_firstlineno, code.co_name)] if key in sealed.wanted}


def _definitions(body: Sequence[ast.stmt], scope: str = "") -> Iterator[Tuple[str, Any]]:
    """Yield the functions of a module and of its classes with their names, not those inside functions."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield scope + node.name, node
            continue
        inner = scope + node.name + "::" if isinstance(node, ast.ClassDef) else scope
        for field in ("body", "orelse", "handlers", "finalbody"):
            yield from _definitions(getattr(node, field, ()), inner)


def _bases(body: Sequence[ast.stmt]) -> Iterator[Tuple[str, List[str]]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node.name, [_dotted(base).rpartition(".")[2] for base in node.bases]


def _only(body: Sequence[ast.stmt], chosen: Set[int]) -> List[ast.stmt]:
    """Return what the code of the ``chosen`` functions depends on: themselves, their classes, futures."""
    kept: List[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.ClassDef):
            node.body = _only(node.body, chosen)
            kept += [node] if node.body else []
        elif id(node) in chosen or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            kept.append(node)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for field in ("body", "orelse", "handlers", "finalbody"):
                kept += _only(getattr(node, field, ()), chosen)
    return kept


def _key(node: Any) -> Key:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]), node.name


def _functions_in(code: CodeType) -> Iterator[CodeType]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if part.co_flags & _OPTIMIZED:
                yield part
            else:
                yield from _functions_in(part)


def _has_one_end(node: Any) -> bool:
    """Return True when ``node`` passes only by falling off its end."""
    is_known = all(_TRANSPARENT.match(_dotted(decorator)) for decorator in node.decorator_list)
    return is_known and not any(map(_may_leave, node.body))


def _may_leave(node: ast.AST) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return False
    return isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)) or any(map(_may_leave, ast.iter_child_nodes(node)))


def _dotted(node: Any) -> str:
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _add_end(node: Any) -> str:
    number = os.urandom(16).hex()
    call = ast.Call(ast.Name(REACHED, ast.Load()), [ast.Constant(number)], [])
    node.body.append(ast.fix_missing_locations(ast.copy_location(ast.Expr(call), node.body[-1])))
    return number


# --- text -------------------------------------------------------------------------------------------------------------


def _without_bodies(source: bytes, functions: List[Any]) -> Optional[bytes]:
    """Return ``source`` with the bodies of ``functions`` replaced; None when one cannot be cut out alone."""
    lines = source.splitlines(keepends=True)
    names_class = b"super" in source or b"__class__" in source
    for node in sorted(functions, key=lambda node: -node.lineno):  # from the end: the numbers of earlier lines stay
        (first, start), (last, end) = _start(node.body[0]), (node.body[-1].end_lineno, node.body[-1].end_col_offset)
        rest = lines[last - 1][end:]
        if rest.strip() and not rest.strip().startswith(b"#"):
            return None
        stub = _STUB_OF_SUBCLASS if names_class and node.col_offset and _names_its_class(node) else _STUB
        lines[first - 1 : last] = [lines[first - 1][:start] + stub + b"\n" * (last - first) + rest]
    return b"".join(lines)


def _start(node: Any) -> Tuple[int, int]:
    decorators = getattr(node, "decorator_list", ())
    return (decorators[0].lineno, decorators[0].col_offset - 1) if decorators else (node.lineno, node.col_offset)


def _names_its_class(node: Any) -> bool:
    """Return True when ``node`` needs the cell of its class: not for a class inside of it."""
    if isinstance(node, ast.ClassDef):
        return False
    is_named = isinstance(node, ast.Name) and node.id in ("super", "__class__")
    return is_named or any(map(_names_its_class, ast.iter_child_nodes(node)))
