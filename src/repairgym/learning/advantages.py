"""Advantages: how much better an episode, or a token, was than its baseline.

Reads the outcomes of an iteration's groups; makes one advantage per member or per turn. Guarantees of every estimator:
invalid members enter no mean and no deviation and get 0; no turn of an exploit is positive; a group that teaches
nothing gets zeros and a reason; the order is kept. With R the valid rewards of a group:

============  =========================================  ==========================================================
name          A_i                                        source
============  =========================================  ==========================================================
group         (R_i - mean(R)) / (std(R) + delta)         GRPO; paper B (arXiv 2508.03501), equation 2
dr_grpo       R_i - mean(R)                              arXiv 2503.20783
rloo          R_i - mean of the other rewards            arXiv 2402.14740
reinforce_pp  (b_i - mean(b)) / (std(b) + delta) over    arXiv 2501.03262
              all learned tokens of the iteration
gae           A_t = d_t + g_t l_t A_{t+1} of each token  arXiv 1506.02438; on two levels: RAGEN, arXiv 2504.20073
state_value   the same of each turn, values counted      after RTMC, arXiv 2604.11037; `state_values`
tree_grpo     mean over the leaves below of group's A,   Tree-GRPO, arXiv 2509.21240; `trees`
              plus the same A within their tree
tree_rl       (V(s) - V(root)) + (V(s) - V(parent))      TreeRL, arXiv 2506.11902; `trees`
self_         log pi(y_t | feedback) - log pi(y_t) of    SDPO, arXiv 2601.20802; `self_distillation`
distillation  each token, plus w times group's A
============  =========================================  ==========================================================

To add an estimator: a function, a member of `config.algorithms.AdvantageConfig`, a line in `ESTIMATORS`; the
conformance tests of `tests/learning/test_advantages.py` then run it.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from repairgym.config.algorithms import (
    AdvantageConfig,
    DrGrpoAdvantageConfig,
    GaeAdvantageConfig,
    GroupAdvantageConfig,
    ReinforcePpAdvantageConfig,
    RlooAdvantageConfig,
    SelfDistillationAdvantageConfig,
    StateValueAdvantageConfig,
    TreeGrpoAdvantageConfig,
    TreeRlAdvantageConfig,
)
from repairgym.learning.state_values import state_values
from repairgym.learning.trees import leaves_below, means_below, roots, segment_gains

DropReason = Literal["", "too_few_valid", "equal_rewards"]


@dataclass(frozen=True)
class Outcome:
    """The part of a trajectory that an estimator reads."""

    reward: float | None
    """None for an invalid verdict."""
    num_tokens: int = 1
    """Its tokens that may be learned; only means over the tokens of an iteration read it."""
    states: tuple[str, ...] = ()
    """`Turn.state` of its turns; only values of states read it."""
    num_turns: int = 0
    """Its turns, shared ones included; only estimators of trees read it."""
    parent: int = -1
    """Index in the group of the member that a branch begins like; -1: none."""
    num_shared_turns: int = 0
    """Turns that a branch has of its parent; their tokens are learned there."""
    is_exploit: bool = False
    """It was caught at an exploit: it counts in means, but is never better than expected."""


@dataclass(frozen=True)
class GroupAdvantages:
    """Advantages of one group in the order of its members."""

    values: tuple[float, ...]
    drop_reason: DropReason
    """The reason why the group teaches nothing; empty if it does."""
    of_turns: tuple[tuple[float, ...], ...] = ()
    """Advantages of each member's turns, where the estimator tells them apart; they replace ``values``, which are then
    those of the whole episode."""

    @property
    def is_dropped(self) -> bool:
        """True when every advantage is 0."""
        return self.drop_reason != ""

    def of_members(self) -> list[float | np.ndarray]:
        """Return each member's advantage: one number, or [turns] where turns have their own."""
        return [np.array(turns) for turns in self.of_turns] if self.of_turns else list(self.values)


Estimator = Callable[[Sequence[Sequence[Outcome]], Any], list[GroupAdvantages]]
"""From all groups of an iteration and the member of `config.algorithms.AdvantageConfig` that it is registered for to
the advantages of each group."""


def group_advantages(rewards: Sequence[float | None], *, delta: float = 1e-6) -> GroupAdvantages:
    """A_i = (R_i - mean(R)) / (std(R) + delta), population deviation, over the valid members (reward not None)."""

    def compare(valid: list[float]) -> list[float]:
        centered = minus_mean(valid)
        deviation = math.sqrt(math.fsum(value**2 for value in centered) / len(centered))
        return [value / (deviation + delta) for value in centered]

    return relative_to_group(rewards, compare)


def estimate_group(groups: Sequence[Sequence[Outcome]], config: GroupAdvantageConfig) -> list[GroupAdvantages]:
    """Apply `group_advantages` to each group; equal rewards drop it (DAPO's dynamic sampling)."""
    return [group_advantages(_rewards_of(group), delta=config.delta) for group in groups]


def estimate_dr_grpo(groups: Sequence[Sequence[Outcome]], config: DrGrpoAdvantageConfig) -> list[GroupAdvantages]:
    """A_i = R_i - mean(R); division by the deviation would favor groups of the easiest and the hardest tasks."""
    return [relative_to_group(_rewards_of(group), minus_mean) for group in groups]


def estimate_rloo(groups: Sequence[Sequence[Outcome]], config: RlooAdvantageConfig) -> list[GroupAdvantages]:
    """A_i = R_i - mean of the other valid rewards; without its own in the baseline the gradient is unbiased."""
    return [relative_to_group(_rewards_of(group), _minus_mean_of_others) for group in groups]


def estimate_reinforce_pp(
    groups: Sequence[Sequence[Outcome]], config: ReinforcePpAdvantageConfig
) -> list[GroupAdvantages]:
    """A_i = (b_i - mean(b)) / (std(b) + delta), b_i the reward less its group's baseline, if there is one.

    Mean and population deviation run over the learned tokens of the iteration: a trajectory counts as often as it has
    tokens. With a baseline, groups of equal rewards are dropped first (they would only dilute the deviation); without
    one, a group of equal rewards does teach, against the other groups.
    """
    raw = [_without_normalization(group, config.baseline) for group in groups]
    weighted = [
        (value, outcome.num_tokens)
        for group, advantages in zip(groups, raw, strict=True)
        for outcome, value in zip(group, advantages.values, strict=True)
        if outcome.reward is not None and not advantages.is_dropped
    ]
    num_tokens = sum(count for _, count in weighted)
    if not num_tokens:
        return raw
    mean = math.fsum(value * count for value, count in weighted) / num_tokens
    deviation = math.sqrt(math.fsum(count * (value - mean) ** 2 for value, count in weighted) / num_tokens)
    if deviation == 0.0:
        return [_zeros(len(advantages.values), advantages.drop_reason or "equal_rewards") for advantages in raw]
    scale = 1.0 / (deviation + config.delta)
    return [_normalized(group, advantages, mean, scale) for group, advantages in zip(groups, raw, strict=True)]


def estimate_gae(groups: Sequence[Sequence[Outcome]], config: GaeAdvantageConfig) -> list[GroupAdvantages]:
    """Return zeros; the trainer replaces them by `token_advantages` of the value head. All valid groups are kept."""
    return [
        _zeros(len(group), "" if any(outcome.reward is not None for outcome in group) else "too_few_valid")
        for group in groups
    ]


def estimate_state_value(
    groups: Sequence[Sequence[Outcome]], config: StateValueAdvantageConfig
) -> list[GroupAdvantages]:
    """GAE over the turns of each member with counted values; groups are dropped as by `group_advantages`.

    Without a trace and mixing A_t = V(s_{t+1}) - V(s_t), and R - V(s_t) for the last turn: they sum to R - V(s_0), of a
    branch from the state that it begins in.
    """
    return [_state_value_advantages(group, config) for group in groups]


def _state_value_advantages(group: Sequence[Outcome], config: StateValueAdvantageConfig) -> GroupAdvantages:
    relative = relative_to_group(_rewards_of(group), minus_mean if config.is_own_counted else _minus_mean_of_others)
    if relative.is_dropped:
        return relative
    values = iter(
        state_values(
            [outcome.states for outcome in group if outcome.reward is not None],
            [outcome.reward for outcome in group if outcome.reward is not None],
            prior_weight=config.prior_weight,
            is_own_counted=config.is_own_counted,
            num_shared=[outcome.num_shared_turns for outcome in group if outcome.reward is not None],
        )
    )
    of_turns, totals = [], []
    for outcome, whole in zip(group, relative.values, strict=True):
        value = np.zeros(len(outcome.states)) if outcome.reward is None else next(values)
        if outcome.reward is None or not len(value):
            of_turns.append((0.0,) * len(value))
            totals.append(whole)
            continue
        first = min(outcome.num_shared_turns, len(value) - 1)
        advantage = _turn_advantages(value, outcome.reward, config.turn_lambda)
        mixed = (1.0 - config.group_weight) * advantage + config.group_weight * whole
        mixed[:first] = 0.0
        of_turns.append(tuple(mixed.tolist()))
        totals.append(outcome.reward - float(value[first]))
    return GroupAdvantages(tuple(totals), "", tuple(of_turns))


def _turn_advantages(value: np.ndarray, reward: float, turn_lambda: float) -> np.ndarray:
    rewards = np.zeros(len(value))
    rewards[-1] = reward
    return token_advantages(value, rewards, np.arange(len(value)), GaeAdvantageConfig(turn_lambda=turn_lambda))


def token_advantages(value: np.ndarray, reward: np.ndarray, turn: np.ndarray, config: GaeAdvantageConfig) -> np.ndarray:
    """Generalized advantage estimation over the action tokens of one trajectory, on two levels.

    A_t = d_t + g_t l_t A_{t+1} with d_t = r_t + g_t V_{t+1} - V_t. From one token of a turn to the next, g and l are
    the token's discount and lambda; from the last token of a turn to the first of the next, the turn's. Tokens of
    observations are no steps. Equal numbers on both levels give plain GAE; with both of the token's at 1, as
    published, a turn is one step and its tokens share its return.

    From [N] values of the state before each learned token, [N] rewards after it (the last one has the trajectory's) and
    [N] indices of its turn to [N] float64 advantages, not normalized; ``advantages + value`` is the target of the value
    head.
    """
    is_last = np.append(turn[1:] != turn[:-1], False)
    discount = np.where(is_last, config.turn_discount, config.token_discount)
    trace = discount * np.where(is_last, config.turn_lambda, config.token_lambda)
    following = np.append(value[1:], 0.0)
    delta = reward + discount * following - value
    advantages = np.zeros(len(value))
    later = 0.0
    for at in range(len(value) - 1, -1, -1):
        later = float(delta[at] + trace[at] * later)
        advantages[at] = later
    return advantages


def estimate_tree_grpo(groups: Sequence[Sequence[Outcome]], config: TreeGrpoAdvantageConfig) -> list[GroupAdvantages]:
    """Give each turn the mean over the leaves below it of their advantage in the group plus that in their tree.

    Both advantages are those of GRPO. A tree with one valid leaf, or with equal rewards, has nothing to compare: 0.
    Without branches this is GRPO.
    """
    return [_tree_grpo_advantages(group, config) for group in groups]


def _tree_grpo_advantages(group: Sequence[Outcome], config: TreeGrpoAdvantageConfig) -> GroupAdvantages:
    rewards = _rewards_of(group)
    whole = group_advantages(rewards, delta=config.delta)
    if whole.is_dropped:
        return whole
    values, trees = np.array(whole.values), np.array(roots([outcome.parent for outcome in group]))
    for tree in set(trees.tolist()):
        places = np.flatnonzero(trees == tree)
        values[places] += group_advantages([rewards[place] for place in places], delta=config.delta).values
    numbers = [None if reward is None else float(value) for value, reward in zip(values, rewards, strict=True)]
    of_turns = [means_below(below, numbers, config.leaf_power) for below in _leaves_below(group)]
    return _of_own_turns(group, [number or 0.0 for number in numbers], of_turns)


def estimate_tree_rl(groups: Sequence[Sequence[Outcome]], config: TreeRlAdvantageConfig) -> list[GroupAdvantages]:
    """Give each segment between two branchings what it adds to the value before it, and to that of the root.

    V is the mean reward of the leaves below. The differences to the parent sum to R - V(root) over the segments of a
    leaf's path; ``global_weight`` adds V(s) - V(root). Without branches this is Dr. GRPO times 1 + ``global_weight``.
    """
    return [_tree_rl_advantages(group, config) for group in groups]


def _tree_rl_advantages(group: Sequence[Outcome], config: TreeRlAdvantageConfig) -> GroupAdvantages:
    rewards = _rewards_of(group)
    whole = relative_to_group(rewards, minus_mean)
    if whole.is_dropped:
        return whole
    valid = [reward for reward in rewards if reward is not None]
    baseline = math.fsum(valid) / len(valid)
    of_turns = []
    for below in _leaves_below(group):
        num_leaves = means_below(below, [None if reward is None else 1.0 for reward in rewards], config.leaf_power)
        of_turns.append(segment_gains(below, rewards, baseline, config.global_weight) * num_leaves)
    return _of_own_turns(group, list(whole.values), of_turns)


def _leaves_below(group: Sequence[Outcome]) -> list[np.ndarray]:
    return leaves_below(
        [outcome.parent for outcome in group],
        [outcome.num_shared_turns for outcome in group],
        [outcome.num_turns for outcome in group],
    )


def _of_own_turns(group: Sequence[Outcome], values: Sequence[float], of_turns: Sequence[np.ndarray]) -> GroupAdvantages:
    """Advantages of turns; those that a branch shares, which its parent learns, and of invalid members are 0."""
    own = []
    for outcome, advantages in zip(group, of_turns, strict=True):
        is_own = (np.arange(len(advantages)) >= outcome.num_shared_turns) & (outcome.reward is not None)
        own.append(tuple(np.where(is_own, advantages, 0.0).tolist()))
    return GroupAdvantages(tuple(values), "", tuple(own))


def estimate_self_distillation(
    groups: Sequence[Sequence[Outcome]], config: SelfDistillationAdvantageConfig
) -> list[GroupAdvantages]:
    """Return GRPO's advantages times ``group_weight``; the trainer adds those of tokens. All valid groups are kept."""
    results = []
    for group in groups:
        rewards = _rewards_of(group)
        values = tuple(config.group_weight * value for value in group_advantages(rewards, delta=config.delta).values)
        is_valid = any(reward is not None for reward in rewards)
        results.append(GroupAdvantages(values, "" if is_valid else "too_few_valid"))
    return results


ESTIMATORS: dict[str, Estimator] = {
    "group": estimate_group,
    "dr_grpo": estimate_dr_grpo,
    "rloo": estimate_rloo,
    "reinforce_pp": estimate_reinforce_pp,
    "gae": estimate_gae,
    "state_value": estimate_state_value,
    "tree_grpo": estimate_tree_grpo,
    "tree_rl": estimate_tree_rl,
    "self_distillation": estimate_self_distillation,
}


def estimate_advantages(groups: Sequence[Sequence[Outcome]], config: AdvantageConfig) -> list[GroupAdvantages]:
    """Return the advantages of an iteration's groups, in their order, by the estimator that ``config`` names."""
    estimated = ESTIMATORS[config.type](groups, config)
    return [_unpraised(group, advantages) for group, advantages in zip(groups, estimated, strict=True)]


def _unpraised(group: Sequence[Outcome], advantages: GroupAdvantages) -> GroupAdvantages:
    """Cut the advantages of exploits at 0: the lowest reward alone does not keep them below every baseline."""
    if not any(outcome.is_exploit for outcome in group):
        return advantages
    values = zip(group, advantages.values, strict=True)
    turns = zip(group, advantages.of_turns, strict=True) if advantages.of_turns else ()
    return GroupAdvantages(
        tuple(min(value, 0.0) if outcome.is_exploit else value for outcome, value in values),
        advantages.drop_reason,
        tuple(tuple(min(it, 0.0) for it in own) if outcome.is_exploit else own for outcome, own in turns),
    )


def estimate_by_origin(
    groups: Sequence[Sequence[Outcome]], origins: Sequence[Sequence[Hashable]], config: AdvantageConfig
) -> list[GroupAdvantages]:
    """Return `estimate_advantages` of the parts of each group that have one origin, put together again.

    A branch owes a part of its reward to where it began, so it is compared with those that began there. A group is
    dropped when all of its parts are.
    """
    parts = [
        (group, [number for number, key in enumerate(keys) if key == origin])
        for group, keys in enumerate(origins)
        for origin in dict.fromkeys(keys)
    ]
    estimated = estimate_advantages([[groups[group][number] for number in part] for group, part in parts], config)
    values = [[0.0] * len(group) for group in groups]
    reasons: list[list[DropReason]] = [[] for _ in groups]
    for (group, part), advantages in zip(parts, estimated, strict=True):
        reasons[group].append(advantages.drop_reason)
        for number, value in zip(part, advantages.values, strict=True):
            values[group][number] = value
    return [
        GroupAdvantages(tuple(numbers), "" if "" in why or not why else why[0])
        for numbers, why in zip(values, reasons, strict=True)
    ]


def relative_to_group(
    rewards: Sequence[float | None], compare: Callable[[list[float]], list[float]]
) -> GroupAdvantages:
    """Advantages that ``compare`` makes of the valid rewards of one group: at least two, not all equal.

    Fewer than two valid members cannot be compared and get 0, whatever their reward.
    """
    valid = [reward for reward in rewards if reward is not None]
    if len(valid) < 2:
        return _zeros(len(rewards), "too_few_valid")
    if max(valid) == min(valid):
        return _zeros(len(rewards), "equal_rewards")
    compared = iter(compare(valid))
    return GroupAdvantages(tuple(0.0 if reward is None else next(compared) for reward in rewards), "")


def _zeros(size: int, reason: DropReason) -> GroupAdvantages:
    """Return zeros; the group is dropped unless ``reason`` is empty."""
    return GroupAdvantages((0.0,) * size, reason)


def minus_mean(rewards: list[float]) -> list[float]:
    """R_i - mean(R)."""
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def _minus_mean_of_others(rewards: list[float]) -> list[float]:
    """R_i - mean of R_j over j != i, which is n / (n - 1) * (R_i - mean(R))."""
    return [centered * len(rewards) / (len(rewards) - 1) for centered in minus_mean(rewards)]


def _rewards_of(group: Sequence[Outcome]) -> list[float | None]:
    return [outcome.reward for outcome in group]


def _without_normalization(group: Sequence[Outcome], baseline: str) -> GroupAdvantages:
    rewards = _rewards_of(group)
    if baseline != "none":
        return relative_to_group(rewards, minus_mean if baseline == "group_mean" else _minus_mean_of_others)
    if all(reward is None for reward in rewards):
        return _zeros(len(rewards), "too_few_valid")
    return GroupAdvantages(tuple(reward or 0.0 for reward in rewards), "")


def _normalized(group: Sequence[Outcome], raw: GroupAdvantages, mean: float, scale: float) -> GroupAdvantages:
    if raw.is_dropped:
        return raw
    values = zip(group, raw.values, strict=True)
    return GroupAdvantages(
        tuple(0.0 if outcome.reward is None else (value - mean) * scale for outcome, value in values), ""
    )
