"""Times of warm test runs of JavaScript packages, next to ``npm test`` of the same files.

Reads a folder of tasks of node; takes one task of each package, repaired. A warm run is one in a sandbox that ran the
tests before; ``npm test`` runs the framework's own command on a copy of the tree, outside of any sandbox. Both take
turns, so that the ratio is of one load. Example::

    repairgym tasks build npm --manifest catalog/npm_real.toml
    python benchmarks/node_runs.py npm
    python benchmarks/node_runs.py npm --quick --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from repairgym.records import Task
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.tasks.build.test_files import file_of
from repairgym.tasks.build.validation import graded_files, task_layers, task_request
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore

COMMANDS = {"tape": "tape", "mocha": "mocha", "node_test": "node --test", "jest": "jest", "vitest": "vitest run"}
NUM_QUICK = 6


class Times(NamedTuple):
    """Medians of one package."""

    package: str
    runner: str
    num_files: int
    num_tests: int
    warm_s: float
    npm_test_s: float


def files_of(task: Task) -> list[str]:
    """The test files of ``task``."""
    return sorted({file_of(test_id) for test_id in (*task.fail_to_pass, *task.pass_to_pass)})


def plain_copy(task: Task, store: LayerStore, folder: Path) -> dict[str, str]:
    """Make a tree that ``npm test`` runs in; return its environment variables."""
    layers = task_layers(task, store)
    shutil.copytree(layers.tree, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules"))
    for path, text in graded_files(task, dict(task.gold_files)).items():
        if text is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    os.symlink(layers.environment / "node_modules", folder / "node_modules")
    scripts = {"scripts": {"test": f"{COMMANDS[task.runner.type]} {' '.join(files_of(task))}"}}
    settings = json.loads((folder / "package.json").read_text(encoding="utf-8")) | scripts
    (folder / "package.json").write_text(json.dumps(settings), encoding="utf-8")
    return {**os.environ, "PATH": f"{layers.environment / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def npm_test(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the script ``test`` of the package in ``folder``."""
    return subprocess.run(["npm", "test"], cwd=folder, env=variables, capture_output=True, text=True, check=False)


async def times_of(task: Task, store: LayerStore, backend: NamespaceBackend, num_runs: int) -> Times:
    """Run warm and plain in turns; RuntimeError where ``npm test`` or a test of the task fails."""
    request = task_request(task)
    sandbox = await backend.create(task_layers(task, store).spec(graded_files(task, dict(task.gold_files))))
    warm, plain = list[float](), list[float]()
    try:
        with tempfile.TemporaryDirectory() as name:
            variables = plain_copy(task, store, Path(name))
            for number in range(num_runs + 1):  # the first ones warm up
                started = time.perf_counter()
                run = await sandbox.run_tests(request)
                warm.append(time.perf_counter() - started)
                started = time.perf_counter()
                done = await asyncio.to_thread(npm_test, Path(name), variables)
                plain.append(time.perf_counter() - started)
                if done.returncode and not number:
                    raise RuntimeError(f"{task.id}: npm test fails: {done.stdout[-300:]}{done.stderr[-300:]}")
    finally:
        await sandbox.close()
    medians = statistics.median(warm[1:]), statistics.median(plain[1:])
    return Times(task.provenance.package, task.runner.type, len(files_of(task)), len(run.results), *medians)


async def measure(tasks: list[Task], num_runs: int) -> tuple[list[Times], list[str]]:
    """Return the times of each package, and why others have none."""
    store, backend = LayerStore(), NamespaceBackend()
    rows, problems = list[Times](), list[str]()
    try:
        for task in tasks:
            try:
                rows.append(await times_of(task, store, backend, num_runs))
            except RuntimeError as error:
                problems.append(str(error))
    finally:
        await backend.close()
    return rows, problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--num-runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help=f"{NUM_QUICK} packages, under a minute on an idle machine")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    tasks = {task.provenance.package: task for task in TaskStore(arguments.tasks).load() if task.runner.is_node}
    chosen = [tasks[name] for name in sorted(tasks)][: NUM_QUICK if arguments.quick else None]
    rows, problems = asyncio.run(measure(chosen, arguments.num_runs))
    if arguments.json:
        print(json.dumps({"packages": [row._asdict() for row in rows], "problems": problems}, indent=2))
        return
    print(f"{'package':<28}{'runner':<11}{'files':>6}{'tests':>7}{'warm s':>8}{'npm test s':>12}{'ratio':>7}")
    for row in rows:
        ratio = row.warm_s / row.npm_test_s
        print(
            f"{row.package:<28}{row.runner:<11}{row.num_files:>6}{row.num_tests:>7}{row.warm_s:>8.2f}"
            f"{row.npm_test_s:>12.2f}{ratio:>7.2f}"
        )
    print(*problems, sep="\n")


if __name__ == "__main__":
    main()
