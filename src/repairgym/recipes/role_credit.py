"""Credit to roles (MALT, arXiv 2412.01928): what a patch, a review and a refinement are worth, by the ends below them.

Reads graded episodes whose submissions were reviewed; makes nodes, samples and pairs. Guarantees: equal tokens behind
one history are one node; an invalid episode counts nowhere, an exploited one as a failure; a sample learns the tokens
of its role alone, behind the history that the role saw; a review that cannot be read is never imitated or preferred.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from repairgym.agent.review import judgement_of, review_turn
from repairgym.config.pipeline import Role
from repairgym.learning.preferences import Pair
from repairgym.learning.samples import Sample
from repairgym.records import Trajectory, Turn


@dataclass(frozen=True)
class Node:
    """The turns of one role behind one history, and the episodes that have them."""

    role: Role
    task_id: str
    token_id: np.ndarray
    """[tokens] int32 of the history and of the role's turns."""
    turns: tuple[Turn, ...]
    """Of the role."""
    rewards: list[float] = field(default_factory=list)
    """Of the episodes below, in their order."""

    @property
    def value(self) -> float:
        """Mean reward of the episodes below."""
        return float(np.mean(self.rewards))

    @property
    def judgement(self) -> str:
        """Judgement of a review; empty for another role and for a review that cannot be read."""
        return judgement_of(self.turns[0])

    @property
    def history(self) -> bytes:
        """Tokens before the role's first action."""
        return self.token_id[: self.turns[0].action_span[0]].tobytes()

    def is_positive(self, threshold: float) -> bool:
        """Return True for a value above ``threshold``, unless it is a review that cannot be read."""
        return self.value > threshold and (self.role != "reviewer" or bool(self.judgement))

    def sample(self, *, is_format_error_masked: bool = False) -> Sample:
        """Return the role's actions as a sample."""
        weight = np.zeros(len(self.token_id), np.float32)
        for turn in self.turns:
            if not (is_format_error_masked and turn.error == "format"):
                weight[slice(*turn.action_span)] = 1.0
        return Sample(self.token_id, weight, np.zeros(len(weight), np.float32), group_id=self.task_id)


def role_nodes(episodes: Iterable[Trajectory]) -> list[Node]:
    """Return the nodes of all valid episodes, in their order."""
    nodes: dict[tuple[str, Role, bytes], Node] = {}
    for episode in episodes:
        for role, turns in _parts(episode) if episode.verdict.is_valid else ():
            token_id = episode.ledger.token_id[: turns[-1].action_span[1]]
            key = (episode.task_id, role, token_id.tobytes())
            nodes.setdefault(key, Node(role, episode.task_id, token_id, turns)).rewards.append(episode.verdict.reward)
    return list(nodes.values())


def _parts(episode: Trajectory) -> Iterator[tuple[Role, tuple[Turn, ...]]]:
    """Yield the roles of an episode and their turns."""
    at = review_turn(episode.turns)
    parts: tuple[tuple[Role, slice], ...] = (
        ("patcher", slice(at)),
        ("reviewer", slice(at, at + 1)),
        ("refiner", slice(at + 1, None)),
    )
    for role, places in parts:
        if turns := episode.turns[places]:
            yield role, turns


def positives(nodes: Sequence[Node], threshold: float, max_per_task: int) -> list[Node]:
    """Return the nodes to imitate: of each task those of the highest value, at most ``max_per_task``."""
    by_task: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        if node.is_positive(threshold):
            by_task[node.task_id].append(node)
    return [node for of_task in by_task.values() for node in sorted(of_task, key=lambda it: -it.value)[:max_per_task]]


def role_pairs(nodes: Sequence[Node], threshold: float, max_per_task: int) -> list[Pair]:
    """Pair every positive with every negative node behind the same history, for nodes of one role.

    Of each task at most ``max_per_task``, those with the largest difference of values first.
    """
    siblings: dict[tuple[str, bytes], tuple[list[Node], list[Node]]] = defaultdict(lambda: ([], []))
    for node in nodes:
        if node.value <= threshold or node.is_positive(threshold):
            siblings[node.task_id, node.history][node.value <= threshold].append(node)
    by_task: dict[str, list[tuple[float, Pair]]] = defaultdict(list)
    for (task_id, _), (better, worse) in siblings.items():
        for chosen, rejected in product(better, worse):
            pair = Pair(chosen.sample(), rejected.sample())
            by_task[task_id].append((chosen.value - rejected.value, pair))
    return [pair for pairs in by_task.values() for _, pair in sorted(pairs, key=lambda it: -it[0])[:max_per_task]]
