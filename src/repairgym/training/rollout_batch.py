"""What one iteration of RL sampled, in numbers.

Reads trajectories and their groups; makes metrics and the status of each group. Invariants: an invalid trajectory is
counted and in no mean; a stale one is counted and in no group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from repairgym.agent.tools.roles import is_blind_submit
from repairgym.learning.advantages import GroupAdvantages
from repairgym.records import StopReason, Trajectory, VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.training.groups import Group


@dataclass
class RolloutBatch:
    """What one iteration sampled."""

    step: int = 0
    """The iteration."""
    trajectories: list[Trajectory] = field(default_factory=list)
    """Those that are not stale."""
    stale: list[Trajectory] = field(default_factory=list)
    """Those of older weights than `max_staleness` allows: dropped, in no group."""
    rollout_s: float = 0.0
    groups: list[Group] = field(default_factory=list)
    advantages: list[GroupAdvantages] = field(default_factory=list)

    @property
    def shaped_rewards(self) -> list[float]:
        """Of the valid trajectories: what the learner gets."""
        return [reward for group in self.groups for reward in group.rewards if reward is not None]

    @property
    def num_kept_groups(self) -> int:
        """Groups that teach something."""
        return sum(not found.is_dropped for found in self.advantages)

    @property
    def num_equal_groups(self) -> int:
        """Groups of equal rewards."""
        return sum(found.drop_reason == "equal_rewards" for found in self.advantages)

    @property
    def num_failed_groups(self) -> int:
        """Groups with fewer than two valid members; never mixed up with those of equal rewards."""
        return sum(found.drop_reason == "too_few_valid" for found in self.advantages)


def record_group_status(store: RunStore, phase: str, collected: RolloutBatch) -> None:
    """Say in the store what became of each group."""
    for group, found in zip(collected.groups, collected.advantages, strict=True):
        status = f"dropped_{found.drop_reason}" if found.is_dropped else "kept"
        task_id = group.members[0].task_id
        store.set_group_status(group.id, phase=phase, step=collected.step, task_id=task_id, status=status)


def rollout_metrics(collected: RolloutBatch) -> dict[str, float]:
    """Counts and means of what was sampled; means are over valid trajectories."""
    valid = [t for t in collected.trajectories if t.verdict.is_valid]
    num = max(1, len(valid))
    metrics = {
        "rollout/num_trajectories": float(len(collected.trajectories)),
        "rollout/num_stale": float(len(collected.stale)),
        "rollout/num_invalid": float(len(collected.trajectories) - len(valid)),
        "rollout/num_exploited": float(sum(t.verdict.kind is VerdictKind.EXPLOITED for t in valid)),
        "rollout/num_groups": float(len(collected.groups)),
        "rollout/reward_spread": sum(group.spread for group in collected.groups) / max(1, len(collected.groups)),
        "rollout/num_kept_groups": float(collected.num_kept_groups),
        "rollout/num_equal_groups": float(collected.num_equal_groups),
        "rollout/num_failed_groups": float(collected.num_failed_groups),
        "rollout/reward_mean": sum(t.verdict.reward for t in valid) / num,
        "rollout/shaped_reward_mean": sum(collected.shaped_rewards) / num,
        "rollout/restored_rate": sum(bool(t.verdict.is_restored) for t in valid) / num,
        "rollout/num_turns_mean": sum(len(t.turns) for t in valid) / num,
        "rollout/num_action_tokens_mean": sum(int(t.ledger.is_action.sum()) for t in valid) / num,
        "rollout/submit_rate": sum(t.stop_reason is StopReason.SUBMITTED for t in valid) / num,
        "rollout/blind_submit_rate": sum(is_blind_submit(t.stop_reason, t.turns) for t in valid) / num,
    }
    turns = [turn for t in valid for turn in t.turns]
    for kind in ("format", "tool"):
        metrics[f"rollout/{kind}_error_rate"] = sum(turn.error == kind for turn in turns) / max(1, len(turns))
    return metrics


def weight_lag(trajectories: Sequence[Trajectory], num_updates: int) -> float:
    """Updates that the oldest weights among the episodes' were behind; 0 is on-policy."""
    versions = (t.ledger.policy_version[t.ledger.is_action] for t in trajectories)
    return max((float(num_updates - found.min()) for found in versions if len(found)), default=0.0)
