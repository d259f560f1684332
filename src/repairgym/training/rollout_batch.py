"""The episodes of one RL iteration: groups, advantages, samples, demonstrations, metrics.

Reads the trajectories of one iteration. Makes samples for the learner, metrics and the status of each group.
Guarantees: a group has one task; an invalid verdict has no reward and enters no mean; a stale trajectory is counted but
in no group; every group is counted as kept, equal or failed, every over-long episode under the limit that ended it; a
demonstration is a passed episode of the same task, and which one follows from the task and the iteration alone.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from repairgym.agent.tools.roles import is_blind_submit
from repairgym.config.algorithms import (
    TURN_ADVANTAGES,
    DecayingDemonstrationConfig,
    DemonstrationConfig,
    GatedDemonstrationConfig,
    StateValueAdvantageConfig,
)
from repairgym.config.learning import AlgorithmConfig
from repairgym.errors import ConfigError, TaskError
from repairgym.learning.advantages import GroupAdvantages, Outcome, estimate_advantages, estimate_by_origin
from repairgym.learning.rewards import Rewards, is_exploit, raw_rewards
from repairgym.learning.samples import Sample, policy_sample, split_histories, supervised_sample
from repairgym.records import OVERLONG, StopReason, Trajectory, VerdictKind
from repairgym.rollout.jobs import num_shared_turns
from repairgym.rollout.names import OWN, TEACHER
from repairgym.rollout.store import RunStore
from repairgym.training.tree_search import learned_leaves

KEPT = "kept"
"""Status of a group that is learned."""
PHASES = (TEACHER, OWN)
"""Phases whose successes demonstrate: the teacher's episodes, then the policy's own before RL."""


@dataclass(frozen=True)
class Group:
    """Episodes of one task by one policy."""

    id: str
    members: tuple[Trajectory, ...]
    rewards: tuple[float | None, ...]
    """Rewards for the learner, shaped or raw; None for an invalid verdict."""

    @property
    def spread(self) -> float:
        """Population deviation of the valid rewards; 0.0 below two."""
        valid = [reward for reward in self.rewards if reward is not None]
        return statistics.pstdev(valid) if len(valid) > 1 else 0.0


@dataclass
class RolloutBatch:
    """The episodes that one iteration sampled."""

    step: int = 0
    """The iteration."""
    trajectories: list[Trajectory] = field(default_factory=list)
    """All that are not stale."""
    stale: list[Trajectory] = field(default_factory=list)
    """Trajectories of older weights than `max_staleness` allows; in no group."""
    rollout_s: float = 0.0
    groups: list[Group] = field(default_factory=list)
    advantages: list[GroupAdvantages] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the sampling, for what only the sampler knows."""

    @property
    def shaped_rewards(self) -> list[float]:
        """The learner's rewards of the valid trajectories."""
        return [reward for group in self.groups for reward in group.rewards if reward is not None]

    @property
    def num_kept_groups(self) -> int:
        """Number of groups to learn from."""
        return sum(not advantage.is_dropped for advantage in self.advantages)


def is_stale(trajectory: Trajectory, num_updates: int, max_staleness: int) -> bool:
    """Return True when a token's policy version is more than ``max_staleness`` behind ``num_updates``.

    Tokens without a version have no log-probability; `policy_sample` rejects them.
    """
    versions = trajectory.ledger.policy_version
    return bool(((versions >= 0) & (versions < num_updates - max_staleness)).any())


def make_trajectory_groups(
    trajectories: Sequence[Trajectory], reward: Callable[[Sequence[Trajectory]], Rewards] = raw_rewards
) -> list[Group]:
    """Return the groups of ``trajectories`` in order of first appearance; ``reward`` gives one group's rewards.

    Raises:
        TaskError: a group mixes tasks, so its rewards cannot be compared.
    """
    members_by_id: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        members_by_id.setdefault(trajectory.group_id, []).append(trajectory)
    groups = []
    for group_id, members in members_by_id.items():
        if len({member.task_id for member in members}) != 1:
            raise TaskError(f"group {group_id} mixes tasks")
        groups.append(Group(group_id, tuple(members), reward(members)))
    return groups


def advantages_of(groups: Sequence[Group], config: AlgorithmConfig, *, is_split: bool = False) -> list[GroupAdvantages]:
    """Return the advantages of all groups; ``overlong="drop"`` leaves out over-long members like invalid ones.

    ``is_split``: advantages of whole episodes compare only members that began in the same state. Those of turns know
    what members share.

    Raises:
        ConfigError: the estimator compares states of turns, and turns have none.
    """
    has_states = isinstance(config.advantage, StateValueAdvantageConfig)
    if has_states:
        _check_states(groups)
    outcomes = [_outcomes_of(group, config, has_states) for group in groups]
    if is_split and config.advantage.type not in TURN_ADVANTAGES:
        origins = [[member.parent for member in group.members] for group in groups]
        return estimate_by_origin(outcomes, origins, config.advantage)
    return estimate_advantages(outcomes, config.advantage)


def _outcomes_of(group: Group, config: AlgorithmConfig, has_states: bool) -> list[Outcome]:
    number_of = {member.id: number for number, member in enumerate(group.members)}
    return [
        Outcome(
            None if config.overlong == "drop" and member.stop_reason in OVERLONG else reward,
            # An over-long episode that is only a baseline is not learned. Turns that `is_error_masked` leaves out do
            # count: which these are follows from the signs of the advantages.
            int(member.ledger.is_action.sum()) if _is_learned(member, config) else 0,
            tuple(turn.state for turn in member.turns) if has_states else (),
            num_turns=len(member.turns),
            parent=number_of.get(member.parent.trajectory_id, -1) if member.parent else -1,
            num_shared_turns=num_shared_turns(member),
            is_exploit=is_exploit(member.verdict),
        )
        for member, reward in zip(group.members, group.rewards, strict=True)
    ]


def _check_states(groups: Sequence[Group]) -> None:
    members = [member for group in groups for member in group.members if member.verdict.is_valid]
    without = [member.id for member in members if any(not turn.state for turn in member.turns)]
    if without:
        raise ConfigError(
            f"advantage.type='state_value' compares the states in which turns start, and {len(without)} of "
            f"{len(members)} episodes have none ({without[0]!r} first): an earlier version stored them, or they were "
            "imported. Sample them again in a new run, or choose advantage.type='group'"
        )


def samples_of(
    groups: Sequence[Group],
    advantages: Sequence[GroupAdvantages],
    config: AlgorithmConfig,
    num_learned: int | None = None,
) -> list[Sample]:
    """Return the samples of kept groups: valid members, over-long ones only if they are penalized.

    Negative advantages are weighted by ``negative_weight``. ``num_learned``: of each group only these leaves of a
    search, whose own turns are learned (`learned_leaves`); None: all.
    """
    rewards = [_usable_rewards(group, config) for group in groups]
    chosen = [
        set(range(len(group.members))) if num_learned is None else learned_leaves(usable, num_learned)
        for group, usable in zip(groups, rewards, strict=True)
    ]
    return [
        policy_sample(
            history,
            _weighted(value, config.negative_weight),
            reward=reward,
            is_error_masked=config.is_error_masked,
        )
        for group, usable, advantage, learned in zip(groups, rewards, advantages, chosen, strict=True)
        if not advantage.is_dropped
        for number, (member, reward, value) in enumerate(
            zip(group.members, usable, advantage.of_members(), strict=True)
        )
        if number in learned and reward is not None
        for history in split_histories(member)
    ]


def _usable_rewards(group: Group, config: AlgorithmConfig) -> list[float | None]:
    """Return the rewards of the members that may be learned; None for the others."""
    return [
        reward if _is_learned(member, config) else None
        for member, reward in zip(group.members, group.rewards, strict=True)
    ]


def _is_learned(member: Trajectory, config: AlgorithmConfig) -> bool:
    return config.overlong == "penalize" or member.stop_reason not in OVERLONG


def _weighted(advantage: float | np.ndarray, negative_weight: float) -> float | np.ndarray:
    if isinstance(advantage, np.ndarray):
        return np.where(advantage > 0, advantage, negative_weight * advantage)
    return advantage if advantage > 0 else negative_weight * advantage


def most_spread(
    groups: Sequence[Group], advantages: Sequence[GroupAdvantages], share: float
) -> tuple[list[Group], list[GroupAdvantages]]:
    """Keep the ``share`` of kept groups whose rewards differ most, in their order, at least one.

    StarPO-S (RAGEN, arXiv 2504.20073) keeps a quarter. With rewards of 0 and 1 this ranks by p (1 - p).
    """
    kept = [index for index, advantage in enumerate(advantages) if not advantage.is_dropped]
    num_chosen = max(1, round(share * len(kept)))
    chosen = sorted(sorted(kept, key=lambda index: groups[index].spread, reverse=True)[:num_chosen])
    return [groups[index] for index in chosen], [advantages[index] for index in chosen]


def record_group_status(store: RunStore, phase: str, batch: RolloutBatch) -> None:
    """Store the status of each group: ``kept``, ``dropped_equal_rewards`` or ``dropped_too_few_valid``."""
    for group, advantage in zip(batch.groups, batch.advantages, strict=True):
        status = f"dropped_{advantage.drop_reason}" if advantage.is_dropped else KEPT
        task_id = group.members[0].task_id
        store.set_group_status(group.id, phase=phase, step=batch.step, task_id=task_id, status=status)


def rollout_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Return counts and means of a batch; means are over valid trajectories (blind: over submitted ones)."""
    valid = [t for t in batch.trajectories if t.verdict.is_valid]
    num = max(1, len(valid))
    submitted = [t for t in valid if t.stop_reason is StopReason.SUBMITTED]
    drop_reasons = Counter(advantage.drop_reason for advantage in batch.advantages)
    metrics = {
        "rollout/num_trajectories": float(len(batch.trajectories)),
        "rollout/num_stale": float(len(batch.stale)),
        "rollout/num_invalid": float(len(batch.trajectories) - len(valid)),
        "rollout/num_exploited": float(sum(t.verdict.kind is VerdictKind.EXPLOITED for t in valid)),
        "rollout/num_groups": float(len(batch.groups)),
        "rollout/reward_spread": sum(group.spread for group in batch.groups) / max(1, len(batch.groups)),
        "rollout/num_kept_groups": float(batch.num_kept_groups),
        "rollout/num_equal_groups": float(drop_reasons["equal_rewards"]),
        "rollout/num_failed_groups": float(drop_reasons["too_few_valid"]),
        "rollout/reward_mean": sum(t.verdict.reward for t in valid) / num,
        "rollout/shaped_reward_mean": sum(batch.shaped_rewards) / num,
        "rollout/restored_rate": sum(bool(t.verdict.is_restored) for t in valid) / num,
        "rollout/num_turns_mean": sum(len(t.turns) for t in valid) / num,
        "rollout/num_action_tokens_mean": sum(int(t.ledger.is_action.sum()) for t in valid) / num,
        "rollout/submit_rate": len(submitted) / num,
    }
    if submitted:
        num_blind = sum(is_blind_submit(t.stop_reason, t.turns) for t in submitted)
        metrics["rollout/blind_submit_rate"] = num_blind / len(submitted)
    turns = [turn for t in valid for turn in t.turns]
    for kind in ("format", "tool"):
        metrics[f"rollout/{kind}_error_rate"] = sum(turn.error == kind for turn in turns) / max(1, len(turns))
    return metrics


def overlong_metrics(trajectories: Sequence[Trajectory], config: AlgorithmConfig) -> dict[str, float]:
    """Return the number of valid episodes that each limit ended, and how many of them are not learned."""
    counts = Counter(trajectory.stop_reason for trajectory in trajectories if trajectory.verdict.is_valid)
    metrics = {f"rollout/num_{reason.value}": float(counts[reason]) for reason in OVERLONG}
    num_left_out = 0.0 if config.overlong == "penalize" else sum(metrics.values())
    totals = {"rollout/num_overlong": sum(metrics.values()), "rollout/num_overlong_left_out": num_left_out}
    return metrics | totals


def weight_lag(trajectories: Sequence[Trajectory], num_updates: int) -> float:
    """Return how many updates the oldest sampling weights were behind; 0 is on-policy."""
    versions = (t.ledger.policy_version[t.ledger.is_action] for t in trajectories)
    return max((float(num_updates - version.min()) for version in versions if len(version)), default=0.0)


class Demonstrations:
    """The successes of a run's earlier phases by task, read from the store once they are asked for."""

    def __init__(self, store: RunStore, config: DemonstrationConfig) -> None:
        self._store = store
        self._config = config
        self._by_task: dict[str, list[Trajectory]] | None = None

    def choose(self, groups: Sequence[Group], iteration: int) -> tuple[list[Sample], float]:
        """Samples to imitate and the coefficient of their loss; one per task, and tasks without a success have none.

        Raises:
            ConfigError: demonstrations are asked for and the run holds none at all.
        """
        coefficient = demonstration_coefficient(self._config, iteration)
        if coefficient == 0.0:
            return [], 0.0
        known = self._known()
        task_ids = [group.members[0].task_id for group in groups if self._is_wanted(group)]
        chosen = [known[task_id][iteration % len(known[task_id])] for task_id in task_ids if task_id in known]
        histories = [history for trajectory in chosen for history in split_histories(trajectory)]
        return [supervised_sample(history, is_format_error_masked=True) for history in histories], coefficient

    def _is_wanted(self, group: Group) -> bool:
        if not isinstance(self._config, GatedDemonstrationConfig):
            return True
        passed = sum(member.verdict.kind is VerdictKind.PASSED for member in group.members)
        return passed < self._config.min_successes

    def _known(self) -> dict[str, list[Trajectory]]:
        if self._by_task is None:
            self._by_task = {}
            for phase in PHASES:
                # By id: the order in which episodes happened to end must not decide what is learned.
                for trajectory in sorted(self._store.trajectories(phase=phase), key=lambda trajectory: trajectory.id):
                    if trajectory.verdict.kind is VerdictKind.PASSED:
                        self._by_task.setdefault(trajectory.task_id, []).append(trajectory)
            if not self._by_task:
                raise ConfigError(
                    f"demonstration.type={self._config.type!r} imitates passed episodes of the phases {PHASES}, but "
                    "the run has none; collect them first, or set demonstration.type='none'"
                )
        return self._by_task


def demonstration_coefficient(config: DemonstrationConfig, iteration: int) -> float:
    """Factor of the imitation loss: 0 without demonstrations, constant with the gate, falling with the decay."""
    match config:
        case GatedDemonstrationConfig():
            return config.coefficient
        case DecayingDemonstrationConfig():
            left = max(0.0, 1.0 - iteration / config.num_iterations)
            return config.final_coefficient + (config.coefficient - config.final_coefficient) * left
        case _:
            return 0.0
