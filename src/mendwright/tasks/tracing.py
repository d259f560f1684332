"""Which tests exercise which function: one traced run of a package's selected test files.

Reads a pinned tree; makes a `SuiteMap`. Invariant: the map holds only tests that passed, are fast, and are defined in
the test file that they run from (so that they can be cut out of it).
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mendwright.errors import TaskError
from mendwright.records import TestOutcome, TestRequest, TestRun
from mendwright.sandbox.base import SandboxBackend, SandboxSpec
from mendwright.tasks.testfiles import file_of, function_id, function_names
from mendwright.tasks.validation import run_fresh


@dataclass(frozen=True)
class SuiteMap:
    """The usable tests of a package and the functions that they execute."""

    durations_s: Mapping[str, float]
    """Usable test id -> seconds, in collection order."""
    covering: Mapping[tuple[str, int], tuple[str, ...]]
    """(source path, first line with decorators) -> usable tests that execute the function."""

    def fastest(self, test_ids: tuple[str, ...], num_tests: int) -> tuple[str, ...]:
        """At most ``num_tests`` of ``test_ids``, as many test functions as possible, the fastest of each first."""
        rounds: dict[str, list[str]] = defaultdict(list)
        for test_id in sorted(test_ids, key=lambda i: (round(self.durations_s[i], 3), i)):
            rounds[function_id(test_id)].append(test_id)
        ranked = sorted((number, i) for ids in rounds.values() for number, i in enumerate(ids))
        chosen = {test_id for _, test_id in ranked[:num_tests]}
        return tuple(test_id for test_id in self.durations_s if test_id in chosen)


async def trace_suite(
    backend: SandboxBackend,
    spec: SandboxSpec,
    request: TestRequest,
    max_test_s: float,
) -> SuiteMap:
    """Run ``request`` (whole test files, with ``traced_paths``) once and map its usable tests.

    Raises:
        TaskError: the suite did not end in time or no test is usable.
    """
    run = await run_fresh(backend, spec, request)
    usable = {test_id: run.results[test_id].duration_s for test_id in _usable_ids(run, spec.tree, max_test_s)}
    if run.is_timed_out or not usable:
        raise TaskError(
            f"the tests {', '.join(request.test_ids)} gave {len(usable)} usable tests of {len(run.results)} "
            f"(timed out: {run.is_timed_out}); choose other test files. Last output: {run.output_tail[-300:]}"
        )
    return SuiteMap(usable, _invert(run, usable))


def _usable_ids(run: TestRun, tree: Path, max_test_s: float) -> Iterator[str]:
    own: dict[str, frozenset[str]] = {}
    for test_id, result in run.results.items():
        path = file_of(test_id)
        if path not in own:
            own[path] = function_names((tree / path).read_text(encoding="utf-8", errors="replace"))
        is_own = function_id(test_id).partition("::")[2] in own[path]
        if result.outcome is TestOutcome.PASSED and result.duration_s <= max_test_s and is_own:
            yield test_id


def _invert(run: TestRun, usable: Mapping[str, float]) -> dict[tuple[str, int], tuple[str, ...]]:
    covering: dict[tuple[str, int], list[str]] = defaultdict(list)
    for test_id in usable:
        for function in run.executed_functions.get(test_id, ()):
            path, _, line = function.rpartition("::")
            covering[path, int(line)].append(test_id)
    return {function: tuple(test_ids) for function, test_ids in covering.items()}


def first_lines(source: str) -> dict[int, int]:
    """Line of each ``def`` -> line where its code object starts (its first decorator, when it has one)."""
    nodes = (n for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return {node.lineno: min([node.lineno, *(d.lineno for d in node.decorator_list)]) for node in nodes}
