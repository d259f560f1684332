"""Credit of an iteration: the turns that hold its advantages.

Reads groups and their advantages, before weights and masks; makes metrics. Guarantee: only kept groups count, and every
sampled token counts once, with the size of its advantage.
"""

from collections.abc import Sequence

import numpy as np

from repairgym.agent.tools.roles import is_edit
from repairgym.learning.advantages import GroupAdvantages
from repairgym.learning.state_values import shared_turns
from repairgym.rollout.jobs import num_shared_turns
from repairgym.training.rollout_batch import Group


def credit_metrics(groups: Sequence[Group], advantages: Sequence[GroupAdvantages]) -> dict[str, float]:
    """Return shares of the kept groups; none without an advantage (a value head makes its own later).

    ``credit/edit_mass`` and ``credit/error_mass``: of the sum of |A| over tokens, on turns that changed files and on
    turns that ended in an error. Where turns have advantages of their own also shares of the turns: with the opposite
    sign of their episode (``credit/flipped_turns``), and whose state another member visits (``credit/shared_turns``).
    """
    rows = []
    for group, advantage in zip(groups, advantages, strict=True):
        if not advantage.is_dropped:
            rows += _rows(group, advantage)
    if not rows:
        return {}
    size, is_edited, is_error, is_flipped, is_shared = np.array(rows, np.float64).T
    if not size.sum():
        return {}
    metrics = {
        "credit/edit_mass": float(size @ is_edited / size.sum()),
        "credit/error_mass": float(size @ is_error / size.sum()),
    }
    if any(advantage.of_turns for advantage in advantages):
        metrics["credit/flipped_turns"] = float(is_flipped.mean())
        metrics["credit/shared_turns"] = float(is_shared.mean())
    return metrics


def _rows(group: Group, advantage: GroupAdvantages) -> list[tuple[float, bool, bool, bool, bool]]:
    """Size of the advantage times tokens, edit, error, flipped, shared: of each turn of the valid members."""
    valid = [number for number, reward in enumerate(group.rewards) if reward is not None]
    shared = shared_turns([[turn.state for turn in group.members[number].turns] for number in valid])
    of_members = advantage.of_members()
    rows = []
    for number, is_shared in zip(valid, shared, strict=True):
        turns = group.members[number].turns
        for at, value in enumerate(np.broadcast_to(of_members[number], len(turns))):
            if at < num_shared_turns(group.members[number]):
                continue
            turn = turns[at]
            size = abs(float(value)) * (turn.action_span[1] - turn.action_span[0])
            is_flipped = bool(value * advantage.values[number] < 0)
            rows.append((size, is_edit(turn), bool(turn.error), is_flipped, bool(is_shared[at])))
    return rows
