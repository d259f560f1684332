"""Pairs of actions after one history, from stored groups, for step-level DPO (Agent Q, arXiv 2408.07199).

Reads trajectories; makes `Pair` objects. The value of an action after a history is the mean reward of the trajectories
that took it there; siblings whose values differ by more than a bound are a pair. Invariants: histories are compared as
tokens; invalid trajectories have no value; of one history only the best and the worst action are paired.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from repairgym.learning.preferences import Pair
from repairgym.learning.samples import Sample, split_histories
from repairgym.records import Trajectory


def action_pairs(trajectories: Iterable[Trajectory], min_gap: float, max_per_task: int) -> list[Pair]:
    """Pairs of sibling actions, those with the largest gap of a task first.

    Args:
        trajectories: Of any groups; only those of one task meet.
        min_gap: Least difference of the values, above 0 (Agent Q's theta, which it does not state).
        max_per_task: Pairs kept of one task.
    """
    siblings = _siblings(trajectories)
    pairs: dict[str, list[tuple[float, Pair]]] = defaultdict(list)
    for (task_id, _), actions in siblings.items():
        valued = sorted((float(np.mean(rewards)), action) for action, (rewards, _) in actions.items())
        gap = valued[-1][0] - valued[0][0]
        if len(valued) > 1 and gap > min_gap:
            best, worst = (actions[valued[at][1]][1] for at in (-1, 0))
            pairs[task_id].append((gap, Pair(best, worst)))
    return [pair for found in pairs.values() for _, pair in sorted(found, key=lambda scored: -scored[0])[:max_per_task]]


_History = tuple[str, bytes]
"""A task and the tokens of everything before the action."""


def _siblings(trajectories: Iterable[Trajectory]) -> dict[_History, dict[bytes, tuple[list[float], Sample]]]:
    """By history, by action: rewards of the trajectories that took it, and the action as a sample."""
    found: dict[_History, dict[bytes, tuple[list[float], Sample]]] = defaultdict(dict)
    for trajectory in trajectories:
        histories = split_histories(trajectory) if trajectory.verdict.is_valid else []
        for token_id, (start, end) in (
            (history.ledger.token_id, turn.action_span) for history in histories for turn in history.turns
        ):
            if 0 < start < end:
                actions = found[trajectory.task_id, token_id[:start].tobytes()]
                new: tuple[list[float], Sample] = ([], _action_sample(token_id[:end], start))
                rewards, _ = actions.setdefault(token_id[start:end].tobytes(), new)
                rewards.append(trajectory.verdict.reward)
    return found


def _action_sample(token_id: np.ndarray, start: int) -> Sample:
    weight = (np.arange(len(token_id)) >= start).astype(np.float32)
    return Sample(token_id, weight, np.zeros(len(token_id), dtype=np.float32))
