"""Tests of a package: their functions as text, cut out of their files, and the functions that they execute.

Reads pytest node ids, test source and a pinned tree. Makes source without the hidden tests, and a `SuiteMap` from one
traced run. Guarantees: a cut file parses, holds none of the cut functions, and no remaining code names one; an
inherited test is masked in its class instead; the map holds only fast, passing tests that can be cut out of their file;
nothing but the bound on slow tests depends on measured times.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from repairgym.diffs.lines import source_lines
from repairgym.errors import TaskError
from repairgym.records import TestOutcome, TestRequest, TestRun
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.build.validation import run_fresh
from repairgym.tasks.javascript.syntax import cuttable_tests, is_javascript, named_functions, test_source, without_tests
from repairgym.tasks.mutation.operators import BYTE_ORDER_MARK, NOT_PARSED

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def function_id(test_id: str) -> str:
    """Return the node id without parameters: ``tests/test_a.py::test_b`` of ``tests/test_a.py::test_b[x::y]``."""
    return test_id.split("[", 1)[0]


def file_of(test_id: str) -> str:
    """Return the file part of a node id."""
    return test_id.split("::", 1)[0]


def functions_of(test_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct test functions of ``test_ids``, in order."""
    return tuple(dict.fromkeys(function_id(test_id) for test_id in test_ids))


def conftest_paths(test_paths: Iterable[str]) -> set[str]:
    """Return every path at which a ``conftest.py`` would act on ``test_paths``."""
    folders = {parent for path in test_paths for parent in PurePosixPath(path).parents}
    return {(folder / "conftest.py").as_posix() for folder in folders}


def cuttable_names(source: str) -> frozenset[str]:
    """Return functions (``test_a``, ``TestB::test_c``) that ``source`` defines and never names; none if broken."""
    tree = _parse(source)
    mentions = _mentions(tree)
    return frozenset(name for name, node, _ in walk_functions(tree) if node.name not in mentions)


@lru_cache(maxsize=64)
def inherited_tests(source: str) -> frozenset[tuple[str, str]]:
    """Return (class, test) of inherited tests that can be masked in a class of ``source``.

    Base classes of the file are left out: a mask would act on their subclasses, too.
    """
    tree = _parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    bases = {base.id for node in classes.values() for base in node.bases if isinstance(base, ast.Name)}
    mentions = _mentions(tree)
    tests = {name: _methods_of_bases(node, classes) - mentions for name, node in classes.items() if name not in bases}
    return frozenset((name, test) for name, own_tests in tests.items() for test in own_tests)


@lru_cache(maxsize=64)
def held_tests(source: str) -> frozenset[str]:
    """Return the tests of ``source`` but generated ones, those inherited from another file, and masked ones."""
    tree = _parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    inherited = {f"{name}::{test}" for name, node in classes.items() for test in _methods_of_bases(node, classes)}
    return frozenset(inherited | {name for name, _, _ in walk_functions(tree)})


def _parse(source: str) -> ast.Module:
    """Return the tree of ``source``; an empty one if it does not parse."""
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])


def _methods_of_bases(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    own = {child.name for child in node.body if isinstance(child, FunctionNode)}
    targets = [target for child in node.body if isinstance(child, ast.Assign) for target in child.targets]
    own |= {target.id for target in targets if isinstance(target, ast.Name)}
    methods: set[str] = set()
    for base in node.bases:
        if isinstance(base, ast.Name) and (parent := classes.get(base.id)):
            methods |= {child.name for child in parent.body if isinstance(child, FunctionNode)}
            methods |= _methods_of_bases(parent, {k: v for k, v in classes.items() if k != node.name})
    return {name for name in methods - own if name.startswith("test")}


def test_sources(tree: Path, test_ids: Iterable[str]) -> str:
    """Return the source of the functions of ``test_ids`` with their decorators, if their own files define them."""
    sources: list[str] = []
    for test_id in functions_of(test_ids):
        path, _, wanted = test_id.partition("::")
        source = (tree / path).read_text(encoding="utf-8", errors="replace")
        if is_javascript(path):
            sources.append(test_source(path, source, wanted))
            continue
        for name, node, _ in walk_functions(ast.parse(source)):
            if name == wanted:
                first, last = _line_range(node)
                sources.append("\n".join(source_lines(source)[first - 1 : last]))
    return "\n".join(sources)


test_sources.__test__ = False  # type: ignore[attr-defined]


def cut_from(path: str, source: str, names: Iterable[str]) -> str:
    """Return the test file ``source`` without the tests ``names`` of its language; see `cut_functions`."""
    return without_tests(path, source, names) if is_javascript(path) else cut_functions(source, names)


def held_in(path: str, source: str) -> frozenset[str]:
    """Return the tests of the file ``source`` in its language; see `held_tests`."""
    return cuttable_tests(path, source) if is_javascript(path) else held_tests(source)


def cut_functions(source: str, names: Iterable[str]) -> str:
    """Return ``source`` without the test functions ``names`` (``test_a`` or ``TestB::test_c``).

    An inherited test is masked (``test_c = None``), because other classes run it, too.

    Raises:
        TaskError: a function is not defined here (generated, or inherited from elsewhere), remaining code names it, or
            the rest does not parse.
    """
    tree = ast.parse(source)
    inherited = {"::".join(pair) for pair in inherited_tests(source)} & set(names)
    wanted = set(names) - inherited
    functions = {name: (node, parent) for name, node, parent in walk_functions(tree) if name in wanted}
    if set(functions) != wanted:
        raise TaskError(f"test functions not defined in the file itself: {', '.join(sorted(wanted - set(functions)))}")
    lines = source_lines(source, keepends=True)
    for node, _ in functions.values():
        first, last = _line_range(node)
        lines[first - 1 : last] = [""] * (last - first + 1)
    cut_nodes = {id(node) for node, _ in functions.values()}
    for _, parent in functions.values():
        if isinstance(parent, ast.ClassDef) and all(id(child) in cut_nodes for child in parent.body):
            first = _line_range(parent.body[0])[0]
            lines[first - 1] = " " * parent.body[0].col_offset + "pass\n"
    # A test whose definition is cut needs no mask, which would name it again.
    for name in sorted(inherited and inherited & held_tests("".join(lines)), reverse=True):
        _mask(tree, lines, *name.split("::"))
    text = "".join(lines)
    _check(text, wanted)
    return text


def _mask(tree: ast.Module, lines: list[str], class_name: str, test: str) -> None:
    """Mask ``test`` in ``class_name``; ``lines`` keep their numbers."""
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == class_name).body
    first = _line_range(body[0])[0]
    lines[first - 1] = f"{' ' * body[0].col_offset}{test} = None\n{lines[first - 1]}"


def walk_functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, FunctionNode, ast.AST]]:
    """Yield (name, node, parent) of each function and method, named as in node ids (``TestB::test_c``)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from walk_functions(child, f"{prefix}{child.name}::")
        elif isinstance(child, FunctionNode):
            yield prefix + child.name, child, node


def _line_range(node: ast.stmt) -> tuple[int, int]:
    decorators = [decorator.lineno for decorator in getattr(node, "decorator_list", [])]
    return min([node.lineno, *decorators]), node.end_lineno or node.lineno


def _check(text: str, cut: set[str]) -> None:
    """Check that ``text`` parses and that the functions ``cut`` are neither in it nor named."""
    names = {name.rpartition("::")[2] for name in cut}
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise TaskError(f"the test file does not parse without its hidden tests: {error}") from error
    # A walk takes longest. Only text beyond ASCII can spell a name in another way.
    is_named = not text.isascii() or any(name in text for name in names)
    mentions = names & _mentions(tree) if is_named else set()
    remaining = mentions | {name for name, _, _ in walk_functions(tree) if name in cut}
    if remaining:
        raise TaskError(f"the test file still uses {', '.join(sorted(remaining))} after it was cut out")


def _mentions(tree: ast.AST) -> set[str]:
    """Return the names and attributes in ``tree``."""
    nodes = list(ast.walk(tree))
    return {n.id for n in nodes if isinstance(n, ast.Name)} | {n.attr for n in nodes if isinstance(n, ast.Attribute)}


# --- executed functions --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SuiteMap:
    """The usable tests of a package and the functions that they execute."""

    num_executed: Mapping[str, int]
    """Usable test id -> number of functions that it executes, in collection order."""
    covering: Mapping[tuple[str, int], tuple[str, ...]]
    """(source path, first line with decorators) -> usable tests that execute the function."""

    def most_specific(self, test_ids: tuple[str, ...], num_tests: int) -> tuple[str, ...]:
        """Choose at most ``num_tests`` of ``test_ids``: many test functions, the smallest tests of each first.

        A test that executes few functions is quick and locates the bug; unlike its duration, their number is the same
        in every run.
        """
        members: dict[str, list[str]] = defaultdict(list)
        for test_id in sorted(test_ids, key=lambda i: (self.num_executed[i], i)):
            members[function_id(test_id)].append(test_id)
        ranked = sorted(
            (turn, self.num_executed[test_id], test_id) for ids in members.values() for turn, test_id in enumerate(ids)
        )
        chosen = {test_id for _, _, test_id in ranked[:num_tests]}
        return tuple(test_id for test_id in self.num_executed if test_id in chosen)


async def trace_suite(
    backend: SandboxBackend,
    spec: SandboxSpec,
    request: TestRequest,
    max_test_s: float,
    is_inherited_usable: bool = False,
) -> SuiteMap:
    """Run ``request`` (whole test files, with ``traced_paths``) once and map its usable tests; TaskError without any.

    An inherited test is usable only with ``is_inherited_usable``: it can be masked, not cut.
    """
    run = await run_fresh(backend, spec, request)
    usable = tuple(_usable_ids(run, spec.tree, max_test_s, is_inherited_usable))
    if run.is_timed_out or not usable:
        raise TaskError(
            f"the tests {', '.join(request.test_ids)} gave {len(usable)} usable tests of {len(run.results)} "
            f"(timed out: {run.is_timed_out}); they need a package, a setting or a state that is not here, or other "
            f"test files do. {_first_error(run.output_tail)}"
        )
    return SuiteMap({i: len(run.executed_functions.get(i, ())) for i in usable}, _invert(run, usable))


def _first_error(output: str) -> str:
    """Return the first line of ``output`` that names an error, and the end of it."""
    named = next((line.strip() for line in output.splitlines() if re.search(r"\w*(Error|Exception)\b", line)), "")
    return f"{f'First error: {named[:200]}. ' if named else ''}Last output: {output[-200:]}"


def _usable_ids(run: TestRun, tree: Path, max_test_s: float, is_inherited_usable: bool) -> Iterator[str]:
    own: dict[str, frozenset[str]] = {}
    for test_id, result in run.results.items():
        # A folder with a broken configuration is a result, too.
        if result.outcome is not TestOutcome.PASSED or result.duration_s > max_test_s:
            continue
        path = file_of(test_id)
        if path not in own:
            own[path] = _cuttable_in(tree, path, is_inherited_usable)
        if function_id(test_id).partition("::")[2] in own[path]:
            yield test_id


def _cuttable_in(tree: Path, path: str, is_inherited_usable: bool) -> frozenset[str]:
    try:
        source = (tree / path).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return frozenset()  # a cut file is written in UTF-8
    if is_javascript(path):
        return cuttable_tests(path, source)
    inherited = inherited_tests(source) if is_inherited_usable else ()
    return cuttable_names(source) | {"::".join(names) for names in inherited}


def _invert(run: TestRun, usable: tuple[str, ...]) -> dict[tuple[str, int], tuple[str, ...]]:
    covering: dict[tuple[str, int], list[str]] = defaultdict(list)
    for test_id in usable:
        for function in run.executed_functions.get(test_id, ()):
            path, _, line = function.rpartition("::")
            covering[path, int(line)].append(test_id)
    return {function: tuple(test_ids) for function, test_ids in covering.items()}


@lru_cache(maxsize=64)
def first_lines(path: str, source: str) -> dict[int, int]:
    """Return line of each ``def`` -> first line of its code object (its first decorator, if any).

    A file that does not parse has none.
    """
    try:
        if is_javascript(path):
            return {function.first_line: function.first_line for function in named_functions(path, source)}
        tree = ast.parse(source.removeprefix(BYTE_ORDER_MARK))
    except NOT_PARSED:
        return {}
    return {node.lineno: _line_range(node)[0] for node in ast.walk(tree) if isinstance(node, FunctionNode)}
