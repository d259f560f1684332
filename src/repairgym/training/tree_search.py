"""Monte-Carlo tree search over the turns of a group: the place of its next leaf, and the leaves that are learned.

Reads the finished members of a group. A node is a history of turns; its actions are those that members sampled from it.
Guarantees: rewards are the verdicts' own, counted once on each path; a node where an episode ended is never chosen;
the choice of learned leaves changes no mean, no value and no advantage.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from repairgym.config.exploration import SearchTreeConfig
from repairgym.records import Trajectory
from repairgym.rollout.jobs import Prefix, can_branch, num_shared_turns


@dataclass
class Node:
    """A history of turns."""

    place: Prefix | None
    """None: the task's start."""
    is_end: bool = False
    num_visits: int = 0
    reward_sum: float = 0.0
    children: dict[tuple[str, int], "Node"] = field(default_factory=dict)
    """By the member that sampled the action, and its turn."""

    def is_open(self, num_children: int) -> bool:
        """Return True when an action can be sampled here or below."""
        if self.is_end:
            return False
        return len(self.children) < num_children or any(c.is_open(num_children) for c in self.children.values())


def next_place(
    members: Sequence[Trajectory], config: SearchTreeConfig, share: float, generator: np.random.Generator
) -> Prefix | None:
    """Return the place of the next leaf after ``share`` of the search; None: the task's start.

    Follows the largest UCT value to the first node with fewer actions than `num_children`. Where every node has them,
    the next leaf is a chain.
    """
    weight = config.exploration * config.final_exploration**share
    node = grow_tree(members)
    while node.is_open(config.num_children) and len(node.children) >= config.num_children:
        children = [child for child in node.children.values() if child.is_open(config.num_children)]
        scores = [uct(it.reward_sum, it.num_visits, node.num_visits, weight) for it in children]
        order = generator.permutation(len(children))
        node = children[max(order, key=lambda number: scores[number])]
    return node.place


def uct(reward_sum: float, num_visits: int, num_parent_visits: int, weight: float) -> float:
    """Return q / n + w sqrt(ln n_parent / n) of a node with the sum of rewards q and n visits."""
    return reward_sum / num_visits + weight * math.sqrt(math.log(num_parent_visits) / num_visits)


def grow_tree(members: Sequence[Trajectory]) -> Node:
    """Return the root of the tree of all valid members that can be branched."""
    root = Node(None)
    by_id = {member.id: member for member in members}
    for member in members:
        if not member.verdict.is_valid or not can_branch(member):
            continue
        node, path = root, [root]
        for at in range(len(member.turns)):
            key = (_sampled_by(member, at, by_id), at)
            is_end = at + 1 == len(member.turns)
            new = Node(None if is_end else Prefix(member, at + 1), is_end)
            node = node.children.setdefault(key, new)
            path.append(node)
        for node in path:
            node.num_visits += 1
            node.reward_sum += member.verdict.reward
    return root


def _sampled_by(member: Trajectory, at: int, by_id: dict[str, Trajectory]) -> str:
    """Return the id of the member that sampled turn ``at`` of ``member``."""
    while member.parent and at < num_shared_turns(member) and member.parent.trajectory_id in by_id:
        member = by_id[member.parent.trajectory_id]
    return member.id


def learned_leaves(rewards: Sequence[float | None], num: int) -> set[int]:
    """Return ``num`` members: the best, the worst, one of each other reward, then from both ends in turn.

    RepoSearch-R1's choice (arXiv 2510.26287). Invalid members (None) are never chosen.
    """
    by_reward: dict[float, list[int]] = defaultdict(list)
    for number, reward in enumerate(rewards):
        if reward is not None:
            by_reward[reward].append(number)
    ordered = [number for reward in sorted(by_reward) for number in by_reward[reward]]
    levels = sorted(by_reward)
    first = list(dict.fromkeys([*levels[-1:], *levels[:1], *levels]))
    chosen = [by_reward[level][-1 if level == levels[-1] else 0] for level in first][:num]
    rest = [number for number in ordered if number not in chosen]
    while rest and len(chosen) < num:
        chosen.append(rest.pop(-1 if len(chosen) % 2 == 0 else 0))
    return set(chosen)
