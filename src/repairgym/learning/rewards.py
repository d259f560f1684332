"""Reward shapings: from the verdicts of one group to one number per member, None where the verdict is invalid.

Reads graded trajectories. Guarantees of every shaping: an episode caught at an exploit gets the lowest number that the
shaping can give (that no token of it is praised, estimators and trainer see to: `advantages`); shapings are pure, so
the shaped rewards of a stored run follow from its trajectories and its configuration.

To add one: a configuration, a function, a line in `SHAPINGS`, a test by hand values.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from repairgym.config.algorithms import (
    AdaptThinkConfig,
    DropMomentConfig,
    PartialCreditConfig,
    RewardConfig,
    StepPenaltyConfig,
    SuspiciousDiscountConfig,
    TerminalRewardConfig,
    check_turns,
)
from repairgym.errors import ConfigError
from repairgym.inference.answers import has_thought
from repairgym.learning.state_values import state_values
from repairgym.records import Task, TestOutcome, Trajectory, Verdict, VerdictKind

Rewards = tuple[float | None, ...]
"""One per member of a group; None: invalid, in no mean and no deviation."""
RewardShaping = Callable[[Task, Sequence[Trajectory]], Rewards]
"""From a task and a group whose members all tried it to the rewards of the group, in its order."""


def terminal(config: TerminalRewardConfig, max_turns: int, task: Task, group: Sequence[Trajectory]) -> Rewards:
    """Return the terminal reward of both papers: 1 when passed, else 0 (paper B, arXiv 2508.03501, section 3.1)."""
    return raw_rewards(group)


def step_penalty(config: StepPenaltyConfig, max_turns: int, task: Task, group: Sequence[Trajectory]) -> Rewards:
    """Return paper B's soft overlong punishment in steps (arXiv 2508.03501, section 3.2, equations 3 and 4).

    R_final = R + R_length, where |tau| is the number of actions and T_max is ``max_turns``: R_length = 0 if
    |tau| < L_thr, else (L_thr - |tau|) / (T_max - L_thr), which is -1 at |tau| = T_max. The numbers lie between -1 and
    1, or between 0 and 1 where only successes are penalized.

    As written it also ranks failures: in a group without a success the shortest failure becomes the best sample, and
    with dynamic sampling on the final reward such groups are hardly ever dropped. The paper does not discuss it; the
    modes of `StepPenaltyConfig` avoid it. With ``raw_filtered`` a group of equal raw rewards keeps them: equal rewards
    drop a group.
    """

    def penalized(member: Trajectory) -> float:
        reward, over = member.verdict.reward, len(member.turns) - config.threshold_turns
        if over < 0 or (config.mode == "successes_only" and reward == 0.0):
            return reward
        return reward + max(-1.0, -over / (max_turns - config.threshold_turns))

    raw = raw_rewards(group)
    if config.mode == "raw_filtered" and len({reward for reward in raw if reward is not None}) < 2:
        return raw
    return _shape_each(group, 0.0 if config.mode == "successes_only" else -1.0, penalized)


def partial_credit(config: PartialCreditConfig, max_turns: int, task: Task, group: Sequence[Trajectory]) -> Rewards:
    """Return partial credit by tests (an idea named in paper B, arXiv 2508.03501, section 6; the rule is ours).

    A success earns 1, a failure weight * (share of ``fail_to_pass`` that passes), provided that every ``pass_to_pass``
    test still passes. So the empty patch earns nothing, and a patch that breaks something earns nothing, however much
    it fixes.
    """

    def credit(member: Trajectory) -> float:
        if member.verdict.reward > 0:
            return 1.0
        passed = {i for i, result in member.verdict.tests.items() if result.outcome is TestOutcome.PASSED}
        if not passed.issuperset(task.pass_to_pass):
            return 0.0
        return config.weight * len(passed.intersection(task.fail_to_pass)) / len(task.fail_to_pass)

    return _shape_each(group, 0.0, credit)


def suspicious_discount(
    config: SuspiciousDiscountConfig, max_turns: int, task: Task, group: Sequence[Trajectory]
) -> Rewards:
    """Return 1 for a success, 1 - discount for a doubtful one, 0 for a failure (PS-GRPO: URSA, arXiv 2501.04686).

    There a process reward model marks a sudden drop in a correct solution, which is then worth 1 - gamma; here the mark
    is a suspicious finding of the exploit detectors. Failures earn nothing either way, so the marks alone earn nothing.
    """

    def discounted(member: Trajectory) -> float:
        is_suspicious = any(finding.severity == "suspicious" for finding in member.verdict.findings)
        return member.verdict.reward * (1.0 - config.discount if is_suspicious else 1.0)

    return _shape_each(group, 0.0, discounted)


def drop_moment(config: DropMomentConfig, max_turns: int, task: Task, group: Sequence[Trajectory]) -> Rewards:
    """Return 1 for a success, 1 - discount for one with a drop moment, 0 for a failure (URSA, arXiv 2501.04686).

    With V_j the value of the state in which turn j starts, the drop is max over j of (V_j - V_{j+1}) / V_j, and a drop
    moment is one above ``threshold``. A member's own reward is left out of its values, and a branch counts only where
    it acted itself. A group of one valid member has nobody to count.

    Raises:
        ConfigError: turns have no state.
    """
    valid = [number for number, member in enumerate(group) if member.verdict.is_valid]
    if len(valid) < 2:
        return raw_rewards(group)
    states = [[turn.state for turn in group[number].turns] for number in valid]
    if any(not state for visited in states for state in visited):
        raise ConfigError(
            "reward.type='drop_moment' values the states in which turns start, and some turns have none (external "
            "agents, older stores); choose reward.type='terminal'"
        )
    rewards = [group[number].verdict.reward for number in valid]
    parents = [group[number].parent for number in valid]
    values = state_values(
        states,
        rewards,
        prior_weight=config.prior_weight,
        is_own_counted=False,
        num_shared=[parent.num_turns if parent else 0 for parent in parents],
    )
    drops = {group[number].id: _largest_drop(value) for number, value in zip(valid, values, strict=True)}

    def discounted(member: Trajectory) -> float:
        return member.verdict.reward * (1.0 - config.discount if drops[member.id] > config.threshold else 1.0)

    return _shape_each(group, 0.0, discounted)


def _largest_drop(value: np.ndarray) -> float:
    """Return the largest relative fall from one of [turns] values to the next; 0 without any."""
    falls = (value[:-1] - value[1:])[value[:-1] > 0] / value[:-1][value[:-1] > 0]
    return float(falls.max(initial=0.0))


def adapt_think(config: AdaptThinkConfig, max_turns: int, task: Task, group: Sequence[Trajectory]) -> Rewards:
    """Return the verdict's reward plus ``bonus`` times the share of turns without a thought (arXiv 2505.13417).

    As in the paper, failures have the bonus, too: in a group without a success the policy learns to think less. An
    episode without turns has no bonus.
    """

    def rewarded(member: Trajectory) -> float:
        num_short = sum(not has_thought(turn.action) for turn in member.turns)
        return member.verdict.reward + config.bonus * num_short / max(1, len(member.turns))

    return _shape_each(group, 0.0, rewarded)


SHAPINGS: dict[str, Callable[[Any, int, Task, Sequence[Trajectory]], Rewards]] = {
    "terminal": terminal,
    "step_penalty": step_penalty,
    "partial_credit": partial_credit,
    "suspicious_discount": suspicious_discount,
    "drop_moment": drop_moment,
    "adapt_think": adapt_think,
}
"""By the type of the configuration, which a shaping reads with the turns that an episode may have."""


def make_shaping(config: RewardConfig, max_turns: int) -> RewardShaping:
    """Return the shaping for episodes of at most ``max_turns`` turns; `ValueError` if a penalty would never begin."""
    check_turns(config, max_turns)
    return partial(SHAPINGS[config.type], config, max_turns)


def raw_rewards(group: Sequence[Trajectory]) -> Rewards:
    """Return the verdicts' own rewards: 1 when passed, else 0."""
    return tuple(member.verdict.reward if member.verdict.is_valid else None for member in group)


def is_exploit(verdict: Verdict) -> bool:
    """Return True when an exploit was detected, also one that did not help: a failure stays *failed* then."""
    return verdict.kind is VerdictKind.EXPLOITED or any(finding.severity == "exploit" for finding in verdict.findings)


def _shape_each(group: Sequence[Trajectory], lowest: float, value: Callable[[Trajectory], float]) -> Rewards:
    """Return ``value`` of each valid, honest member; ``lowest`` for an exploit."""
    return tuple(
        None if not member.verdict.is_valid else lowest if is_exploit(member.verdict) else value(member)
        for member in group
    )
