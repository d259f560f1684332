"""From trajectories to what the policy update learns from: groups, their advantages, samples.

Reads the trajectories of one iteration; makes samples and counts. Invariants: a group is of one task; invalid verdicts
have no reward; every group is counted as kept, equal or failed, every over-long episode by the limit that ended it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from repairgym.config.learning import AlgorithmConfig
from repairgym.errors import TaskError
from repairgym.learning.advantages import GroupAdvantages, Outcome, estimate_advantages
from repairgym.learning.rewards import Rewards, raw_rewards
from repairgym.learning.samples import Sample, policy_sample, split_histories
from repairgym.records import OVERLONG, Trajectory


@dataclass(frozen=True)
class Group:
    """Episodes of one task by one policy."""

    id: str
    members: tuple[Trajectory, ...]
    rewards: tuple[float | None, ...]
    """What the learner gets, shaped or not; None for an invalid verdict."""

    @property
    def spread(self) -> float:
        """Population deviation of the valid rewards; 0.0 below two."""
        valid = [reward for reward in self.rewards if reward is not None]
        return statistics.pstdev(valid) if len(valid) > 1 else 0.0


def is_stale(trajectory: Trajectory, num_updates: int, max_staleness: int) -> bool:
    """True when a token was sampled by a policy more than ``max_staleness`` updates behind ``num_updates``.

    Tokens without a version have no log-probability either; `policy_sample` refuses them.
    """
    versions = trajectory.ledger.policy_version
    return bool(((versions >= 0) & (versions < num_updates - max_staleness)).any())


def make_trajectory_groups(
    trajectories: Sequence[Trajectory], reward: Callable[[Sequence[Trajectory]], Rewards] = raw_rewards
) -> list[Group]:
    """Trajectories by group, in the order in which groups begin.

    Args:
        trajectories: Of any number of groups.
        reward: The rewards of one group's members.

    Raises:
        TaskError: a group mixes tasks, so that its rewards cannot be compared.
    """
    members: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        members.setdefault(trajectory.group_id, []).append(trajectory)
    groups = []
    for group_id, found in members.items():
        if len({member.task_id for member in found}) != 1:
            raise TaskError(f"group {group_id} mixes tasks")
        groups.append(Group(group_id, tuple(found), reward(found)))
    return groups


def advantages_of(groups: Sequence[Group], config: AlgorithmConfig) -> list[GroupAdvantages]:
    """Advantages of all groups of an iteration; ``overlong="drop"`` leaves over-long members out like invalid ones."""
    outcomes = [
        [
            Outcome(
                None if config.overlong == "drop" and member.stop_reason in OVERLONG else reward,
                int(member.ledger.is_action.sum()),
            )
            for member, reward in zip(group.members, group.rewards, strict=True)
        ]
        for group in groups
    ]
    return estimate_advantages(outcomes, config.advantage)


def samples_of(groups: Sequence[Group], advantages: Sequence[GroupAdvantages], config: AlgorithmConfig) -> list[Sample]:
    """The samples of the groups that teach something: valid members, and over-long ones where these are penalised.

    Negative advantages are weighted by ``negative_weight``.
    """
    return [
        policy_sample(
            history,
            value if value > 0 else config.negative_weight * value,
            reward=reward,
            is_error_masked=config.is_error_masked,
        )
        for group, found in zip(groups, advantages, strict=True)
        if not found.is_dropped
        for member, reward, value in zip(group.members, group.rewards, found.values, strict=True)
        if reward is not None and (config.overlong == "penalise" or member.stop_reason not in OVERLONG)
        for history in split_histories(member)
    ]


def most_spread(
    groups: Sequence[Group], advantages: Sequence[GroupAdvantages], share: float
) -> tuple[list[Group], list[GroupAdvantages]]:
    """The ``share`` of the groups that teach something whose rewards differ most, in their order, at least one.

    StarPO-S (RAGEN, arXiv 2504.20073) keeps a quarter. With rewards of 0 and 1 this ranks by p (1 - p).
    """
    taught = [index for index, found in enumerate(advantages) if not found.is_dropped]
    num_kept = max(1, round(share * len(taught)))
    ranked = sorted(taught, key=lambda index: groups[index].spread, reverse=True)[:num_kept]
    return [groups[index] for index in sorted(ranked)], [advantages[index] for index in sorted(ranked)]


def overlong_metrics(trajectories: Sequence[Trajectory], config: AlgorithmConfig) -> dict[str, float]:
    """How many valid episodes each limit ended, and how many are therefore not learned."""
    counts = Counter(trajectory.stop_reason for trajectory in trajectories if trajectory.verdict.is_valid)
    metrics = {f"rollout/num_{reason.value}": float(counts[reason]) for reason in OVERLONG}
    num_left_out = 0.0 if config.overlong == "penalise" else sum(metrics.values())
    totals = {"rollout/num_overlong": sum(metrics.values()), "rollout/num_overlong_left_out": num_left_out}
    return metrics | totals
