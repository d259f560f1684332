"""Cost of a grading against that of another version of the project: passing and failing submissions, in turns.

Each version is a process of its own over the same layers; a submission of each kind goes to one and then to the other,
so that what else the machine does hits both alike. Prints medians over the tasks of a seeded draw: milliseconds, also
of the processors (of the process, its sandboxes and their forks; it needs root and the cgroup controller `cpuacct`),
and the ratios within a round. Oracles of the replay judge are made before. Example::

    git worktree add /tmp/before 297f2a5c
    python benchmarks/grading_against.py TASKS /tmp/before --num-tasks 20
"""

import argparse
import ast
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.grader import Grader
from repairgym.records import Certificate, Task, TestRunner
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.layers.store import LayerStore

_ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")
_SETTLE_S = 0.02
KINDS = {"failing": "failed", "passing": "passed", "elsewhere": "passed"}
"""Kind of submission -> its verdict: the broken code, the repair, and the repair with another change elsewhere."""


def read_task(record: dict[str, Any]) -> Task:
    """Return the task of ``record``, whose fields an older version may not have."""
    own = {name: value for name, value in record.items() if name in Task.model_fields}
    for field, kind in (("certificate", Certificate), ("runner", TestRunner)):
        own[field] = {name: value for name, value in record[field].items() if name in kind.model_fields}
    return Task.model_validate(own)


async def serve(account: Path) -> None:
    """Grade what comes in on standard input, a line of JSON each, with the version that is imported here."""
    backend, store = NamespaceBackend(), LayerStore()

    def make_spec(task: Task, files: dict[str, str | None]) -> SandboxSpec:
        return task_layers(task, store).spec(files)

    config, judge = GradingConfig(is_cached=False), {}
    with contextlib.suppress(ImportError):  # a version before the replay judge
        from repairgym.grading.replayed import ReplayJudge

        judge = {"replay_judge": ReplayJudge.open(backend, make_spec, config, store)}
    grader = Grader(backend, make_spec, config, ExecutionCache(max_entries=0), **judge)
    while line := await asyncio.to_thread(sys.stdin.readline):
        job = json.loads(line)
        task, started, used_s = read_task(job["task"]), time.perf_counter(), _used_s(account)
        verdict = await grader.grade(task, job["files"])
        wall_s = time.perf_counter() - started
        await asyncio.sleep(_SETTLE_S)  # the sandbox ends after its last answer
        answer = {"wall_ms": 1000 * wall_s, "cpu_ms": 1000 * (_used_s(account) - used_s), "kind": str(verdict.kind)}
        print(json.dumps(answer), flush=True)
    await backend.close()


def _used_s(account: Path) -> float:
    return int((account / "cpuacct.usage").read_text()) / 1e9


class Version:
    """A process with the sources of one version."""

    def __init__(self, name: str, checkout: Path) -> None:
        self.account = _ACCOUNTS / f"grading-{os.getpid()}-{name}"
        self.account.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(self.account)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(checkout / "src")},
            preexec_fn=lambda: (self.account / "cgroup.procs").write_text("0"),
        )  # fmt: skip

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to ``job``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        with contextlib.suppress(OSError):
            self.account.rmdir()


def changed(patch: str, text: str, base: str | None, name: str) -> str:
    """Return ``text`` with a change without effect: a comment, or a statement of the module or a repaired function."""
    if patch == "elsewhere":
        return f"{text}\n_change = {name!r}\n"
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)) if patch == "passing" else ():
        if isinstance(node, ast.FunctionDef) and "".join(lines[node.lineno - 1 : node.end_lineno]) not in (base or ""):
            place = node.body[-1]
            if place.lineno > node.lineno and not getattr(place, "decorator_list", ()):
                lines.insert(place.lineno - 1, f"{' ' * place.col_offset}pass  # {name}\n")
                return "".join(lines)
    return f"{text}\n# change {name}\n"


def measure(record: dict[str, Any], versions: dict[str, Version], num_rounds: int) -> dict[str, Any]:
    """Return medians and ratios on one task; the round before the first is not counted."""
    path = next(path for path, text in record["gold_files"].items() if text is not None and path.endswith(".py"))
    row: dict[str, Any] = {"task": record["id"]}
    for patch, kind in KINDS.items():
        texts = record["base_files"] if patch == "failing" else record["gold_files"]
        seen: dict[str, list[dict[str, Any]]] = {name: [] for name in versions}
        for number in range(num_rounds + 1):
            for name in list(versions)[:: 1 if number % 2 else -1]:
                files = {**texts, path: changed(patch, texts[path], record["base_files"].get(path), f"{name}{number}")}
                answer = versions[name].ask({"task": record, "files": files})
                if answer["kind"] != kind:
                    return {**row, "unexpected": f"{patch} {name} {answer['kind']}"}
                seen[name] += [answer] if number else []
        for unit in ("wall_ms", "cpu_ms"):
            ratios = [new[unit] / old[unit] for new, old in zip(seen["now"], seen["before"], strict=True)]
            row |= {f"{patch}_{name}_{unit}": statistics.median(one[unit] for one in seen[name]) for name in seen}
            row[f"{patch}_{unit}_ratio"] = statistics.median(ratios)
    return row


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="?", help="folder of tasks")
    parser.add_argument("before", type=Path, nargs="?", help="checkout of the other version")
    parser.add_argument("--num-tasks", type=int, default=20)
    parser.add_argument("--num-rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve))
        return
    lines = (arguments.tasks / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record["source"] in ("mutations", "releases")]
    checkouts = {"before": arguments.before, "now": Path(__file__).parents[1]}
    versions = {name: Version(name, checkout) for name, checkout in checkouts.items()}
    rows = []
    for record in random.Random(arguments.seed).sample(records, arguments.num_tasks):
        rows.append(measure(record, versions, arguments.num_rounds))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    for version in versions.values():
        version.close()
    whole = [row for row in rows if "unexpected" not in row]
    print(f"{len(whole)} of {len(rows)} tasks")
    for name in list(whole[0])[1:] if whole else []:
        values = sorted(row[name] for row in whole)
        print(f"{name:<26}median {statistics.median(values):8.2f}   most {values[-1]:8.2f}")


if __name__ == "__main__":
    main()
