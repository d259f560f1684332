"""Worker processes that are killed in the middle: others are started, and no job is lost or done twice."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from repairgym.config.rollout import RolloutConfig
from repairgym.process_pool import end_with_parent
from repairgym.records import Task
from repairgym.rollout.jobs import PolicyRef, make_groups
from repairgym.rollout.pool import WorkerPool
from repairgym.rollout.runner import never_run
from repairgym.rollout.workers import ProcessWorkers, WorkerSetup, WorkReport

pytestmark = pytest.mark.slow
CONFIG = RolloutConfig(num_workers=2, max_in_flight=8, max_attempts=3, max_failures_in_row=1000)
NAMES = [f"task-{number}" for number in range(6)]


def serve(connection: Connection, setup: WorkerSetup) -> None:
    """Answer each job with a line on who did it; the first process that meets the last member of task-2 dies."""
    end_with_parent()
    marker = Path(setup.turns_folder) / "dead"
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        for job in request.jobs:
            if job.trajectory_id.endswith("task-2#3") and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            connection.send(never_run(job, "p", setup.config, str(os.getpid())))
        connection.send(WorkReport(len(request.jobs), {"done": float(len(request.jobs))}))


def test_a_killed_process_is_replaced_and_its_jobs_run_elsewhere(task: Task, tmp_path: Path) -> None:
    told: list[str] = []
    setup = WorkerSetup(CONFIG, "", turns_folder=str(tmp_path))
    jobs = make_groups("p", 0, NAMES, 4, seed=1)
    tasks = {name: task.model_copy(update={"id": name}) for name in NAMES}
    with WorkerPool(setup, ProcessWorkers(setup, serve), told.append) as pool:
        ended = list(pool.run(PolicyRef("p"), jobs, tasks))
        counters = pool.counters()
        again = list(pool.run(PolicyRef("p"), make_groups("q", 0, NAMES, 4, seed=1), tasks))
    assert sorted(one.id for one in ended) == sorted(job.trajectory_id for job in jobs)
    assert len(again) == len(jobs)
    assert counters["pool/num_lost_workers"] == 1
    assert counters["pool/num_retried_episodes"] >= 1
    (said,) = told
    assert said.startswith("a rollout worker ended (exit code -9)")
