"""Sources of candidates: chains of a policy, and patches that other agents made.

Reads an open run, or a predictions file; makes `Candidate` records. Guarantees: workers get visible views only; chains
are stored as they end under ids that follow from wave, task and number, and a stored chain is never run again; patches
of a file keep their order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from repairgym.agent.allowance import Spending
from repairgym.config.models import Price
from repairgym.errors import InputError
from repairgym.grading.predictions.pool import GradeRequest, GradingPool
from repairgym.grading.predictions.reading import Prediction
from repairgym.ledger import Parent
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob, PolicyRef, Prefix, episode_seed
from repairgym.solving.choice import Candidate, candidate_of, make_candidate
from repairgym.solving.search import TaskSearch, describe_budget
from repairgym.solving.spending import allowance_of
from repairgym.solving.strategies import Step
from repairgym.training.run import Progress, Run


class Chains:
    """Episodes of a policy: chains from the start of the task, and branches of them."""

    def __init__(self, run: Run, views: Sequence[Task], policy: PolicyRef, phase: str, price: Price | None) -> None:
        """Use ``run`` for the episodes on ``views``; ``price`` is that of the policy's model."""
        self._run = run
        self._views = {view.id: view for view in views}
        self._policy, self._phase, self._price = policy, phase, price

    def run(self, searches: Sequence[TaskSearch], on_end: Callable[[TaskSearch], None]) -> None:
        """Run what the searches plan; the next wave of a task waits for nothing but its last one."""
        shown, pool = self._run.progress, self._run.pool

        def progress(phase: str, done: int, total: int, detail: str) -> None:
            shown(phase, done, total, detail if pool.is_draining else describe_budget(searches))

        run = replace(self._run, tasks=self._views, progress=progress)
        growing = [_Growing(it, self._phase, self._price) for it in searches]
        forest = _Forest(growing, on_end)
        for _ in run.collect(self._policy, forest.jobs(), phase=self._phase, trees=forest):
            pass


class _Growing:
    """The episodes of one search."""

    def __init__(self, search: TaskSearch, phase: str, price: Price | None) -> None:
        self.search = search
        self._group_id = f"{phase}/0/{search.view.id}"
        self._config, self._price = search.config, price
        self._ended: dict[str, Trajectory] = {}
        self._parents: dict[str, Parent | None] = {}
        self._waiting: list[EpisodeJob] = []
        self.jobs: list[EpisodeJob] = []
        self.plan()

    def plan(self) -> list[EpisodeJob]:
        """Return the jobs of the next wave."""
        steps, search = self.search.plan(), self.search
        budget, action_tokens = self._config.budget, self._config.rollout.pipeline.max_action_tokens
        start, self._waiting = len(self.jobs), []
        for number, step in enumerate(steps, start):
            id_ = f"{self._group_id}#{number}"
            prefix = self._prefix(step)
            bounds = allowance_of(budget, search.spending, len(steps), step.max_turns, self._price, action_tokens)
            seed, is_kept = episode_seed(self._config.seed, id_), self._config.strategy.is_branching
            self._parents[id_] = Parent(prefix.trajectory.id, prefix.num_turns) if prefix else None
            self._waiting.append(EpisodeJob(id_, self._group_id, search.view.id, seed, prefix, is_kept, bounds))
        self.jobs += self._waiting
        return list(self._waiting)

    def _prefix(self, step: Step) -> Prefix | None:
        if step.parent is None:
            return None
        return Prefix(self._ended[self.search.candidates[step.parent].id], step.num_turns)

    def end(self, trajectory: Trajectory) -> bool:
        """Take an episode; return True when the wave is complete, and noted."""
        if trajectory.parent != self._parents[trajectory.id]:
            raise InputError(
                f"{trajectory.id} is stored with another parent than this search gives it: settings, seed or the "
                "version of the program differ; name another run folder"
            )
        self._ended[trajectory.id] = trajectory
        if not all(job.trajectory_id in self._ended for job in self._waiting):
            return False
        ended = [self._ended[job.trajectory_id] for job in self._waiting]
        wave, view = self.search.num_waves, self.search.view
        self.search.note([candidate_of(view, it, wave, self._price) for it in ended])
        if self.search.ended is not None:
            self._ended.clear()
        return True


class _Forest:
    """The episodes of all searches, as a run collects them."""

    def __init__(self, growing: Sequence[_Growing], on_end: Callable[[TaskSearch], None]) -> None:
        self._growing = {it.search.view.id: it for it in growing}
        self._on_end = on_end

    @property
    def num_jobs(self) -> int:
        """Episodes so far."""
        return sum(len(it.jobs) for it in self._growing.values())

    def jobs(self) -> list[EpisodeJob]:
        """Return all episodes so far."""
        return [job for it in self._growing.values() for job in it.jobs]

    def grow(self, trajectory: Trajectory) -> list[EpisodeJob]:
        """Take a finished episode; return those that follow."""
        growing = self._growing[trajectory.task_id]
        if not growing.end(trajectory):
            return []
        if growing.search.ended is None:
            return growing.plan()
        self._on_end(growing.search)
        return []


class Waves(ABC):
    """A source without branches, which gives the candidates of all tasks wave by wave."""

    @abstractmethod
    def wave(self, number: int, sizes: Mapping[str, int], label: str) -> Mapping[str, Sequence[Candidate]]:
        """Return task id -> candidates of wave ``number``, at most ``sizes`` of each task; fewer: there are no more."""

    def run(self, searches: Sequence[TaskSearch], on_end: Callable[[TaskSearch], None]) -> None:
        """Lead every search to its end."""
        number = 0
        while running := {it.view.id: it for it in searches if it.ended is None}:
            sizes = {id_: len(it.plan()) for id_, it in running.items()}
            wave = self.wave(number, sizes, f"wave {number + 1}: {describe_budget(searches)}")
            for id_, it in running.items():
                it.note(wave.get(id_, ()))
                if it.ended is not None:
                    on_end(it)
            number += 1


class Patches(Waves):
    """Patches of a predictions file, several per instance."""

    def __init__(
        self, predictions: Sequence[Prediction], views: Sequence[Task], pool: GradingPool, progress: Progress
    ) -> None:
        """Judge ``predictions`` for ``views`` with ``pool``."""
        self._views = {view.id: view for view in views}
        self._patches = {id_: [it for it in predictions if it.instance_id == id_] for id_ in self._views}
        self._num_taken = dict.fromkeys(self._views, 0)
        self._pool, self._progress = pool, progress

    @property
    def num_most(self) -> int:
        """Most patches of one instance."""
        return max(map(len, self._patches.values()), default=0)

    def wave(self, number: int, sizes: Mapping[str, int], label: str) -> Mapping[str, Sequence[Candidate]]:
        """Judge the next patches of each task."""
        requests, owners = [], []
        for id_, size in sizes.items():
            start = self._num_taken[id_]
            for index, prediction in enumerate(self._patches[id_][start : start + size], start):
                requests.append(GradeRequest(self._views[id_], prediction.model_patch))
                owners.append((f"{id_}#{index}", prediction))
            self._num_taken[id_] += size
        judged: dict[int, Candidate] = {}
        for index, answer in self._pool.run(requests):
            name, prediction = owners[index]
            verdict, view = answer.verdict, requests[index].task
            spending = Spending(num_test_runs=int(bool(verdict.tests)), wall_s=round(verdict.duration_s, 3))
            judged[index] = make_candidate(
                view, name, prediction.model_name_or_path, number, prediction.model_patch, verdict, spending
            )
            self._progress("judge", len(judged), len(requests), label)
        wave: dict[str, list[Candidate]] = {id_: [] for id_ in sizes}
        for index in sorted(judged):
            wave[requests[index].task.id].append(judged[index])
        return wave
