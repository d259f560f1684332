"""Names of tests in data sets, and the node ids of the same tests in our runs.

Reads the names that a record lists, the node ids of a run, and the texts of test files. Makes the runner whose names
these are, the files that hold the tests, and a map from names to node ids. Guarantees: a name that fits no test is
mapped to none, never guessed; files are parsed, not executed.
"""

import ast
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

from repairgym.records import TestRunner
from repairgym.tasks.build.test_files import file_of, function_id

SignedRunner = Literal["pytest", "django", "sympy"]
_DJANGO = re.compile(r"(?P<method>\w+) \((?P<place>\w+(?:\.\w+)+)\)")
"""unittest's name of a method; from Python 3.11 on its place repeats the method."""
_SYMPY = re.compile(r"test_\w+")
_DJANGO_FOLDER = "tests"


def runner_of(names: Iterable[str]) -> SignedRunner | None:
    """Return the runner that names its tests so; None for names of no known one."""
    known = list(names)
    if any("::" in name for name in known):
        return "pytest"
    if any(_DJANGO.fullmatch(name) for name in known):
        return "django"
    return "sympy" if all(_SYMPY.fullmatch(name) for name in known) else None


def files_of_tests(runner: SignedRunner, names: Iterable[str], changed: Iterable[str], tree: Path) -> tuple[str, ...]:
    """Return the files of ``tree`` with the tests ``names``; ``changed`` are the files of the patch of tests.

    Only pytest's names hold their file. The others are looked for in the modules that they name, and in changed files.
    """
    if runner == "pytest":
        paths: Iterable[str] = (file_of(name) for name in names if "::" in name)
    else:
        modules = (path for name in names if (path := _django_file(name, tree))) if runner == "django" else ()
        paths = (*(path for path in sorted(changed) if PurePosixPath(path).match("test*.py")), *modules)
    return tuple(path for path in dict.fromkeys(paths) if (tree / path).is_file())


def log_runner(runner: SignedRunner, command: str, files: Iterable[str]) -> TestRunner | None:
    """Return the runner of ``command`` over ``files`` whose log has the names of ``runner``; None without either."""
    tests = [_module(path) if runner == "django" else path for path in files]
    if not command or not tests:
        return None
    line = f"{command} {shlex.join(tests)}"
    return TestRunner(type="log", command=("bash", "-c", line), parser="unittest" if runner == "django" else runner)


def match_ids(
    runner: SignedRunner, official: Iterable[str], known: Iterable[str], tree: Path
) -> dict[str, tuple[str, ...]]:
    """Return official name -> node ids of a run; empty for one that the run lacks."""
    if runner == "pytest":
        return _match_node_ids(official, known)
    spelled: dict[str, list[str]] = defaultdict(list)
    described: dict[str, list[str]] = defaultdict(list)
    texts = (
        {path: _descriptions(tree / path) for path in {file_of(name) for name in known}} if runner == "django" else {}
    )
    for node_id in (name for name in known if "::" in name):
        path, _, qualified = node_id.partition("::")
        if runner == "sympy":
            spelled[qualified].append(node_id)
            continue
        case, _, method = qualified.replace("::", ".").rpartition(".")
        place = f"{_module(path)}.{case}"
        for name in (f"{method} ({place})", f"{method} ({place}.{method})"):
            spelled[name].append(node_id)
        if text := texts[path].get((case, method)):
            described[text].append(node_id)
    return {name: tuple(spelled.get(name) or described.get(name) or ()) for name in official}


def is_cut(name: str) -> bool:
    """Return True for an id of pytest that ends inside of its parameters."""
    return "[" in name and not name.endswith("]")


def _match_node_ids(official: Iterable[str], known: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Match ids of pytest.

    Data sets cut ids at a blank inside of a parameter: such an id stands for every test that begins with it and a
    blank.
    """
    names = list(known)
    same = set(names)
    by_function: dict[str, list[str]] = {}
    for name in names:
        by_function.setdefault(function_id(name), []).append(name)
    matches = {}
    for name in official:
        near = by_function.get(function_id(name), []) if is_cut(name) else []
        matches[name] = (name,) if name in same and "::" in name else tuple(n for n in near if n.startswith(f"{name} "))
    return matches


# --- Django -----------------------------------------------------------------------------------------------------------


def _module(path: str) -> str:
    """Return the module of a test file, as Django's program imports it."""
    below = PurePosixPath(path).relative_to(_DJANGO_FOLDER) if path.startswith(f"{_DJANGO_FOLDER}/") else path
    return str(PurePosixPath(below).with_suffix("")).replace("/", ".").removesuffix(".__init__")


def _django_file(name: str, tree: Path) -> str:
    """Return the file of the module in the name of a test; empty when the tree has none."""
    match = _DJANGO.fullmatch(name)
    parts = match["place"].split(".") if match else []
    for length in range(len(parts) - 1, 0, -1):
        base = "/".join((_DJANGO_FOLDER, *parts[:length]))
        for path in (f"{base}.py", f"{base}/__init__.py"):
            if (tree / path).is_file():
                return path
    return ""


def _descriptions(path: Path) -> Mapping[tuple[str, str], str]:
    """Return (class, method) -> first line of its description, which unittest shows in place of the name.

    Methods of base classes in the same file count for their subclasses.
    """
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, UnicodeDecodeError, SyntaxError):
        return {}
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    return {
        (name, method): text
        for name, node in classes.items()
        for base in reversed(list(_lineage(node, classes)))
        for method, text in _own_descriptions(base)
    }


def _lineage(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef], depth: int = 8) -> Iterator[ast.ClassDef]:
    yield node
    for base in node.bases if depth else ():
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _lineage(classes[base.id], classes, depth - 1)


def _own_descriptions(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for part in node.body:
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (ast.get_docstring(part, clean=False) or "").strip().splitlines()
            yield part.name, lines[0].strip() if lines else ""
