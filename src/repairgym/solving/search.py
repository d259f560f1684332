"""The search for one repair: candidates in waves until one passes the visible tests or the budget is used.

Reads visible views of tasks and a source of candidates; makes a `Solution` per task. Guarantees: nothing here has seen
a hidden test or a repair (`visible`); a search stops by stored candidates alone, so that a resumed one makes the same
choice; each task has a budget of its own.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np

from repairgym.agent.allowance import Spending
from repairgym.config.loading import flatten
from repairgym.config.solving import SolveCommandConfig
from repairgym.records import Record, Task, Verdict
from repairgym.rollout.jobs import episode_seed
from repairgym.solving.choice import Candidate, Chooser
from repairgym.solving.spending import SAMPLED, TEST_RUNS, describe_left, left_of, total
from repairgym.solving.strategies import Step, make_strategy

End = Literal["passed", "budget", "chains", "no_candidates"]
"""Reason of a search's end: a candidate passed, the budget or the number of chains is used, or the source is empty."""
Outcome = Literal["solved", "unproven", "failing", "abstained"]


class Solution(Record):
    """The answer to one task, with its evidence and the whole search."""

    task_id: str
    outcome: Outcome
    """``solved``: visible tests that failed before pass with the patch. ``unproven``: none had failed. ``failing``: the
    best of patches that fail. ``abstained``: no patch."""
    patch: str
    chosen: str
    """Id of the candidate; empty: none."""
    why: str
    strategy: str = "best_of_n"
    ended: End
    failed_before: tuple[str, ...]
    """Visible tests that fail without a patch."""
    visible_tests: tuple[str, ...]
    num_regression_tests: int
    spending: Spending
    left: dict[str, float]
    """Unit -> what is left of the budget."""
    candidates: tuple[Candidate, ...]
    """In their order; those of one wave ran at the same time."""
    settings: dict[str, str] = {}
    """Dotted settings of budget, strategy and choice, which a later call on the same run may change; empty: made before
    they were stored."""
    evaluation: Verdict | None = None
    """Verdict by hidden tests, where it was asked for; made after the choice, with no part in it."""


class TaskSearch:
    """The search of one task."""

    def __init__(self, view: Task, config: SolveCommandConfig, chooser: Chooser | None = None) -> None:
        """Begin without candidates; ``chooser`` is the one of ``config`` by default."""
        self.view = view
        self.candidates: list[Candidate] = []
        self.ended: End | None = None
        self.num_waves = 0
        self.config = config
        self._chooser = chooser or Chooser(config.choice, is_abstaining=config.is_abstaining)
        self._strategy = make_strategy(config.strategy)

    @property
    def spending(self) -> Spending:
        """Costs of its candidates."""
        return total((candidate.wave, candidate.spending) for candidate in self.candidates)

    @property
    def left(self) -> dict[str, float]:
        """Unit -> what is left of the budget."""
        return left_of(self.config.budget, self.spending)

    @property
    def num_left(self) -> int:
        """Candidates that it may still have."""
        return self.config.max_candidates - len(self.candidates)

    def plan(self) -> list[Step]:
        """Return the steps of the next wave."""
        task_seed = episode_seed(self.config.seed, self.view.id)
        generator = np.random.default_rng([task_seed, len(self.candidates)])
        return self._strategy.plan(self.candidates, generator)[: min(self.num_left, self._num_parallel())]

    def _num_parallel(self) -> int:
        """Return the number of episodes whose parts of the budget have room for two actions, or two runs; at least 1.

        Then only an episode that runs alone can pass a bound, by one action.
        """
        room = {SAMPLED: 2 * self.config.rollout.pipeline.max_action_tokens, TEST_RUNS: 2}
        left = self.left
        return max(
            1, min((math.floor(left[unit] / room[unit]) for unit in room if unit in left), default=self.num_left)
        )

    def note(self, candidates: Sequence[Candidate]) -> None:
        """Take the candidates of a wave, and decide whether it was the last."""
        self.candidates += candidates
        self.num_waves += 1
        # A pass that was there before is no evidence: then only the budget ends the search.
        is_proof = self.config.strategy.is_stopped_at_pass and bool(self.view.fail_to_pass)
        if not candidates:
            self.ended = "no_candidates"
        elif is_proof and any(candidate.is_passed for candidate in candidates):
            self.ended = "passed"
        elif any(amount <= 0 for amount in self.left.values()):
            self.ended = "budget"
        elif self.num_left <= 0:
            self.ended = "chains"

    def solution(self) -> Solution:
        """Choose among the candidates."""
        candidates = self._chooser.scored(self.candidates)
        best, why = self._chooser.choose(candidates)
        view, outcome = self.view, "abstained"
        if best is not None:
            outcome = "failing" if not best.is_passed else "solved" if view.fail_to_pass else "unproven"
        return Solution(
            task_id=view.id,
            outcome=outcome,
            patch=best.patch if best else "",
            chosen=best.id if best else "",
            why=why,
            strategy=self.config.strategy.type,
            ended=self.ended or "no_candidates",
            failed_before=view.fail_to_pass,
            visible_tests=view.visible_tests,
            num_regression_tests=len(set(view.pass_to_pass) - set(view.visible_tests)),
            spending=self.spending,
            left=self.left,
            candidates=tuple(candidates),
            settings=_settings(self.config),
        )


def _settings(config: SolveCommandConfig) -> dict[str, str]:
    """Return what decides a search, by dotted name."""
    parts = {"budget": config.budget, "strategy": config.strategy, "choice": config.choice}
    values = {name: part.model_dump(mode="json") for name, part in parts.items()}
    return dict(flatten({**values, "is_abstaining": config.is_abstaining}))


class CandidateSource(Protocol):
    """Gives candidates: episodes of a policy, or patches of a file."""

    def run(self, searches: Sequence[TaskSearch], on_end: Callable[[TaskSearch], None]) -> None:
        """Lead every search to its end; ``on_end`` hears of each one that has ended."""


def search(
    views: Sequence[Task],
    source: CandidateSource,
    config: SolveCommandConfig,
    on_end: Callable[[Solution], None] = lambda solution: None,
    chooser: Chooser | None = None,
) -> list[Solution]:
    """Search each task; ``on_end`` hears of each solution as it ends. They are returned in the order of ``views``."""
    solutions: dict[str, Solution] = {}

    def end(ended: TaskSearch) -> None:
        solutions[ended.view.id] = ended.solution()
        on_end(solutions[ended.view.id])

    source.run([TaskSearch(view, config, chooser) for view in views], end)
    return [solutions[view.id] for view in views]


def describe_budget(searches: Sequence[TaskSearch]) -> str:
    """Return what is left of the budget, over all searches that still run; empty where none does."""
    running = [it for it in searches if it.ended is None]
    if not running:
        return ""
    left = {unit: sum(max(0.0, it.left[unit]) for it in running) for unit in running[0].left}
    return describe_left(left) or f"{sum(it.num_left for it in running)} candidates left"
