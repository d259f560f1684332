"""The costs of candidates, counted from what is stored of them, and what they leave of a budget.

Reads trajectories and a `Budget`; makes `Spending` records. Guarantees: equal stored candidates have equal costs, so a
resumed search stops where an unbroken one would have.
"""

from collections.abc import Iterable
from itertools import groupby

from repairgym.agent.allowance import Allowance, Spending, seconds_of, spend
from repairgym.config.models import Price
from repairgym.config.solving import Budget
from repairgym.records import Trajectory
from repairgym.rollout.jobs import num_shared_turns

_STAGES = ("generate", "tool", "grade")
"""Stages of a chain that follow each other; the others are parts of them, or the wait for its turn."""
SAMPLED, TEST_RUNS = "sampled tokens", "test runs"
_UNITS = {
    "max_sampled_tokens": ("num_sampled_tokens", SAMPLED),
    "max_forward_tokens": ("num_forward_tokens", "forward tokens"),
    "max_test_runs": ("num_test_runs", TEST_RUNS),
    "max_wall_s": ("wall_s", "s"),
    "max_cost_usd": ("cost_usd", "USD"),
}
"""Bound of a budget -> its spending, and its unit."""


def spending_of(trajectory: Trajectory, price: Price | None) -> Spending:
    """Return what a candidate has used, without the turns of its parent; ``price`` is that of its model."""
    num_shared = num_shared_turns(trajectory)
    own = spend(trajectory.turns, num_shared, trajectory.ledger, price)
    stages_s = sum(trajectory.durations_s.get(stage, 0.0) for stage in _STAGES)
    return own.model_copy(
        update={
            "num_test_runs": own.num_test_runs + bool(trajectory.verdict.tests),
            "wall_s": round(max(0.0, stages_s - seconds_of(trajectory.turns[:num_shared])), 3),
        }
    )


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


def allowance_of(
    budget: Budget, spent: Spending, num_jobs: int, max_turns: int | None, price: Price | None, action_tokens: int
) -> Allowance:
    """Return the part of what is left that each of ``num_jobs`` episodes gets which run at the same time.

    Where there are several, the last action, of at most ``action_tokens``, is within the part.
    """

    def part(name: str, divisor: int) -> float | None:
        bound = getattr(budget, name)
        return None if bound is None else max(0.0, bound - getattr(spent, _UNITS[name][0])) / divisor

    divisors = dict.fromkeys(_UNITS, num_jobs) | {"max_wall_s": 1}
    bounds = {name: part(name, divisor) for name, divisor in divisors.items()}
    if num_jobs > 1 and bounds["max_sampled_tokens"] is not None:
        bounds["max_sampled_tokens"] = max(1.0, bounds["max_sampled_tokens"] - action_tokens)
    return Allowance(max_turns=max_turns, price=price, **bounds)


def describe_left(left: dict[str, float]) -> str:
    """Return what is left in words; empty without a bound."""
    return ", ".join(f"{max(0.0, amount):.4g} {unit} left" for unit, amount in left.items())
