"""Run episodes on the real control plane over infrastructure that fails, and check what becomes of each.

    python scripts/inject_faults.py --quick                              # 400 episodes
    nice -n 15 python scripts/inject_faults.py --folder RUN              # 10,000; the same command continues

The pool, its two worker processes, runner, grader, turn log and run store are the real ones. Sandboxes and the model
sleep (`repairgym/testing/faults.py`): start-up storms, slow starts, hangs, lost sandboxes, hosts without disk space,
clocks that were set, in sandboxes and (`time.time`) in workers, 503s, killed workers, a disk that fills up within a
record of the turn log (the kernel's own error; the run ends with it and is resumed). Every script ends with the right
repair, so a reward of 0 would be the work of a fault. Fails unless every episode is stored once, *passed* or *invalid*,
invalid ones are refilled, and the longest quarter is not cut more often than the shortest half (one-sided, 5 %). Prints
one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from repairgym.agent.pipelines.base import Pipeline
from repairgym.agent.recording import Entry
from repairgym.agent.scripted import ScriptedPolicy
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import DiskFullError, ServerDownError
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.process_pool import run_worker
from repairgym.records import Task, Trajectory, VerdictKind
from repairgym.rollout.jobs import EpisodeJob, PolicyRef, make_groups
from repairgym.rollout.pool import WorkerPool
from repairgym.rollout.rows import TrajectoryRow
from repairgym.rollout.runner import Runner
from repairgym.rollout.store import RunStore
from repairgym.rollout.turn_log import EpisodeLog, TurnLog
from repairgym.rollout.workers import ProcessWorkers, WorkerSetup, WorkReport, WorkRequest, serve_requests
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.faults import FaultPlan, Faults, FaultyBackend
from repairgym.testing.scripted import scripted_task
from repairgym.training.run import Run

_MAX_TASKS, _GROUP_SIZE = 250, 8


def detour(plan: FaultPlan, seed: int) -> int:
    """Return the number of pairs of turns before the repair of the episode with ``seed``: few of many, many of few."""
    return min(plan.max_idle, int(random.Random(seed).paretovariate(1.0)) - 1)


class FaultyPolicy(ScriptedPolicy):
    """A script that changes a note and tests, a number of times, then repairs; its server can be down."""

    def __init__(self, renderer: ChatRenderer, faults: Faults) -> None:
        super().__init__("oracle", renderer)
        self.id = "wanderer"
        self._faults = faults

    def begin_session(self, session_id: str, task: Task, seed: int, pipeline: Pipeline[Any]) -> None:
        """Make the script of one episode, and begin the faults of this attempt."""
        self._faults.begin(session_id.rpartition("~")[0])
        notes = [f"write note.py {json.dumps(f'# {seed} {at}')}" for at in range(detour(self._faults.plan, seed))]
        actions = [*(action for note in notes for action in (note, "test")), "edit < => <= @2", "test", "submit"]
        remaining = iter(actions)
        self._sessions[session_id] = (lambda observation: next(remaining), 0)

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Return the script's next action, unless the server or this process ends first."""
        plan = self._faults.plan
        await asyncio.sleep(plan.work_s)
        if self._faults.hits(plan.killed):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._faults.hits(plan.server_down):
            raise ServerDownError("503 Service Unavailable, in all attempts")
        return await super().generate(session_id, prompt_ids, sampling)

    async def recall(
        self, session_id: str, prompt_ids: list[int], sampling: SamplingParams, generation: Generation
    ) -> None:
        """Go one action of the script on."""
        await super().generate(session_id, prompt_ids, sampling)


class _FaultyLog(EpisodeLog):
    def __init__(self, path: Path, origin: str, is_full: Callable[[], bool]) -> None:
        super().__init__(path, origin)
        self._is_full = is_full

    def write(self, entry: Entry) -> None:
        if self._is_full():
            os.write(self._file, b'01234567 {"type":"sampl')  # what still found room
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, self._file)
            os.close(full)
        super().write(entry)


class FaultyTurnLog(TurnLog):
    """A turn log whose disk can be full."""

    def __init__(self, folder: Path, faults: Faults) -> None:
        super().__init__(folder)
        self._faults = faults

    def open(self, trajectory_id: str, origin: str) -> EpisodeLog:
        """Open a log as `TurnLog` does."""
        return _FaultyLog(self.path_of(trajectory_id), origin, lambda: self._faults.hits(self._faults.plan.log_full))


def set_clock(faults: Faults) -> None:
    """Set this process's clock forwards or back at about one reading in ten."""
    read, offset_s = time.time, 0.0

    def read_offset() -> float:
        nonlocal offset_s
        offset_s = faults.skewed(offset_s)
        return read() + offset_s

    time.time = read_offset


def faulty_rollout(**changes: Any) -> RolloutConfig:
    """Return the settings of a rollout that meets faults, with room for the longest episodes."""
    pipeline = {"type": "compact", "max_turns": 200, "max_len_tokens": 100_000, "time_limit_s": 600.0}
    return RolloutConfig.model_validate({"pipeline": pipeline, "max_failures_in_row": 100_000, **changes})


class FaultyWorker:
    """A worker whose sandboxes, model and turn log fail."""

    def __init__(self, setup: WorkerSetup, plan: FaultPlan) -> None:
        faults = Faults(plan, Path(setup.turns_folder).with_name("attempts"))
        set_clock(faults)
        renderer = ChatRenderer(train_tokenizer(["user assistant edit test undo submit write"] * 9, 400, 40))
        tree = Path(setup.turns_folder)
        log = FaultyTurnLog(tree, faults)
        self._runner = Runner(
            setup.config, FaultyBackend(faults), lambda task: TaskLayers(tree, tree), renderer, turn_log=log
        )
        self._policy = FaultyPolicy(renderer, faults)

    async def run(self, request: WorkRequest) -> AsyncIterator[Trajectory]:
        """Yield graded trajectories as they end."""
        async for trajectory in self._runner.run(request.jobs, request.tasks, self._policy):
            yield trajectory

    def report(self, num_jobs: int) -> WorkReport:
        """Report the counters."""
        return WorkReport(num_jobs=num_jobs, counters=self._runner.counters())

    async def close(self) -> None:
        """End the runner."""
        await self._runner.close()


def worker_main(plan: FaultPlan, connection: Connection, setup: WorkerSetup) -> None:
    """Run a worker process."""
    run_worker(connection, lambda: serve_requests(connection, FaultyWorker(setup, plan)))


def run_all(folder: Path, num_episodes: int, plan: FaultPlan, config: RolloutConfig) -> dict[str, Any]:
    """Run until every job has a valid verdict, resuming and refilling; return what was seen.

    What ``folder`` holds of an earlier call is not run again.
    """
    num_tasks = min(_MAX_TASKS, -(-num_episodes // _GROUP_SIZE))
    tasks = {f"t{number}": scripted_task(f"t{number}") for number in range(num_tasks)}
    setup = WorkerSetup(config, "", turns_folder=str(folder / "turns"))
    for name in ("turns", "attempts"):
        (folder / name).mkdir(exist_ok=True)
    seen = Seen(folder / "seen.json")
    path = folder / "run.db"
    with RunStore.open(path) if path.exists() else RunStore.create(path) as store:
        for step in range(-(-num_episodes // (num_tasks * _GROUP_SIZE))):
            jobs = make_groups("rl", step, list(tasks), _GROUP_SIZE, 1)
            is_whole = False
            while not is_whole:
                try:
                    run_some(folder, store, tasks, step, jobs, setup, plan, seen)
                except DiskFullError:
                    seen.counts["runs_ended_by_a_full_disk"] += 1
                    continue
                seen.note_first(step, store.rows(phase="rl", step=step), plan)
                num_refilled = store.drop_invalid(phase="rl", step=step)
                seen.counts["refilled"] += num_refilled
                is_whole = num_refilled == 0
                seen.save()
            assert len(store.trajectory_ids(phase="rl", step=step)) == len(jobs)
        rewards = Counter(row.reward for row in store.rows(phase="rl"))
    return {"rewards": {str(key): n for key, n in rewards.items()}, **seen.report()}


def run_some(
    folder: Path,
    store: RunStore,
    tasks: dict[str, Task],
    step: int,
    jobs: list[EpisodeJob],
    setup: WorkerSetup,
    plan: FaultPlan,
    seen: Seen,
) -> None:
    """Run what is missing of one step, in new workers."""
    with WorkerPool(setup, ProcessWorkers(setup, partial(worker_main, plan))) as pool:
        try:
            run = Run(folder, store, pool, tasks, seed=1)
            for _ in run.collect(PolicyRef("wanderer"), jobs, phase="rl", step=step):
                pass
        finally:
            seen.counts.update({name: int(count) for name, count in pool.counters().items()})


class Seen:
    """What has been counted of all calls, in a file."""

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text()) if path.exists() else {"counts": {}, "first": {}}
        self._path = path
        self.counts: Counter[str] = Counter(content["counts"])
        self._first: dict[str, list[tuple[int, str]]] = content["first"]
        """Step -> detour and, where it was cut, reason of each episode, at the first try."""

    def note_first(self, step: int, rows: list[TrajectoryRow], plan: FaultPlan) -> None:
        """Note what became of the episodes of a step, unless they are known."""
        if str(step) not in self._first:
            reasons = [row.reason[-40:] if row.verdict is VerdictKind.INVALID else "" for row in rows]
            detours = [detour(plan, row.seed) for row in rows]
            self._first[str(step)] = list(zip(detours, reasons, strict=True))
            self.save()

    def save(self) -> None:
        """Write the file."""
        self._path.write_text(json.dumps({"counts": self.counts, "first": self._first}))

    def report(self) -> dict[str, Any]:
        """Return the counts and the comparison of long and short episodes."""
        first = [one for step in self._first.values() for one in step]
        reasons = Counter(reason for _, reason in first if reason)
        return {"seen": self.counts, **_cuts([(detour, bool(reason)) for detour, reason in first]), "reasons": reasons}


def _cuts(cut: list[tuple[int, bool]]) -> dict[str, Any]:
    """Compare the longest quarter with the shortest half."""
    from scipy.stats import fisher_exact  # a second of each worker's start, which imports this file

    # Whole lengths: half of all episodes have the least one, and what ties are ordered by would decide who counts.
    ordered = sorted(detour for detour, _ in cut)
    longest_short, shortest_long = ordered[len(ordered) // 2 - 1], ordered[-(len(ordered) // 4)]
    assert longest_short < shortest_long, "too few episodes to tell long from short ones"
    short = [is_cut for detour, is_cut in cut if detour <= longest_short]
    long = [is_cut for detour, is_cut in cut if detour >= shortest_long]
    table = [[sum(part), len(part) - sum(part)] for part in (long, short)]
    return {
        "num_first": len(cut),
        "cut_of_longest": f"{table[0][0]} of {len(long)}",
        "cut_of_shortest": f"{table[1][0]} of {len(short)}",
        "p_longest_cut_more": float(fisher_exact(table, alternative="greater").pvalue),
    }


def main() -> int:
    """Run, print, and return 1 where a guarantee does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="400 episodes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep the run here, and continue what it holds")
    arguments = parser.parse_args()
    num_episodes = 400 if arguments.quick else arguments.episodes
    plan = FaultPlan(seed=arguments.seed, killed=2e-4, log_full=5e-5)
    begun, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        report = run_all(folder, num_episodes, plan, faulty_rollout(num_workers=2, max_in_flight=64))
    spent = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    report |= {
        "episodes": num_episodes,
        "seconds": round(time.monotonic() - begun),
        "processor_s": round(sum(one.ru_utime + one.ru_stime for one in spent)),
        "load": load,
    }
    print(json.dumps(report, indent=1))
    is_right = set(report["rewards"]) == {"1.0"} and report["p_longest_cut_more"] > 0.05
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
