"""The conftest of the check in the sandbox that compares: the wheel and the run of the suite come from other sandboxes.

Reads ``given.json`` beside this file: ``error`` (there is no wheel) or ``wheel`` (its file name), and ``suite`` (exit
status and output). Nothing of the submission is here, and no code of the wheel runs here.
"""

import ast
import json
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
pytest.register_assert_rewrite("test_build", "test_dependencies")
import test_build  # type: ignore[import-not-found]  # noqa: E402
from packaging.specifiers import SpecifierSet  # noqa: E402


def on_import(body: "list[ast.stmt]") -> "Iterator[ast.stmt]":
    """The statements that the import of a module may run: not those of functions and classes."""
    for node in body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node
            for field in ("body", "orelse", "handlers", "finalbody"):
                yield from on_import(getattr(node, field, []))


def origin(wheel: Path, reference: str) -> "tuple[str, str]":
    """Module and name of the object of an entry point, followed through the imports of names."""
    module, _, name = reference.partition("[")[0].strip().partition(":")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for _ in names:
            base = module.replace(".", "/")
            path = next((path for path in (f"{base}.py", f"{base}/__init__.py") if path in names), None)
            nodes = on_import(ast.parse(archive.read(path)).body) if path else ()
            froms = (node for node in nodes if isinstance(node, ast.ImportFrom))
            found = [(node, one.name) for node in froms for one in node.names if (one.asname or one.name) == name]
            if not found:
                break
            package = module if path == f"{base}/__init__.py" else module.rpartition(".")[0]
            module, name = resolve_name("." * found[0][0].level + (found[0][0].module or ""), package), found[0][1]
    return module, name


def described(wheel: Path) -> "dict[str, Any]":
    """What the wheel holds; a bound on Python that means the expected one is written like it.

    A command that runs something else than the released one is written so that it cannot be loaded.
    """
    found: dict[str, Any] = test_build.describe(wheel)
    if not (HERE / "expected.json").exists():
        return found
    expected = test_build.expected()
    more = sorted(set(found["entry_points"]) - set(expected["entry_points"]))
    if more:
        raise ValueError(f"the release has no entry point {more[0]!r}")
    for place, reference in found["entry_points"].items():
        released = expected["entry_points"][place]
        extras = (reference.partition("[")[2], released.partition("[")[2])
        is_same = origin(wheel, reference) == origin(wheel, released) and extras[0] == extras[1]
        other = f"{reference} (not what the release runs)".replace("[", "(")  # what is in brackets is not looked up
        found["entry_points"][place] = released if is_same else other
    if SpecifierSet(found["requires_python"]) == SpecifierSet(expected["requires_python"]):
        found["requires_python"] = expected["requires_python"]
    return found


given = json.loads((HERE / "given.json").read_text(encoding="utf-8"))
try:
    test_build._made.append(
        test_build.BuildError(given["error"])
        if "error" in given
        else (HERE / given["wheel"], described(HERE / given["wheel"]))
    )
except Exception as error:
    test_build._made.append(test_build.BuildError(f"the wheel cannot be read: {error}"))
if (HERE / "suite.json").exists():
    import test_dependencies  # type: ignore[import-not-found]

    test_dependencies._runs.append(tuple(given["suite"]))
