"""Proof of statements: the checks of failing tests that, told alone, fail before the repair and hold after it.

Reads a task with its pinned tree. Makes, for each failing test function, its proven checks, from one run of the broken
and one of the repaired code with variants of the function: each has one check, with the steps that a statement tells or
with all other statements before it. Guarantees: a proven check fails for all tried failing cases on the broken code and
passes on the repaired one; the files of the task stay as they are.
"""

import ast
import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from repairgym.records import Task, TestOutcome, TestRun
from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.build.test_files import file_of, function_id, walk_functions
from repairgym.tasks.build.validation import graded_files, run_fresh, task_layers, task_request
from repairgym.tasks.issues.specification import Facts
from repairgym.tasks.issues.statement import Check, Proof, ProvenCheck, body_of, checks_of
from repairgym.tasks.layers.store import LayerStore

MAX_FUNCTIONS = 6
MAX_CHECKS = 4
MAX_CASES = 3
"""Failing cases of a function that are run."""
MAX_RUN_S = 30.0
Runner = Callable[[dict[str, str | None], tuple[str, ...]], Awaitable[TestRun]]
"""Runs tests with other texts of test files, on the broken or on the repaired code."""


@dataclass(frozen=True)
class _Variant:
    """A function with one check."""

    function: str
    """Id of the test function."""
    check: Check
    is_whole: bool
    """True: with all statements before the check, not with those alone that it depends on."""
    name: str
    cases: tuple[str, ...]
    """Ids of its failing cases."""


class _File(NamedTuple):
    text: str
    variants: list[_Variant]


async def prove_task(task: Task, tree: Path, store: LayerStore, backend: SandboxBackend) -> dict[str, Proof]:
    """Return the proven checks of ``task`` (see `prove`); ``tree`` is its pinned tree.

    Raises:
        SandboxError: the sandbox could not do its work.
        IndexUnavailableError: a layer is missing and no index answers.
    """
    if task.runner.is_node:
        return {}
    layers = task_layers(task, store)

    def runner(repair: dict[str, str | None] | None) -> Runner:
        async def run(texts: dict[str, str | None], ids: tuple[str, ...]) -> TestRun:
            request = task_request(task, ids)
            request = request.model_copy(update={"timeout_s": max(request.timeout_s, MAX_RUN_S)})
            return await run_fresh(backend, layers.spec({**graded_files(task, repair), **texts}), request)

        return run

    return await prove(Facts(task, tree), runner(None), runner(task.gold_files))


async def prove(facts: Facts, broken: Runner, repaired: Runner) -> dict[str, Proof]:
    """Return test function -> line of a check -> how it is proven; functions of other files are left out.

    Raises:
        SandboxError: the sandbox could not do its work.
    """
    functions = (facts.visible_functions() + facts.hidden_functions())[:MAX_FUNCTIONS]
    files = {path: _with_variants(facts, path, functions) for path in dict.fromkeys(map(file_of, functions))}
    variants = [variant for file in files.values() for variant in file.variants]
    if not variants:
        return {}
    texts: dict[str, str | None] = {path: file.text for path, file in files.items()}
    ids = tuple(case for variant in variants for case in variant.cases)
    failed, passed = await broken(texts, ids), await repaired(texts, ids)
    proven: dict[str, dict[int, ProvenCheck]] = {variant.function: {} for variant in variants}
    for variant in variants:  # those with few steps come first
        results = [failed.results.get(case) for case in variant.cases]
        is_failing = all(r is not None and r.outcome in (TestOutcome.FAILED, TestOutcome.ERROR) for r in results)
        if is_failing and all(passed.outcome(case) is TestOutcome.PASSED for case in variant.cases):
            message = results[0].message if results[0] is not None else ""
            line = variant.check.node.lineno
            proven[variant.function].setdefault(line, ProvenCheck(variant.is_whole, message))
    return dict(proven)


def _with_variants(facts: Facts, path: str, functions: Sequence[str]) -> _File:
    """Return the text of a test file with the variants of its ``functions``."""
    module = ast.parse(facts.source(path))
    nodes = {f"{path}::{name}": (node, parent) for name, node, parent in walk_functions(module)}
    variants: list[_Variant] = []
    for function in (function for function in functions if function in nodes):
        node, parent = nodes[function]
        failing = [i for i in facts.task.fail_to_pass if function_id(i) == function][:MAX_CASES]
        for number, check in enumerate(checks_of(node)[:MAX_CHECKS]):
            for is_whole in (False, True):
                name = f"{node.name}__{'whole' if is_whole else 'steps'}{number}"
                variant = copy.copy(node)
                variant.name, variant.body = name, body_of(check, node) if is_whole else _steps(check)
                parent.body.append(variant)  # type: ignore[attr-defined] # a module or class
                cases = tuple(f"{function.removesuffix(node.name)}{name}{i.removeprefix(function)}" for i in failing)
                variants.append(_Variant(function, check, is_whole, name, cases))
    return _File(ast.unparse(ast.fix_missing_locations(module)), variants)


def _steps(check: Check) -> list[ast.stmt]:
    """Return the statements that a statement of behaviour tells, and the check in its loops."""
    stmt: ast.stmt = check.node
    for loop in reversed(check.loops):
        stmt = ast.For(loop.target, loop.iter, [stmt], [])
    return [*check.steps, stmt]
