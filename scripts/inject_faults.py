"""Run episodes on the real control plane over infrastructure that fails, and check what becomes of each.

    python scripts/inject_faults.py --quick               # 400 episodes
    nice -n 15 python scripts/inject_faults.py            # 10,000 episodes

The pool, its two worker processes, runner, grader, turn log and run store are the real ones. Sandboxes and the model
sleep (`repairgym/testing/faults.py`): start-up storms, slow starts, hangs, lost sandboxes, hosts without disk space,
clocks that were set, 503s, killed workers, a full disk under the turn log (the run ends with an error and is resumed).
Every script ends with the right repair, so a reward of 0 would be the work of a fault. Fails unless every episode is
stored once, *passed* or *invalid*, invalid ones are refilled, and the longest quarter is not cut more often than the
shortest half (one-sided, 5 %). Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
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

from scipy.stats import fisher_exact

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
from repairgym.rollout.jobs import PolicyRef, make_groups
from repairgym.rollout.pool import WorkerPool
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
        """Make the script of one episode."""
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
            raise DiskFullError("no space left for the turn log")
        super().write(entry)


class FaultyTurnLog(TurnLog):
    """A turn log whose disk can be full."""

    def __init__(self, folder: Path, faults: Faults) -> None:
        super().__init__(folder)
        self._faults = faults

    def open(self, trajectory_id: str, origin: str) -> EpisodeLog:
        """Open a log as `TurnLog` does."""
        self._folder.mkdir(exist_ok=True)
        path = self.path_of(trajectory_id)
        return _FaultyLog(path, origin, lambda: self._faults.hits(self._faults.plan.log_full))


def faulty_rollout(**changes: Any) -> RolloutConfig:
    """Return the settings of a rollout that meets faults, with room for the longest episodes."""
    pipeline = {"type": "compact", "max_turns": 200, "max_len_tokens": 100_000, "time_limit_s": 600.0}
    return RolloutConfig.model_validate({"pipeline": pipeline, "max_failures_in_row": 100_000, **changes})


class FaultyWorker:
    """A worker whose sandboxes, model and turn log fail."""

    def __init__(self, setup: WorkerSetup, plan: FaultPlan) -> None:
        faults = Faults(plan, stream=os.getpid())
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
    """Run until every job has a valid verdict, resuming and refilling; return what was seen."""
    num_tasks = min(_MAX_TASKS, -(-num_episodes // _GROUP_SIZE))
    tasks = {f"t{number}": scripted_task(f"t{number}") for number in range(num_tasks)}
    setup = WorkerSetup(config, "", turns_folder=str(folder / "turns"))
    (folder / "turns").mkdir()
    seen: Counter[str] = Counter()
    cut: list[tuple[int, bool]] = []
    reasons: Counter[str] = Counter()
    with RunStore.create(folder / "run.db") as store:
        for step in range(-(-num_episodes // (num_tasks * _GROUP_SIZE))):
            jobs = make_groups("rl", step, list(tasks), _GROUP_SIZE, 1)
            first = True
            while not _is_done(store, step, len(jobs)):
                try:
                    with WorkerPool(setup, ProcessWorkers(setup, partial(worker_main, plan))) as pool:
                        run = Run(folder, store, pool, tasks, seed=1)
                        found = list(run.collect(PolicyRef("wanderer"), jobs, phase="rl", step=step))
                        seen.update({name: int(count) for name, count in pool.counters().items()})
                except DiskFullError:
                    seen["runs_ended_by_a_full_disk"] += 1
                    continue
                rows = store.rows(phase="rl", step=step)
                seen.update(row.verdict.value for row in rows if row.id in {t.id for t in found})
                if first:
                    cut += [(detour(plan, row.seed), row.verdict is VerdictKind.INVALID) for row in rows]
                    reasons.update(row.reason[-40:] for row in rows if row.verdict is VerdictKind.INVALID)
                    first = False
                seen["refilled"] += store.drop_invalid(phase="rl", step=step)
        rewards = Counter(row.reward for row in store.rows(phase="rl"))
    return {
        "seen": dict(seen),
        "rewards": {str(key): n for key, n in rewards.items()},
        **_cuts(cut),
        "reasons": reasons,
    }


def _is_done(store: RunStore, step: int, num_jobs: int) -> bool:
    return len(store.trajectory_ids(phase="rl", step=step)) == num_jobs


def _cuts(cut: list[tuple[int, bool]]) -> dict[str, Any]:
    """Compare the longest quarter with the shortest half."""
    ordered = sorted(cut)
    short, long = ordered[: len(ordered) // 2], ordered[-len(ordered) // 4 :]
    table = [[sum(is_cut for _, is_cut in part), sum(not is_cut for _, is_cut in part)] for part in (long, short)]
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
    arguments = parser.parse_args()
    num_episodes = 400 if arguments.quick else arguments.episodes
    plan = FaultPlan(seed=arguments.seed, killed=2e-4, log_full=2e-5)
    begun, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        report = run_all(Path(folder), num_episodes, plan, faulty_rollout(num_workers=2, max_in_flight=64))
    report |= {"episodes": num_episodes, "seconds": round(time.monotonic() - begun), "load": load}
    print(json.dumps(report, indent=1))
    is_right = set(report["rewards"]) == {"1.0"} and report["p_longest_cut_more"] > 0.05
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
