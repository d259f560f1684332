"""Sources of candidates: chains of a policy, and patches that other agents made.

Reads an open run, or a predictions file; makes `Candidate` records. Guarantees: workers get visible views only; chains
are stored as they end under ids that follow from wave, task and number, and a stored chain is never run again; patches
of a file keep their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from repairgym.config.models import Price
from repairgym.grading.predictions.pool import GradeRequest, GradingPool
from repairgym.grading.predictions.reading import Prediction
from repairgym.records import Task
from repairgym.rollout.jobs import PolicyRef, make_group
from repairgym.solving.choice import Candidate, make_candidate
from repairgym.solving.spending import Spending, spending_of
from repairgym.training.run import Progress, Run


class Chains:
    """Episodes of a policy."""

    def __init__(self, run: Run, views: Sequence[Task], policy: PolicyRef, phase: str, price: Price | None) -> None:
        """Use ``run`` for the episodes on ``views``; ``price`` is that of the policy's model."""
        self._views = {view.id: view for view in views}
        self._label = ""
        self._run = replace(run, tasks=self._views, progress=self._progress)
        self._shown = run.progress
        self._policy, self._phase, self._price = policy, phase, price

    def _progress(self, phase: str, done: int, total: int, detail: str) -> None:
        self._shown(phase, done, total, detail if self._run.pool.is_draining else self._label)

    def wave(self, number: int, sizes: Mapping[str, int], label: str) -> Mapping[str, Sequence[Candidate]]:
        """Run the chains of one wave."""
        self._label = label
        jobs = [
            job for id_, size in sizes.items() for job in make_group(self._phase, number, id_, size, self._run.seed)
        ]
        wave: dict[str, list[Candidate]] = {id_: [] for id_ in sizes}
        for trajectory in self._run.run_jobs(self._policy, jobs, phase=self._phase, step=number):
            view, spending = self._views[trajectory.task_id], spending_of(trajectory, self._price)
            wave[view.id].append(
                make_candidate(
                    view,
                    trajectory.id,
                    trajectory.policy_id,
                    number,
                    trajectory.final_patch,
                    trajectory.verdict,
                    spending,
                )
            )
        return wave


class Patches:
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
