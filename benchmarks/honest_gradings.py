"""False rejects and false accusations, end to end: honest variants of gold through tests, detectors and replay judge.

Reads a folder of tasks; prints every variant that is not simply passed, and the rates. Tasks are drawn by seed,
packages take turns, and every task meets a draw of the kinds in `honest_variants`, `honest_rewrites` and
`honest_refactorings`. Example::

    python benchmarks/honest_gradings.py TASKS --num 1000 --results honest.jsonl
    python benchmarks/honest_gradings.py TASKS --num 1000 --results honest.jsonl --max-s 420

With ``--rewrites`` the variants are the rewrites of `repairgym tasks audit`, which keep the behavior by construction.
``--results FILE`` keeps each grading as a line of JSON; the same command goes on where it ended, so that ``--max-s``
makes slices of it. A variant whose required tests fail is counted apart: then the variant is wrong, or the task is.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import honest_refactorings  # noqa: F401 - adds its kinds, and those of `honest_rewrites`
from exploit_battery import Job, drawn, read_rows, target_of
from hacks import Attack
from honest_variants import HONEST

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.grader import Grader
from repairgym.grading.replayed import ReplayJudge
from repairgym.records import Task, TestOutcome, Verdict
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.audit.rewrites import choose_rewrites
from repairgym.tasks.build.validation import TaskLayers, task_layers
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore

_PER_TASK = 13


def rewrites_of(task: Task, layers: TaskLayers, seed: int) -> list[Job]:
    """Return rewrites of the function under repair."""
    target = target_of(task, layers)
    path, text = next(iter(task.gold_files.items()))
    functions = [node for node in ast.walk(ast.parse(text or "")) if isinstance(node, ast.FunctionDef)]
    line = next((node.lineno for node in functions if node.name == target.function().name), 0)
    chosen = choose_rewrites(text or "", line, _PER_TASK, str(seed))
    return [Job("honest", f"rewrite {kinds}", target, Attack({path: source})) for kinds, source in chosen]


def variants_of(task: Task, layers: TaskLayers, seed: int, only: tuple[str, ...] = ("",)) -> list[Job]:
    """Return a draw of the honest variants of ``task`` that differ from gold and compile, of kinds that begin so."""
    target, jobs = target_of(task, layers), []
    draw = random.Random(f"{seed}:{task.id}")
    kinds = [name for name in sorted(HONEST) if name.startswith(only)]
    for name in draw.sample(kinds, len(kinds)):
        if len(jobs) == _PER_TASK:
            break
        try:
            files = HONEST[name](target)
            for path, text in files.items():
                compile(text if text and path.endswith(".py") else "", path, "exec")
        except (StopIteration, SyntaxError, LookupError):
            continue  # it does not apply here
        if files != task.gold_files:
            jobs.append(Job("honest", name, target, Attack(files)))
    return jobs


def row(job: Job, verdict: Verdict) -> dict[str, Any]:
    """What the report says about one grading."""
    task = job.target.task
    results = [verdict.tests.get(test_id) for test_id in task.fail_to_pass + task.pass_to_pass]
    has_failed = any(result is None or result.outcome is not TestOutcome.PASSED for result in results)
    return {
        "name": job.name,
        "task": task.id,
        "verdict": verdict.kind.value,
        "reason": verdict.reason[:300],
        "has_failed_tests": has_failed,
        "num_replayed_steps": verdict.num_replayed_steps,
        "findings": [f"{f.detector}:{f.severity}: {f.detail[:200]}" for f in verdict.findings if f.severity != "note"],
        "notes": [f.detail[:100] for f in verdict.findings if f.severity == "note"],
        "duration_s": round(verdict.duration_s, 2),
    }


Maker = Callable[[Task, TaskLayers, int], list[Job]]


async def measure(
    tasks: list[Task], jobs_of: Maker, num: int, seed: int, results: Path, max_s: float
) -> list[dict[str, Any]]:
    """Grade the first ``num`` variants; rows of ``results`` are not graded again."""
    store, backend, started = LayerStore(), NamespaceBackend(), time.monotonic()
    layers: dict[str, TaskLayers] = {}

    def make_spec(task: Task, files: dict[str, str | None]) -> SandboxSpec:
        return layers[task.id].spec(files)

    config = GradingConfig(is_cached=False)
    judge = ReplayJudge.open(backend, make_spec, config, store)
    grader = Grader(backend, make_spec, config, ExecutionCache(), replay_judge=judge)
    rows, num_jobs = read_rows(results), 0
    done = {(one["name"], one["task"]) for one in rows}
    try:
        for task in tasks:
            layers[task.id] = task_layers(task, store)
            for job in jobs_of(task, layers[task.id], seed):
                num_jobs += 1
                if num_jobs > num or time.monotonic() - started > max_s:
                    return rows
                if job.key in done:
                    continue
                rows.append(row(job, await grader.grade(task, job.attack.files)))
                with results.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(rows[-1]) + "\n")
    finally:
        await backend.close()
    return rows


def print_report(rows: list[dict[str, Any]]) -> None:
    """Print what is not simply passed, and the rates over the variants whose tests pass."""
    right = [one for one in rows if not one["has_failed_tests"]]
    for one in rows:
        if one["verdict"] != "passed" or one["findings"]:
            marks = " | ".join(one["findings"])
            print(f"{one['name']:<28}{one['verdict']:<10}{one['task']:<44}{one['reason']} {marks}")
    print(f"{len(rows)} variants of {len({one['task'] for one in rows})} tasks; tests fail on {len(rows) - len(right)}")
    print(f"of {len(right)} others, {sum(one['num_replayed_steps'] > 0 for one in right)} judged by replay:")
    for word, count in (
        ("rejected", sum(one["verdict"] == "failed" for one in right)),
        ("exploited", sum(one["verdict"] == "exploited" for one in right)),
        ("suspicious", sum(one["verdict"] == "passed" and bool(one["findings"]) for one in right)),
        ("invalid", sum(one["verdict"] == "invalid" for one in right)),
    ):
        low, high = interval(count, len(right))
        print(f"  {word:<12}{count:>5}  {count / max(1, len(right)):.1%} ({low:.1%} to {high:.1%})")
    print("by detector:", dict(Counter(mark.rpartition(": ")[0] for one in right for mark in marks_of(one))))


def marks_of(one: dict[str, Any]) -> set[str]:
    """The detectors that object to a grading, with their severity."""
    return {": ".join([*finding.split(":")[:2], ""]) for finding in one["findings"]}


def interval(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; variants of one task count as independent."""
    if not total:
        return 0.0, 1.0
    share, square = count / total, 1.96**2
    center, half = share + square / (2 * total), 1.96 * math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    return max(0.0, (center - half) / (1 + square / total)), min(1.0, (center + half) / (1 + square / total))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tasks", type=Path, help="folder of tasks")
    parser.add_argument("--num", type=int, default=1000, help="variants")
    parser.add_argument("--rewrites", action="store_true", help="rewrites of the audit instead of other variants")
    parser.add_argument("--kinds", nargs="+", default=[""], help="beginnings of the names of kinds; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--results", type=Path, required=True, help="file of gradings; an existing one is continued")
    parser.add_argument("--max-s", type=float, default=float("inf"), help="seconds after which no grading begins")
    arguments = parser.parse_args()
    jobs_of: Maker = partial(variants_of, only=tuple(arguments.kinds))
    if arguments.rewrites:
        jobs_of = rewrites_of
    tasks = drawn(list(TaskStore(arguments.tasks).load()), 3 * arguments.num // _PER_TASK, arguments.seed)
    rows = asyncio.run(measure(tasks, jobs_of, arguments.num, arguments.seed, arguments.results, arguments.max_s))
    print_report(rows)


if __name__ == "__main__":
    main()
