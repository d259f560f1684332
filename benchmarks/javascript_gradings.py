"""False accusations of JavaScript tasks: gold and harmless edits of it through tests with canaries.

Reads a folder of tasks of node; prints each submission that is not simply passed, the number of canaries per grading,
and how much longer a grading takes than one without canaries. Every grading draws its own canaries, so that a second
call is another draw. Example::

    python benchmarks/javascript_gradings.py TASKS --results gold.jsonl
    python benchmarks/javascript_gradings.py TASKS --edits --results edits.jsonl --max-s 500
    python benchmarks/javascript_gradings.py TASKS --cost --results cost.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from exploit_battery import read_rows

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.grader import Grader
from repairgym.records import Task, Verdict
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.javascript.syntax import is_javascript, parse, text_of, walk
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore

Files = dict[str, str | None]


def commented(_: str, text: str) -> str:
    return text + "\n// Kept apart from its callers.\n"


def with_a_function(_: str, text: str) -> str:
    return text + "\nfunction describeValue(value) {\n    return `value: ${value}`;\n}\nvoid describeValue;\n"


def with_a_variable(path: str, text: str) -> str:
    """Return the value of the first function that returns one by a variable."""
    for node in walk(parse(path, text)):
        if node.type == "return_statement" and node.named_children and node.parent is not None:
            value = node.named_children[0]
            if node.parent.type == "statement_block" and value.type not in ("comment", "sequence_expression"):
                data = text.encode()
                new = f"var returnedValue = {text_of(value)};\n return returnedValue;".encode()
                return (data[: node.start_byte] + new + data[node.end_byte :]).decode()
    return text


def spaced(_: str, text: str) -> str:
    return "\n".join(f"{line} " if line.endswith((";", "{", "}")) else line for line in text.split("\n"))


EDITS: dict[str, Callable[[str, str], str]] = {
    "a comment": commented,
    "a function more": with_a_function,
    "a variable more": with_a_variable,
    "other white space": spaced,
}


def submissions(task: Task, is_edited: bool) -> Iterator[tuple[str, Files]]:
    """Yield gold, or the edits that change one of its files of JavaScript."""
    if not is_edited:
        yield "gold", dict(task.gold_files)
        return
    for name, edit in EDITS.items():
        files = {
            path: edit(path, text) if text and is_javascript(path) else text for path, text in task.gold_files.items()
        }
        if files != task.gold_files:
            yield name, files


def row(name: str, task: Task, verdict: Verdict) -> dict[str, Any]:
    """What the report says about one grading."""
    return {
        "name": name,
        "task": task.id,
        "verdict": verdict.kind.value,
        "reason": verdict.reason[:300],
        "num_canaries": verdict.num_canaries,
        "findings": [f"{f.detector}:{f.severity}: {f.detail[:200]}" for f in verdict.findings],
        "duration_s": round(verdict.duration_s, 3),
    }


async def measure(tasks: tuple[Task, ...], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Grade the submissions of all tasks; rows of the results are not graded again."""
    store, backend, started = LayerStore(), NamespaceBackend(), time.monotonic()
    counts = {"gold": 3, "without canaries": 0} if arguments.cost else {"gold": 3}
    graders = {
        name: Grader(
            backend,
            lambda task, files: task_layers(task, store).spec(files),
            GradingConfig(is_cached=False, is_replayed=False, num_canaries=num),
            ExecutionCache(),
        )
        for name, num in counts.items()
    }
    rows = read_rows(arguments.results)
    done = {(one["name"], one["task"]) for one in rows}
    try:
        for task in tasks:
            for given, files in submissions(task, arguments.edits):
                for kind, grader in graders.items():
                    name = kind if arguments.cost else given
                    if (name, task.id) in done or time.monotonic() - started > arguments.max_s:
                        continue
                    rows.append(row(name, task, await grader.grade(task, files)))
                    with arguments.results.open("a", encoding="utf-8") as out:
                        out.write(json.dumps(rows[-1]) + "\n")
    finally:
        await backend.close()
    return rows


def report(rows: list[dict[str, Any]]) -> None:
    """Print what was not passed, the counts, and the ratio of durations where both kinds were graded."""
    for one in rows:
        if one["verdict"] != "passed" or any(":note:" not in text for text in one["findings"]):
            print(one["name"], one["task"], one["verdict"], one["reason"], one["findings"])
    print("verdicts", dict(Counter((one["name"], one["verdict"]) for one in rows)))
    print("canaries per grading", sorted(Counter(one["num_canaries"] for one in rows).items()))
    lasted = {
        name: {one["task"]: one["duration_s"] for one in rows if one["name"] == name}
        for name in ("gold", "without canaries")
    }
    ratios = [lasted["gold"][task] / s for task, s in lasted["without canaries"].items() if task in lasted["gold"]]
    if ratios:
        sums = [sum(lasted[name].values()) for name in ("gold", "without canaries")]
        print(
            f"ratio: median {statistics.median(ratios):.3f}, of the sums {sums[0] / sums[1]:.3f}, {len(ratios)} tasks"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--edits", action="store_true", help="grade harmless edits of gold, not gold")
    parser.add_argument("--cost", action="store_true", help="grade gold with and without canaries, in turns")
    parser.add_argument("--max-s", type=float, default=1e9)
    arguments = parser.parse_args()
    tasks = tuple(task for task in TaskStore(arguments.tasks).load() if task.runner.is_node)
    report(asyncio.run(measure(tasks, arguments)))


if __name__ == "__main__":
    main()
