"""A pool of rollout workers: jobs in, graded trajectories out, groups kept together.

Reads jobs; makes trajectories in the order in which they end. Guarantees: every job gives one trajectory or the run
stops with the reason; the members of a group run in one worker (they share its prompt and its test runs), and groups
start in the order of the jobs; another worker runs the jobs of a lost one again, `max_attempts` times, then they are
*invalid*; after the first Ctrl-C nothing new begins, the second stops at once; closing the pool, or the death of this
process, ends every worker and sandbox; invalid episodes are held back until a valid one shows that the machine works.
"""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Self

from repairgym.config.rollout import RolloutConfig
from repairgym.errors import SandboxError
from repairgym.process_pool import WorkerFailure
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob, Grow, PolicyRef, no_growth
from repairgym.rollout.runner import never_run
from repairgym.rollout.turn_log import TurnLog
from repairgym.rollout.workers import JobsLost, Message, ProcessWorkers, Workers, WorkerSetup, WorkReport, WorkRequest
from repairgym.sizing.workers import size_workers, this_host


@dataclass
class Drain:
    """A request to start nothing new."""

    asked_at_s: float | None = None
    """Time of the request on the monotonic clock; None: no request."""

    @property
    def is_asked(self) -> bool:
        """True when nothing new shall begin."""
        return self.asked_at_s is not None

    def is_over(self, timeout_s: float) -> bool:
        """Return True when jobs in flight have had ``timeout_s`` seconds to end."""
        return self.asked_at_s is not None and time.monotonic() - self.asked_at_s > timeout_s


@contextmanager
def draining_on_interrupt() -> Iterator[Drain]:
    """Within the context, the first SIGINT sets the flag and the next raises KeyboardInterrupt."""
    drain = Drain()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield drain
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if drain.is_asked:
            raise KeyboardInterrupt
        drain.asked_at_s = time.monotonic()

    signal.signal(signal.SIGINT, handle)
    try:
        yield drain
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class FailureStreak:
    """Holds invalid episodes back until a valid one shows that the machine works."""

    def __init__(self, max_in_row: int) -> None:
        self._max_in_row = max_in_row
        self._num_in_row = 0
        self._held: list[Trajectory] = []

    def admit(self, trajectory: Trajectory) -> list[Trajectory]:
        """Return the episodes that can be stored now; `SandboxError` if too many are invalid, one after the other."""
        self._held.append(trajectory)
        if trajectory.verdict.is_valid:
            self._num_in_row = 0
            return self.release()
        self._num_in_row += 1
        if self._num_in_row >= self._max_in_row:
            raise SandboxError(
                f"{self._num_in_row} episodes in a row are invalid; the last: {trajectory.verdict.reason}. "
                "Run `repairgym doctor`, fix the cause, then resume: they are run again"
            )
        return []

    def release(self) -> list[Trajectory]:
        """Return the held trajectories; the count continues, so that a run of small steps stops as well."""
        held, self._held = self._held, []
        return held

    def forget(self) -> None:
        """Drop the held trajectories of a stopped call."""
        self._held = []


_DRAIN_POLL_S = 1.0


class WorkerPool:
    """Hands jobs to workers, started on first use. Use as a context manager."""

    def __init__(
        self, setup: WorkerSetup, workers: Workers | None = None, on_loss: Callable[[str], None] = lambda text: None
    ) -> None:
        """``workers``: processes of this machine by default; ``on_loss`` hears of each lost worker in words."""
        setup = replace(setup, config=size_workers(setup.config, [this_host()]))
        self._config = setup.config
        self._workers = workers or ProcessWorkers(setup)
        self._on_loss = on_loss
        self._failures = FailureStreak(setup.config.max_failures_in_row)
        self._drain = Drain()
        self._reports: dict[Hashable, WorkReport] = {}
        self._losses = Counter[str]()
        """Trajectory id -> losses in a row without a new turn."""
        self._turn_log = TurnLog(Path(setup.turns_folder)) if setup.turns_folder else None
        self._num_logged: dict[str, int] = {}
        self._homes: dict[str, Hashable] = {}
        """Group whose states are kept -> the worker that has them."""
        self._num_lost_workers = 0
        self._num_retried = 0

    @property
    def is_draining(self) -> bool:
        """True after Ctrl-C, while episodes in flight end."""
        return self._drain.is_asked

    @property
    def config(self) -> RolloutConfig:
        """Settings of the episodes."""
        return self._config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, policy: PolicyRef, jobs: Sequence[EpisodeJob], tasks: Mapping[str, Task], grow: Grow = no_growth
    ) -> Iterator[Trajectory]:
        """Run all ``jobs`` and what ``grow`` adds, which is next in line; yields trajectories as they end.

        Raises:
            SandboxError: too many invalid episodes in a row, also because their workers died.
            RepairGymError: a worker was stopped by it.
            KeyboardInterrupt: Ctrl-C, after the episodes in flight have been yielded or `drain_timeout_s` is over.
        """
        if jobs:
            self._workers.start()
        self._failures.forget()
        self._losses.clear()
        self._homes.clear()
        with draining_on_interrupt() as self._drain:
            for trajectory in self._run(policy, _portions(jobs), tasks, grow):
                yield from self._failures.admit(trajectory)
            yield from self._failures.release()
            if self._drain.is_asked:
                raise KeyboardInterrupt

    def _run(
        self, policy: PolicyRef, waiting: list[tuple[EpisodeJob, ...]], tasks: Mapping[str, Task], grow: Grow
    ) -> Iterator[Trajectory]:
        load = Counter[Hashable]()
        while not self._drain.is_over(self.config.drain_timeout_s):
            if not self._drain.is_asked:
                self._hand_out(policy, waiting, tasks, load)
            load = +load
            if not load and (self._drain.is_asked or not waiting):
                return
            for worker, message in self._workers.receive(load.keys(), _DRAIN_POLL_S):
                if isinstance(message, Trajectory):
                    waiting += _portions(grow(message))
                    yield message
                elif isinstance(message, JobsLost):
                    load[worker] -= len(message.jobs)
                    for trajectory in self._retry(message, policy, waiting):
                        waiting += _portions(grow(trajectory))
                        yield trajectory
                else:
                    load[worker] -= self._note(worker, message)

    def _hand_out(
        self,
        policy: PolicyRef,
        waiting: list[tuple[EpisodeJob, ...]],
        tasks: Mapping[str, Task],
        load: Counter[Hashable],
    ) -> None:
        ready = self._workers.ready()
        for worker in ready:
            while (number := self._next_for(worker, ready, waiting, load)) is not None:
                jobs = waiting.pop(number)
                self._workers.give(worker, WorkRequest(policy, jobs, {job.task_id: tasks[job.task_id] for job in jobs}))
                load[worker] += len(jobs)
                if jobs[0].is_kept:
                    self._homes[jobs[0].group_id] = worker

    def _next_for(
        self,
        worker: Hashable,
        ready: Sequence[Hashable],
        waiting: Sequence[tuple[EpisodeJob, ...]],
        load: Counter[Hashable],
    ) -> int | None:
        """Return the place of the next jobs for ``worker``, the last in the list first; None: none fits.

        Jobs whose group has states in another worker wait for that one, unless it is gone.
        """
        for number in reversed(range(len(waiting))):
            jobs = waiting[number]
            home = self._homes.get(jobs[0].group_id)
            if home in (None, worker) or home not in ready:
                room = self._room(waiting) if home is None else self.config.max_in_flight
                return number if load[worker] + len(jobs) <= max(room, len(jobs)) else None
        return None

    def _room(self, waiting: Sequence[tuple[EpisodeJob, ...]]) -> int:
        """Jobs that one worker may hold: its bound, or its share of what is left, so that workers end together."""
        return min(self.config.max_in_flight, -(-sum(map(len, waiting)) // self.config.num_workers))

    def _note(self, worker: Hashable, message: Message) -> int:
        """Take a report; returns the number of jobs that it ends."""
        if isinstance(message, WorkerFailure):
            raise message.as_error()
        assert isinstance(message, WorkReport)
        self._reports[worker] = message
        return message.num_jobs

    def _retry(self, lost: JobsLost, policy: PolicyRef, waiting: list[tuple[EpisodeJob, ...]]) -> Iterator[Trajectory]:
        """Put the lost jobs first in line; those that were lost too often end as invalid."""
        self._num_lost_workers += 1
        for job in lost.jobs:
            has_progress = self._has_progress(job.trajectory_id)
            self._losses[job.trajectory_id] = 1 if has_progress else self._losses[job.trajectory_id] + 1
        spent = [job for job in lost.jobs if self._losses[job.trajectory_id] >= self.config.max_attempts]
        again = [job for job in lost.jobs if job not in spent]
        self._num_retried += len(again)
        self._on_loss(f"{lost.reason}; {len(again)} of its episodes are run again, {len(spent)} are invalid")
        waiting += _portions(again)
        for job in spent:
            reason = f"the workers that ran it were lost {self.config.max_attempts} times; the last: {lost.reason}"
            yield never_run(job, policy.name, self.config, reason)

    def _has_progress(self, trajectory_id: str) -> bool:
        """Return True when the turns of an episode have grown since its last loss."""
        num_bytes = self._turn_log.num_bytes(trajectory_id) if self._turn_log else 0
        before, self._num_logged[trajectory_id] = self._num_logged.get(trajectory_id, 0), num_bytes
        return num_bytes > before

    def counters(self) -> dict[str, float]:
        """Counters of all workers at their last report, added up, and how many workers were lost."""
        counts = Counter[str]()
        for report in self._reports.values():
            counts.update(report.counters)
        losses = {"pool/num_lost_workers": self._num_lost_workers, "pool/num_retried_episodes": self._num_retried}
        return {**counts, **losses}

    def close(self) -> None:
        """End all workers; safe to call twice."""
        self._workers.close()
        self._reports.clear()


def _portions(jobs: Sequence[EpisodeJob]) -> list[tuple[EpisodeJob, ...]]:
    """Whole groups, the first one last."""
    return [tuple(group) for _, group in groupby(jobs, key=lambda job: job.group_id)][::-1]
