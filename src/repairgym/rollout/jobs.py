"""Jobs of the rollout workers, their ids and their policy.

Invariants: a trajectory id names phase, step, task and index, so a resumed run makes the same ids; all members of a
group have one task.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from repairgym.agent.allowance import Allowance
from repairgym.agent.conversation import Hint
from repairgym.agent.routing import Router, Team
from repairgym.config.models import EndpointConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import InputError
from repairgym.records import Task, Trajectory


@dataclass(frozen=True)
class Prefix:
    """The turns of a stored episode that a branch begins with."""

    trajectory: Trajectory
    num_turns: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the ledger before the first turn that is not replayed; a prefix can be a whole episode."""
        turns = self.trajectory.turns
        return turns[self.num_turns].action_span[0] if self.num_turns < len(turns) else len(self.trajectory.ledger)


@dataclass(frozen=True)
class EpisodeJob:
    """One episode to run."""

    trajectory_id: str
    group_id: str
    task_id: str
    seed: int
    prefix: Prefix | None = None
    """Of a branch."""
    is_kept: bool = False
    """Its worker keeps its state behind each turn, so that branches begin with forks."""
    allowance: Allowance | None = None
    """The most that its own turns may use, where a search bounds it."""
    hint: Hint | None = None
    """A sentence that only the policy sees, behind the prefix of a branch; its tokens from there on have no version."""


Grow = Callable[[Trajectory], Sequence[EpisodeJob]]
"""From an episode that has ended to the jobs that follow from it, such as the branches of its group."""


def no_growth(trajectory: Trajectory) -> Sequence[EpisodeJob]:
    """Return nothing: no job follows."""
    return ()


ServerProtocol = Literal["openai", "vllm"]


@dataclass(frozen=True)
class PolicyRef:
    """A reference to a policy: a script by name, weights of a folder, a model behind a server, or several."""

    name: str
    folder: str = ""
    """Model folder; empty for a scripted policy and a server."""
    version: int = 0
    temperature: float = 1.0
    protocol: ServerProtocol = "openai"
    """Protocol of the server: ``openai`` in text, ``vllm`` in token ids."""
    endpoint: EndpointConfig | None = None
    """The server, where there is one."""
    lineage: str = ""
    """Of servers whose weights change: each token must say which ones of this lineage (`inference/vllm/weights.py`)
    sampled it, ``version`` or newer. Empty: they stay."""
    router: Router | Team | None = None
    """Several models, one for each situation or role (`agent/routing.py`)."""
    expert_share: float = 0.0
    """Chance of a turn to be the scripted expert's (`agent/expert.py`), whose tokens have no version."""


def make_group(phase: str, step: int, task_id: str, size: int, seed: int, start: int = 0) -> list[EpisodeJob]:
    """Return ``size`` jobs of one task; ids and seeds depend on the arguments alone."""
    group_id = f"{phase}/{step}/{task_id}"
    ids = [f"{group_id}#{index}" for index in range(start, start + size)]
    return [EpisodeJob(id_, group_id, task_id, episode_seed(seed, id_)) for id_ in ids]


def make_branches(parent: Trajectory, num_turns: int, size: int, seed: int, name: str) -> list[EpisodeJob]:
    """Return ``size`` jobs that begin with the first ``num_turns`` turns of ``parent``; ``name`` begins their ids.

    Raises:
        InputError: the episode has no turn behind them, its turns have no state, or an external agent made it.
    """
    if not 0 < num_turns < len(parent.turns):
        raise InputError(
            f"{parent.id} has {len(parent.turns)} turns; it branches after turn 1 to {len(parent.turns) - 1}"
        )
    if not can_branch(parent):
        raise InputError(f"{parent.id} cannot be replayed: its turns have no state (external agent, or an older store)")
    group_id = f"{name}/{parent.id}:{num_turns}"
    ids = [f"{group_id}#{index}" for index in range(size)]
    prefix = Prefix(parent, num_turns)
    return [EpisodeJob(id_, group_id, parent.task_id, episode_seed(seed, id_), prefix) for id_ in ids]


def can_branch(parent: Trajectory) -> bool:
    """Return True when other episodes can begin with turns of ``parent``."""
    return parent.agent_run is None and all(turn.state for turn in parent.turns)


def num_shared_turns(trajectory: Trajectory) -> int:
    """Return the number of turns that a branch has of its parent; 0 for a chain."""
    return trajectory.parent.num_turns if trajectory.parent else 0


def episode_seed(seed: int, trajectory_id: str) -> int:
    """Seed of one episode's sampling: 32 bits that follow from the run's ``seed`` and the id."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{trajectory_id}".encode()).digest()[:4], "big")


def make_groups(phase: str, step: int, task_ids: Sequence[str], size: int, seed: int) -> list[EpisodeJob]:
    """Jobs of one group per task, group after group."""
    return [job for task_id in task_ids for job in make_group(phase, step, task_id, size, seed)]


class Pool(Protocol):
    """Something that runs jobs."""

    @property
    def config(self) -> RolloutConfig:
        """Settings of the episodes."""

    @property
    def is_draining(self) -> bool:
        """True after Ctrl-C, while episodes in flight end."""

    def counters(self) -> dict[str, float]:
        """Return the counts of engines, caches and clients of servers, summed over all workers."""

    def run(
        self, policy: PolicyRef, jobs: Sequence[EpisodeJob], tasks: Mapping[str, Task], grow: Grow = no_growth
    ) -> Iterator[Trajectory]:
        """Yield graded trajectories as they end, one per job, those that ``grow`` adds included.

        Raises:
            SandboxError: the pool cannot continue.
        """
