"""The search for repairs: candidates in waves until one passes the visible tests or the budget is used.

Reads visible views of tasks and a source of candidates; makes a `Solution` per task. Guarantees: nothing here has seen
a hidden test or a repair (`visible`); a search stops by stored candidates alone, so that a resumed one makes the same
choice; each task has a budget of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from repairgym.config.solving import SolveCommandConfig
from repairgym.records import Record, Task, Verdict
from repairgym.solving.choice import Candidate, choose
from repairgym.solving.spending import Spending, describe_left, left_of, total

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
    evaluation: Verdict | None = None
    """Verdict by hidden tests, where it was asked for; made after the choice, with no part in it."""


@dataclass
class TaskSearch:
    """The search of one task."""

    view: Task
    candidates: list[Candidate] = field(default_factory=list)
    ended: End | None = None

    @property
    def spending(self) -> Spending:
        """Costs of its candidates."""
        return total((candidate.wave, candidate.spending) for candidate in self.candidates)

    def note(self, config: SolveCommandConfig, candidates: Sequence[Candidate]) -> None:
        """Take the candidates of a wave, and decide whether it was the last."""
        self.candidates += candidates
        # A pass that was there before is no evidence: then only the budget ends the search.
        is_proof = config.strategy.is_stopped_at_pass and bool(self.view.fail_to_pass)
        if not candidates:
            self.ended = "no_candidates"
        elif is_proof and any(candidate.is_passed for candidate in candidates):
            self.ended = "passed"
        elif any(amount <= 0 for amount in left_of(config.budget, self.spending).values()):
            self.ended = "budget"
        elif len(self.candidates) >= config.max_chains:
            self.ended = "chains"

    def solution(self, config: SolveCommandConfig) -> Solution:
        """Choose among the candidates."""
        best, why = choose(self.candidates, is_abstaining=config.is_abstaining)
        view, outcome = self.view, "abstained"
        if best is not None:
            outcome = "failing" if not best.is_passed else "solved" if view.fail_to_pass else "unproven"
        return Solution(
            task_id=view.id,
            outcome=outcome,
            patch=best.patch if best else "",
            chosen=best.id if best else "",
            why=why,
            ended=self.ended or "no_candidates",
            failed_before=view.fail_to_pass,
            visible_tests=view.visible_tests,
            num_regression_tests=len(set(view.pass_to_pass) - set(view.visible_tests)),
            spending=self.spending,
            left=left_of(config.budget, self.spending),
            candidates=tuple(self.candidates),
        )


class CandidateSource(Protocol):
    """Gives candidates: chains of a policy, or patches of a file."""

    def wave(self, number: int, sizes: Mapping[str, int], label: str) -> Mapping[str, Sequence[Candidate]]:
        """Return task id -> candidates of wave ``number``, at most ``sizes`` of each task; fewer: there are no more."""


def search(
    views: Sequence[Task],
    source: CandidateSource,
    config: SolveCommandConfig,
    on_end: Callable[[Solution], None] = lambda solution: None,
) -> list[Solution]:
    """Search each task; ``on_end`` hears of each solution as it ends. They are returned in the order of ``views``."""
    searches = {view.id: TaskSearch(view) for view in views}
    solutions: dict[str, Solution] = {}
    number = 0
    while running := {id_: it for id_, it in searches.items() if it.ended is None}:
        sizes = {id_: min(config.strategy.wave, config.max_chains - len(it.candidates)) for id_, it in running.items()}
        wave = source.wave(number, sizes, _label(number, list(running.values()), config))
        for id_, it in running.items():
            it.note(config, wave.get(id_, ()))
            if it.ended is not None:
                solutions[id_] = it.solution(config)
                on_end(solutions[id_])
        number += 1
    return [solutions[view.id] for view in views]


def _label(number: int, running: Sequence[TaskSearch], config: SolveCommandConfig) -> str:
    """Return the wave and what is left of the budget, over all tasks that still run."""
    lefts = [left_of(config.budget, it.spending) for it in running]
    left = {unit: sum(max(0.0, amounts[unit]) for amounts in lefts) for unit in lefts[0]}
    num_left = sum(config.max_chains - len(it.candidates) for it in running)
    return f"wave {number + 1}: {describe_left(left) or f'{num_left} chains left'}"
