"""The costs of candidates, counted from what is stored of them, and what they leave of a budget.

Reads trajectories and a `Budget`; makes `Spending` records. Guarantees: equal stored candidates have equal costs, so a
resumed search stops where an unbroken one would have.
"""

from collections.abc import Iterable
from itertools import groupby

from repairgym.agent.tools.roles import is_test_run
from repairgym.config.models import Price
from repairgym.config.solving import Budget
from repairgym.ledger import Branch
from repairgym.records import Record, Trajectory

_STAGES = ("generate", "tool", "grade")
"""Stages of a chain that follow each other; the others are parts of them, or the wait for its turn."""
_UNITS = {
    "max_sampled_tokens": ("num_sampled_tokens", "sampled tokens"),
    "max_forward_tokens": ("num_forward_tokens", "forward tokens"),
    "max_test_runs": ("num_test_runs", "test runs"),
    "max_wall_s": ("wall_s", "s"),
    "max_cost_usd": ("cost_usd", "USD"),
}
"""Bound of a budget -> its spending, and its unit."""


class Spending(Record):
    """Costs of a candidate or of a search."""

    num_sampled_tokens: int = 0
    num_forward_tokens: int = 0
    num_test_runs: int = 0
    wall_s: float = 0.0
    cost_usd: float = 0.0

    def __add__(self, other: "Spending") -> "Spending":
        """Return the sum; the seconds are those of one after the other."""
        return Spending(**{name: value + getattr(other, name) for name, value in self})


def spending_of(trajectory: Trajectory, price: Price | None) -> Spending:
    """Return what a chain has used; ``price`` is that of its model, None for a local one."""
    histories = trajectory.ledger.histories
    return Spending(
        num_sampled_tokens=int(trajectory.ledger.is_action.sum()),
        num_forward_tokens=sum(end - start for branch in histories for start, end in branch.spans),
        num_test_runs=sum(map(is_test_run, trajectory.turns)) + bool(trajectory.verdict.tests),
        wall_s=round(sum(trajectory.durations_s.get(stage, 0.0) for stage in _STAGES), 3),
        cost_usd=sum(_cost_usd(trajectory, branch, price) for branch in histories) if price else 0.0,
    )


def _cost_usd(trajectory: Trajectory, branch: Branch, price: Price) -> float:
    """Return the price of the answers of one history, each after all that its prompt held."""
    total_usd = 0.0
    for start, end in (turn.action_span for turn in trajectory.turns):
        if start >= branch.start and any(first <= start < last for first, last in branch.spans):
            prompt = sum(min(last, start) - first for first, last in branch.spans if first < start)
            total_usd += price.cost_usd(prompt, 0, end - start)
    return total_usd


def total(spent: Iterable[tuple[int, Spending]]) -> Spending:
    """Return the spending of (wave, spending) pairs in the order of the waves; a wave lasts as long as its longest."""
    result = Spending()
    for _, wave in groupby(spent, key=lambda pair: pair[0]):
        members = [spending for _, spending in wave]
        longest_s = max(member.wall_s for member in members)
        result = result + sum(members, Spending()).model_copy(update={"wall_s": longest_s})
    return result


def left_of(budget: Budget, spent: Spending) -> dict[str, float]:
    """Return unit -> what is left, for each bound of ``budget``; not above 0: the bound is reached."""
    bounds = {name: bound for name, bound in budget if bound is not None}
    return {_UNITS[name][1]: bound - getattr(spent, _UNITS[name][0]) for name, bound in bounds.items()}


def describe_left(left: dict[str, float]) -> str:
    """Return what is left in words; empty without a bound."""
    return ", ".join(f"{max(0.0, amount):.4g} {unit} left" for unit, amount in left.items())
