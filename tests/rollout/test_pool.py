"""A pool over workers that can be lost: every job gives one trajectory, whoever dies meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

import pytest

from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ClusterError, RepairGymError, SandboxError
from repairgym.process_pool import WorkerFailure
from repairgym.records import Task, Trajectory, VerdictKind
from repairgym.rollout.jobs import EpisodeJob, PolicyRef, make_groups
from repairgym.rollout.pool import WorkerPool
from repairgym.rollout.runner import never_run
from repairgym.rollout.turn_log import TurnLog
from repairgym.rollout.workers import JobsLost, Message, WorkerSetup, WorkReport, WorkRequest

CONFIG = RolloutConfig(num_workers=2, max_in_flight=4, max_attempts=3)
TASKS = ("a", "b", "c", "d")
IsLost = Callable[[int, EpisodeJob], bool]
"""How often a job was begun, and the job -> whether its worker dies now."""


class ScriptedWorkers:
    """Each round the busy workers do one job each; `is_lost` says who dies instead."""

    def __init__(self, is_lost: IsLost, make: Callable[..., Trajectory]) -> None:
        self._is_lost = is_lost
        self._make = make
        self._num_made = 0
        self.held: dict[Hashable, list[EpisodeJob]] = {}
        self.given: list[tuple[Hashable, tuple[EpisodeJob, ...]]] = []
        self.num_begun = Counter[str]()

    def start(self) -> None:
        while len(self.held) < CONFIG.num_workers:
            self.held[self._num_made] = []
            self._num_made += 1

    def ready(self) -> Sequence[Hashable]:
        return list(self.held)

    def give(self, worker: Hashable, request: WorkRequest) -> None:
        self.held[worker] += request.jobs
        self.given.append((worker, request.jobs))

    def receive(self, busy: Collection[Hashable], timeout_s: float) -> Iterable[tuple[Hashable, Message]]:
        for worker in list(busy):
            job = self.held[worker][0]
            self.num_begun[job.trajectory_id] += 1
            if self._is_lost(self.num_begun[job.trajectory_id], job):
                yield worker, JobsLost(tuple(self.held.pop(worker)), f"worker {worker} was lost")
                self.start()
            else:
                del self.held[worker][0]
                yield worker, self._make(job.trajectory_id, job.task_id, group_id=job.group_id, seed=job.seed)
                yield worker, WorkReport(1, {"cache/hits": float(self.num_begun[job.trajectory_id])})

    def close(self) -> None:
        self.held.clear()


def run(
    task: Task, make: Callable[..., Trajectory], is_lost: IsLost, config: RolloutConfig = CONFIG
) -> tuple[list[Trajectory], WorkerPool, ScriptedWorkers, list[str]]:
    workers, told = ScriptedWorkers(is_lost, make), []
    tasks = {name: task.model_copy(update={"id": name}) for name in TASKS}
    jobs = make_groups("p", 0, TASKS, 3, seed=1)
    pool = WorkerPool(WorkerSetup(config, ""), workers, told.append)
    found = list(pool.run(PolicyRef("random"), jobs, tasks))
    assert sorted(t.id for t in found) == sorted(job.trajectory_id for job in jobs)  # each once, none missing
    return found, pool, workers, told


def test_a_call_without_jobs_starts_no_worker(trajectory_maker):
    workers = ScriptedWorkers(lambda begun, job: False, trajectory_maker)
    assert list(WorkerPool(WorkerSetup(CONFIG, ""), workers).run(PolicyRef("random"), [], {})) == []
    assert workers.held == {}


def test_without_losses_groups_stay_together(task, trajectory_maker):
    _, pool, workers, told = run(task, trajectory_maker, lambda begun, job: False)
    assert [{job.group_id for job in jobs} for _, jobs in workers.given] == [{f"p/0/{name}"} for name in TASKS]
    assert told == []
    assert pool.counters()["pool/num_lost_workers"] == 0


def test_what_a_lost_worker_had_in_flight_runs_again_and_is_counted(task, trajectory_maker):
    def is_lost(num_begun: int, job: EpisodeJob) -> bool:
        return (num_begun, job.trajectory_id) == (1, "p/0/b#1")

    found, pool, workers, told = run(task, trajectory_maker, is_lost)
    assert all(t.verdict.is_valid for t in found)
    counters = pool.counters()
    assert counters["pool/num_lost_workers"] == 1
    assert counters["pool/num_retried_episodes"] == 2  # the one that it began, and the rest of its group
    assert told == ["worker 1 was lost; 2 of its episodes are run again, 0 are invalid"]
    again = next(jobs for _, jobs in workers.given[2:])
    assert [job.trajectory_id for job in again] == ["p/0/b#1", "p/0/b#2"]  # first in line, together
    assert workers.num_begun["p/0/b#0"] == 1  # what was delivered is not run again


def test_an_episode_that_is_lost_each_time_ends_as_invalid(task, trajectory_maker):
    found, pool, workers, _ = run(task, trajectory_maker, lambda begun, job: job.trajectory_id == "p/0/a#2")
    (invalid,) = [t for t in found if not t.verdict.is_valid]
    assert (invalid.id, invalid.verdict.kind) == ("p/0/a#2", VerdictKind.INVALID)
    assert invalid.verdict.reason.startswith("the workers that ran it were lost 3 times")
    assert workers.num_begun["p/0/a#2"] == CONFIG.max_attempts
    assert pool.counters()["pool/num_lost_workers"] == 3


def test_a_cluster_that_loses_everything_stops_the_run(task, trajectory_maker):
    config = CONFIG.model_copy(update={"max_attempts": 1, "max_failures_in_row": 5})
    with pytest.raises(SandboxError, match="5 episodes in a row are invalid; the last: the workers that ran it"):
        run(task, trajectory_maker, lambda begun, job: True, config)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (WorkerFailure(ClusterError("no room"), "no room"), ClusterError),
        (WorkerFailure(None, "a worker broke"), RepairGymError),
    ],
)
def test_what_stops_a_worker_stops_the_run(task, trajectory_maker, failure, error):
    class Failing(ScriptedWorkers):
        def receive(self, busy: Collection[Hashable], timeout_s: float) -> Iterable[tuple[Hashable, Message]]:
            return [(next(iter(busy)), failure)]

    pool = WorkerPool(WorkerSetup(CONFIG, ""), Failing(lambda begun, job: False, trajectory_maker))
    with pytest.raises(error, match=failure.message):
        list(pool.run(PolicyRef("random"), make_groups("p", 0, ["a"], 1, 1), {"a": task}))


def test_an_episode_that_nobody_ran_has_no_reward():
    trajectory = never_run(EpisodeJob("p/0/a#0", "p/0/a", "a", 7), "random", CONFIG, "lost")
    assert not trajectory.verdict.is_valid
    assert (trajectory.turns, trajectory.final_files, len(trajectory.ledger.token_id)) == ((), {}, 0)


@pytest.mark.parametrize("has_progress", [True, False])
def test_losses_count_only_without_a_new_turn_in_between(task, trajectory_maker, tmp_path, has_progress: bool):
    """A long episode meets more losses than a short one; as long as its turns grow, none of them ends it."""
    log = TurnLog(tmp_path)

    def is_lost(num_begun: int, job: EpisodeJob) -> bool:
        if job.trajectory_id == "p/0/a#0" and num_begun <= 8:
            if has_progress:
                log.path_of(job.trajectory_id).open("a").write("a turn\n")
            return True
        return False

    workers = ScriptedWorkers(is_lost, trajectory_maker)
    pool = WorkerPool(WorkerSetup(CONFIG, "", turns_folder=str(tmp_path)), workers)
    jobs = make_groups("p", 0, ["a"], 1, seed=1)
    (found,) = pool.run(PolicyRef("random"), jobs, {"a": task.model_copy(update={"id": "a"})})
    assert found.verdict.is_valid == has_progress
    assert workers.num_begun["p/0/a#0"] == (9 if has_progress else CONFIG.max_attempts)
