"""Groups as trees: which turns of finished episodes are branched, and the jobs of the branches.

Reads the trajectories of a group as they end; makes `EpisodeJob` records. Guarantees: a group ends with exactly as many
leaves as it has chains otherwise; its jobs follow from its finished members, the task's episodes of earlier iterations
and the seed alone, so a resumed run makes the same ones; a group whose episodes cannot be branched (one turn, invalid)
has chains instead.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from repairgym.agent.conversation import Hint
from repairgym.config.exploration import GroupTreeConfig, GrownConfig, NoTreeConfig, PrefixSamplingConfig, TreeConfig
from repairgym.learning.state_values import state_values
from repairgym.records import Trajectory
from repairgym.rollout.jobs import EpisodeJob, Prefix, can_branch, episode_seed, make_groups, num_shared_turns
from repairgym.training.prefix_sampling import steering_prefix
from repairgym.training.tree_search import next_place

_PRIOR_WEIGHT = 1.0
_NUM_RESAMPLES = 256
"""Of an ensemble; a resample costs two products with one entry per member and state."""
Earlier = Callable[[str], Sequence[Trajectory]]
"""From a task to the policy's episodes of it in earlier iterations, the latest first."""


def no_earlier(task_id: str) -> Sequence[Trajectory]:
    """Return nothing: there are no earlier episodes."""
    return ()


@dataclass
class _Group:
    jobs: list[EpisodeJob]
    ended: dict[str, Trajectory] = field(default_factory=dict)
    num_rounds: int = 0

    @property
    def members(self) -> list[Trajectory]:
        """The finished episodes, in the order of the jobs."""
        return [self.ended[job.trajectory_id] for job in self.jobs]


class Growth(Protocol):
    """Groups that grow: members that follow from the ends of others."""

    @property
    def num_jobs(self) -> int:
        """Members of all groups, as far as they are known."""

    def jobs(self) -> list[EpisodeJob]:
        """Return all jobs so far."""

    def grow(self, trajectory: Trajectory) -> list[EpisodeJob]:
        """Take a finished episode; return the jobs that follow from it."""


class BranchedChains(ABC):
    """Chains of some tasks, each a group with the branches of its members: growth outside RL."""

    def __init__(self, phase: str, task_ids: Sequence[str], num_chains: int, seed: int) -> None:
        """Begin with ``num_chains`` chains of each task; ``seed`` is the run's."""
        self._seed = seed
        chains = make_groups(phase, 0, task_ids, num_chains, seed)
        self._jobs = [replace(job, group_id=job.trajectory_id, is_kept=True) for job in chains]

    @property
    def num_jobs(self) -> int:
        """Chains and branches so far."""
        return len(self._jobs)

    def jobs(self) -> list[EpisodeJob]:
        """Return all jobs so far by their ids: the order in which episodes end must not decide what is learned."""
        return sorted(self._jobs, key=lambda job: job.trajectory_id)

    def grow(self, trajectory: Trajectory) -> list[EpisodeJob]:
        """Take a finished episode; return its branches."""
        branches = self.branches(trajectory) if can_branch(trajectory) else []
        self._jobs += branches
        return branches

    @abstractmethod
    def branches(self, trajectory: Trajectory) -> list[EpisodeJob]:
        """Return the branches of a finished chain or branch that can have some."""

    def branch(
        self, parent: Trajectory, id_: str, num_turns: int, *, is_kept: bool = False, hint: Hint | None = None
    ) -> EpisodeJob:
        """Return the job ``id_`` that continues behind ``num_turns`` turns of ``parent``."""
        prefix, seed = Prefix(parent, num_turns), episode_seed(self._seed, id_)
        return EpisodeJob(id_, parent.group_id, parent.task_id, seed, prefix, is_kept, hint=hint)


class Trees:
    """The trees of some groups while they grow."""

    def __init__(
        self,
        config: GrownConfig,
        chains: Sequence[EpisodeJob],
        num_leaves: int,
        seed: int,
        earlier: Earlier = no_earlier,
    ) -> None:
        """Begin with the jobs ``chains`` of the groups, which have ``num_leaves`` in the end; ``seed`` is the run's."""
        self._config = config
        self._earlier = earlier
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
        generator = np.random.default_rng([episode_seed(self._seed, trajectory.group_id), group.num_rounds])
        jobs = self._jobs(group, self._next_places(group, generator))
        group.jobs += jobs
        if len(group.jobs) == self._num_leaves:
            group.ended.clear()
        return jobs

    def _next_places(self, group: _Group, generator: np.random.Generator) -> list[Prefix | None]:
        """Return the beginnings of the next round's episodes; None: the task's start."""
        config, num_missing = self._config, self._num_leaves - len(group.jobs)
        if isinstance(config, TreeConfig):
            num_chosen = config.num_turns_chosen(self._num_leaves)
            prefixes = choose_prefixes(group.members, config, num_chosen, generator) or [None] * num_chosen
            return [prefix for prefix in prefixes for _ in range(config.num_per_turn)]
        if isinstance(config, PrefixSamplingConfig):
            earlier = self._earlier(group.jobs[0].task_id) if config.is_earlier_used else ()
            return [steering_prefix(group.members, earlier, config, generator)] * num_missing
        share = 1.0 - num_missing / (self._num_leaves - config.num_chains)
        return [next_place(group.members, config, share, generator)]

    def _jobs(self, group: _Group, places: Sequence[Prefix | None]) -> list[EpisodeJob]:
        first, start = group.jobs[0], len(group.jobs)
        is_kept = start + len(places) < self._num_leaves
        ids = [f"{first.group_id}#{start + number}" for number in range(len(places))]
        return [
            EpisodeJob(id_, first.group_id, first.task_id, episode_seed(self._seed, id_), place, is_kept)
            for id_, place in zip(ids, places, strict=True)
        ]


def plan_groups(
    config: GroupTreeConfig,
    phase: str,
    step: int,
    task_ids: Sequence[str],
    num_leaves: int,
    seed: int,
    earlier: Earlier = no_earlier,
) -> tuple[list[EpisodeJob], Trees | None]:
    """Return the jobs that begin one group per task, as `make_groups`, and the trees that they grow into, if any."""
    if isinstance(config, NoTreeConfig):
        return make_groups(phase, step, task_ids, num_leaves, seed), None
    chains = make_groups(phase, step, task_ids, config.num_chains, seed)
    chains = [replace(job, is_kept=True) for job in chains]
    return chains, Trees(config, chains, num_leaves, seed, earlier)


def choose_prefixes(
    members: Sequence[Trajectory], config: TreeConfig, num: int, generator: np.random.Generator
) -> list[Prefix | None]:
    """Return ``num`` prefixes of ``members`` to branch from, the best first; none where nobody can be branched.

    Equal scores are drawn at random. Scores of states choose a state once as long as there are others.
    """
    valid = [member for member in members if member.verdict.is_valid and can_branch(member)]
    scores = turn_scores(valid, config, generator)
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


def turn_scores(members: Sequence[Trajectory], config: TreeConfig, generator: np.random.Generator) -> list[np.ndarray]:
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
    if config.type == "ensemble":
        return _disagreements(states, rewards, generator)
    values = state_values(states, rewards, prior_weight=_PRIOR_WEIGHT, is_own_counted=True)
    return [value * (1.0 - value) for value in values]


def _disagreements(
    states: Sequence[Sequence[str]], rewards: Sequence[float], generator: np.random.Generator
) -> list[np.ndarray]:
    """Return the variance of each state's value ([turns] of each member) over bootstrap resamples of the members.

    A resample of [members] has each member as often as it was drawn; its value of a state is that of `state_values`.
    """
    size = len(rewards)
    drawn = generator.multinomial(size, np.full(size, 1.0 / size), size=_NUM_RESAMPLES).astype(np.float64)
    means = drawn @ np.array(rewards) / size
    names = {state: number for number, state in enumerate(dict.fromkeys(it for visited in states for it in visited))}
    is_visited = np.zeros((size, len(names)))
    for member, visited in enumerate(states):
        is_visited[member, [names[state] for state in visited]] = 1.0
    sums = drawn @ (is_visited * np.array(rewards)[:, None]) + _PRIOR_WEIGHT * means[:, None]
    variance = (sums / (drawn @ is_visited + _PRIOR_WEIGHT)).var(axis=0)
    return [variance[[names[state] for state in visited]] for visited in states]


def _surprisals(member: Trajectory) -> np.ndarray:
    """Return the mean -log p of each action's tokens ([turns]); 0 where the policy sampled none of them."""
    spans = [slice(*turn.action_span) for turn in member.turns]
    log_prob = member.ledger.log_prob
    return np.array([-float(log_prob[span].mean()) if span.stop > span.start else 0.0 for span in spans])
