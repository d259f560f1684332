"""Map tests to the functions that they execute: one traced run of a package's selected test files.

Reads a pinned tree. Makes a `SuiteMap`. Guarantees: the map holds only fast, passing tests that can be cut out of
their file; nothing but the bound on slow tests depends on measured times.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from repairgym.errors import TaskError
from repairgym.records import TestOutcome, TestRequest, TestRun
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.build.test_files import cuttable_names, file_of, function_id, inherited_tests
from repairgym.tasks.build.validation import run_fresh


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
            f"(timed out: {run.is_timed_out}); choose other test files. Last output: {run.output_tail[-300:]}"
        )
    return SuiteMap({i: len(run.executed_functions.get(i, ())) for i in usable}, _invert(run, usable))


def _usable_ids(run: TestRun, tree: Path, max_test_s: float, is_inherited_usable: bool) -> Iterator[str]:
    own: dict[str, frozenset[str]] = {}
    for test_id, result in run.results.items():
        # A folder with a broken configuration is a result, too.
        if result.outcome is not TestOutcome.PASSED or result.duration_s > max_test_s:
            continue
        path = file_of(test_id)
        if path not in own:
            source = (tree / path).read_text(encoding="utf-8", errors="replace")
            inherited = inherited_tests(source) if is_inherited_usable else ()
            own[path] = cuttable_names(source) | {"::".join(names) for names in inherited}
        if function_id(test_id).partition("::")[2] in own[path]:
            yield test_id


def _invert(run: TestRun, usable: tuple[str, ...]) -> dict[tuple[str, int], tuple[str, ...]]:
    covering: dict[tuple[str, int], list[str]] = defaultdict(list)
    for test_id in usable:
        for function in run.executed_functions.get(test_id, ()):
            path, _, line = function.rpartition("::")
            covering[path, int(line)].append(test_id)
    return {function: tuple(test_ids) for function, test_ids in covering.items()}


def first_lines(source: str) -> dict[int, int]:
    """Return line of each ``def`` -> first line of its code object (its first decorator, if any)."""
    nodes = (n for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return {node.lineno: min([node.lineno, *(d.lineno for d in node.decorator_list)]) for node in nodes}
