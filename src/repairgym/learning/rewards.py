"""Reward shapings: from the verdicts of one group to one number per member, None where the verdict is invalid.

Reads graded trajectories. Guarantees of every shaping: an episode caught at an exploit gets the lowest number that the
shaping can give, so its advantage is never positive; shapings are pure, so the shaped rewards of a stored run follow
from its trajectories and its configuration.

To add one: a configuration, a class with `shape`, a line in `SHAPINGS`, a test by hand values.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from repairgym.config.algorithms import (
    PartialCreditConfig,
    RewardConfig,
    StepPenaltyConfig,
    SuspiciousDiscountConfig,
    TerminalRewardConfig,
    check_turns,
)
from repairgym.records import Task, TestOutcome, Trajectory, Verdict, VerdictKind

Rewards = tuple[float | None, ...]
"""One per member of a group; None: invalid, in no mean and no deviation."""


class RewardShaping(Protocol):
    """Turns the verdicts of one group into rewards."""

    def shape(self, task: Task, group: Sequence[Trajectory]) -> Rewards:
        """Return the rewards of ``group``, whose members all tried ``task``, in its order."""
        ...


class Terminal:
    """The terminal reward of both papers: 1 when passed, else 0 (paper B, arXiv 2508.03501, section 3.1)."""

    def __init__(self, config: TerminalRewardConfig, max_turns: int) -> None:
        """Use no settings."""

    def shape(self, task: Task, group: Sequence[Trajectory]) -> Rewards:
        """Return the verdicts' own rewards."""
        return raw_rewards(group)


class StepPenalty:
    """Paper B's soft overlong punishment in steps (arXiv 2508.03501, section 3.2, equations 3 and 4).

    R_final = R + R_length, where |tau| is the number of actions: R_length = 0 if |tau| < L_thr, else
    (L_thr - |tau|) / (T_max - L_thr), which is -1 at |tau| = T_max.

    As written it also ranks failures: in a group without a success the shortest failure becomes the best sample, and
    with dynamic sampling on the final reward such groups are hardly ever dropped. The paper does not discuss it; the
    modes of `config.rewards.StepPenaltyConfig` avoid it.
    """

    def __init__(self, config: StepPenaltyConfig, max_turns: int) -> None:
        """Use ``config`` for episodes of at most ``max_turns`` turns (T_max).

        Raises:
            ValueError: the threshold is not below ``max_turns``.
        """
        check_turns(config, max_turns)
        self._config = config
        self._max_turns = max_turns

    def shape(self, task: Task, group: Sequence[Trajectory]) -> Rewards:
        """Return numbers between -1 and 1 (0 and 1 where only successes are penalized).

        With ``raw_filtered`` a group of equal raw rewards keeps them: equal rewards drop a group.
        """
        raw = raw_rewards(group)
        if self._config.mode == "raw_filtered" and len({reward for reward in raw if reward is not None}) < 2:
            return raw
        if self._config.mode == "successes_only":
            return _shape_each(group, 0.0, self._of_success)
        return _shape_each(group, -1.0, lambda member: member.verdict.reward + self.penalty(len(member.turns)))

    def _of_success(self, member: Trajectory) -> float:
        return 1.0 + self.penalty(len(member.turns)) if member.verdict.reward > 0 else 0.0

    def penalty(self, num_turns: int) -> float:
        """R_length of an episode of ``num_turns`` actions, between 0 and -1."""
        threshold = self._config.threshold_turns
        if num_turns < threshold:
            return 0.0
        return max(-1.0, (threshold - num_turns) / (self._max_turns - threshold))


class PartialCredit:
    """Partial credit by tests (an idea named in paper B, arXiv 2508.03501, section 6; the rule is ours).

    A failure earns weight * (share of ``fail_to_pass`` that passes), provided that every ``pass_to_pass`` test still
    passes. So the empty patch earns nothing, and a patch that breaks something earns nothing, however much it fixes.
    """

    def __init__(self, config: PartialCreditConfig, max_turns: int) -> None:
        """Use ``config``; ``max_turns`` is ignored."""
        self._weight = config.weight

    def shape(self, task: Task, group: Sequence[Trajectory]) -> Rewards:
        """Return 1 when passed, below ``weight`` otherwise."""

        def value(member: Trajectory) -> float:
            if member.verdict.reward > 0:
                return 1.0
            passed = {i for i, result in member.verdict.tests.items() if result.outcome is TestOutcome.PASSED}
            if not passed.issuperset(task.pass_to_pass):
                return 0.0
            return self._weight * len(passed.intersection(task.fail_to_pass)) / len(task.fail_to_pass)

        return _shape_each(group, 0.0, value)


class SuspiciousDiscount:
    """A discount for doubtful successes, in the form of PS-GRPO (URSA, arXiv 2501.04686).

    There a process reward model marks a sudden drop in a correct solution, which is then worth 1 - gamma; here the mark
    is a suspicious finding of the exploit detectors. Failures earn nothing either way, so the marks alone earn nothing.
    """

    def __init__(self, config: SuspiciousDiscountConfig, max_turns: int) -> None:
        """Use ``config``; ``max_turns`` is ignored."""
        self._discount = config.discount

    def shape(self, task: Task, group: Sequence[Trajectory]) -> Rewards:
        """Return 1 for a success, 1 - discount for a suspicious one, 0 for a failure."""

        def value(member: Trajectory) -> float:
            is_suspicious = any(finding.severity == "suspicious" for finding in member.verdict.findings)
            return member.verdict.reward * (1.0 - self._discount if is_suspicious else 1.0)

        return _shape_each(group, 0.0, value)


SHAPINGS: dict[str, Callable[[Any, int], RewardShaping]] = {
    "terminal": Terminal,
    "step_penalty": StepPenalty,
    "partial_credit": PartialCredit,
    "suspicious_discount": SuspiciousDiscount,
}
"""Type of the configuration -> shaping from (configuration, turns that an episode may have)."""


def make_shaping(config: RewardConfig, max_turns: int) -> RewardShaping:
    """Return the shaping that ``config`` names, for episodes of at most ``max_turns`` turns."""
    return SHAPINGS[config.type](config, max_turns)


def raw_rewards(group: Sequence[Trajectory]) -> Rewards:
    """Return the verdicts' own rewards: 1 when passed, else 0."""
    return tuple(member.verdict.reward if member.verdict.is_valid else None for member in group)


def is_exploit(verdict: Verdict) -> bool:
    """True when an exploit was detected, also one that did not help: a failure stays *failed* then."""
    return verdict.kind is VerdictKind.EXPLOITED or any(finding.severity == "exploit" for finding in verdict.findings)


def _shape_each(group: Sequence[Trajectory], lowest: float, value: Callable[[Trajectory], float]) -> Rewards:
    """``value`` of each valid, honest member; ``lowest`` for an exploit."""
    return tuple(
        None if not member.verdict.is_valid else lowest if is_exploit(member.verdict) else value(member)
        for member in group
    )
