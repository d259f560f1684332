"""Groups as trees: which turns of finished episodes are branched, and the jobs of the branches.

Reads the trajectories of a group as they end; makes `EpisodeJob` records. Guarantees: a group ends with exactly as many
leaves as it has chains otherwise; its jobs follow from its finished members and the seed alone, so a resumed run makes
the same ones; a group whose episodes cannot be branched (one turn, invalid) has chains instead.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from repairgym.config.trees import GroupTreeConfig, NoTreeConfig, TreeConfig
from repairgym.learning.state_values import state_values
from repairgym.records import Trajectory
from repairgym.rollout.jobs import EpisodeJob, Prefix, can_branch, episode_seed, make_groups, num_shared_turns

_PRIOR_WEIGHT = 1.0


@dataclass
class _Group:
    jobs: list[EpisodeJob]
    ended: dict[str, Trajectory] = field(default_factory=dict)
    num_rounds: int = 0


class Growth(Protocol):
    """Groups that grow: members that follow from the ends of others."""

    @property
    def num_jobs(self) -> int:
        """Members of all groups, as far as they are known."""

    def jobs(self) -> list[EpisodeJob]:
        """Return all jobs so far."""

    def grow(self, trajectory: Trajectory) -> list[EpisodeJob]:
        """Take a finished episode; return the jobs that follow from it."""


class Trees:
    """The trees of some groups while they grow."""

    def __init__(self, config: TreeConfig, chains: Sequence[EpisodeJob], num_leaves: int, seed: int) -> None:
        """Begin with the jobs ``chains`` of the groups, which have ``num_leaves`` in the end; ``seed`` is the run's."""
        self._config = config
        self._num_leaves = num_leaves
        self._seed = seed
        self._groups: dict[str, _Group] = {}
        for job in chains:
            self._groups.setdefault(job.group_id, _Group([])).jobs.append(job)

    @property
    def num_jobs(self) -> int:
        """Leaves of all groups."""
        return self._num_leaves * len(self._groups)

    def jobs(self) -> list[EpisodeJob]:
        """Return all jobs so far, group after group."""
        return [job for group in self._groups.values() for job in group.jobs]

    def grow(self, trajectory: Trajectory) -> list[EpisodeJob]:
        """Take a finished episode; return the jobs of the group's next round once its last one is complete."""
        group = self._groups[trajectory.group_id]
        group.ended[trajectory.id] = trajectory
        if len(group.ended) < len(group.jobs) or len(group.jobs) == self._num_leaves:
            return []
        group.num_rounds += 1
        jobs = self._next_round(self._config, group)
        group.jobs += jobs
        if group.num_rounds == self._config.num_rounds:
            group.ended.clear()
        return jobs

    def _next_round(self, config: TreeConfig, group: _Group) -> list[EpisodeJob]:
        first, start = group.jobs[0], len(group.jobs)
        members = [group.ended[job.trajectory_id] for job in group.jobs]
        num_chosen = config.num_turns_chosen(self._num_leaves)
        generator = np.random.default_rng([episode_seed(self._seed, first.group_id), group.num_rounds])
        prefixes = choose_prefixes(members, config, num_chosen, generator)
        is_kept = group.num_rounds < config.num_rounds
        if not prefixes:
            prefixes = [None] * num_chosen
        every = [prefix for prefix in prefixes for _ in range(config.num_per_turn)]
        ids = [f"{first.group_id}#{start + number}" for number in range(len(every))]
        return [
            EpisodeJob(id_, first.group_id, first.task_id, episode_seed(self._seed, id_), prefix, is_kept)
            for id_, prefix in zip(ids, every, strict=True)
        ]


def plan_groups(
    config: GroupTreeConfig, phase: str, step: int, task_ids: Sequence[str], num_leaves: int, seed: int
) -> tuple[list[EpisodeJob], Trees | None]:
    """Return the jobs that begin one group per task, as `make_groups`, and the trees that they grow into, if any."""
    if isinstance(config, NoTreeConfig):
        return make_groups(phase, step, task_ids, num_leaves, seed), None
    chains = make_groups(phase, step, task_ids, config.num_chains, seed)
    chains = [replace(job, is_kept=True) for job in chains]
    return chains, Trees(config, chains, num_leaves, seed)


def choose_prefixes(
    members: Sequence[Trajectory], config: TreeConfig, num: int, generator: np.random.Generator
) -> list[Prefix | None]:
    """Return ``num`` prefixes of ``members`` to branch from, the best first; none where nobody can be branched.

    Equal scores are drawn at random. Scores of states choose a state once as long as there are others.
    """
    valid = [member for member in members if member.verdict.is_valid and can_branch(member)]
    scores = _scores(valid, config)
    places = [
        (member, at)
        for member, trajectory in enumerate(valid)
        for at in range(1 + num_shared_turns(trajectory), len(trajectory.turns))
    ]
    if not places:
        return []
    drawn = [places[number] for number in generator.permutation(len(places))]
    ranked = sorted(drawn, key=lambda place: -scores[place[0]][place[1]])
    seen: set[str] = set()
    first, later = list[Prefix | None](), list[Prefix | None]()
    for member, at in ranked:
        state = valid[member].turns[at].state if config.type != "random" else f"{member}:{at}"
        (later if state in seen else first).append(Prefix(valid[member], at))
        seen.add(state)
    every = [*first, *later]
    return [every[number % len(every)] for number in range(num)]


def _scores(members: Sequence[Trajectory], config: TreeConfig) -> list[np.ndarray]:
    """Return the score of each turn ([turns]) of each member: of the state it starts in, or of its action."""
    states = [[turn.state for turn in member.turns] for member in members]
    if config.type == "random" or not members:
        return [np.zeros(len(visited)) for visited in states]
    if config.type == "entropy":
        return [_surprisals(member) for member in members]
    if config.type == "novelty":
        counts = Counter(state for visited in states for state in set(visited))
        return [np.array([1.0 / np.sqrt(counts[state]) for state in visited]) for visited in states]
    rewards = [member.verdict.reward for member in members]
    values = state_values(states, rewards, prior_weight=_PRIOR_WEIGHT, is_own_counted=True)
    return [value * (1.0 - value) for value in values]


def _surprisals(member: Trajectory) -> np.ndarray:
    """Return the mean -log p of each action's tokens ([turns]); 0 where the policy sampled none of them."""
    spans = [slice(*turn.action_span) for turn in member.turns]
    log_prob = member.ledger.log_prob
    return np.array([-float(log_prob[span].mean()) if span.stop > span.start else 0.0 for span in spans])
