"""The record of what an update learned of each token, for readers of the run.

Reads `LearnedTokens` by turn and the trajectories they are of; makes `TokenSignals` by place in the ledger.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from repairgym.learning.learned_tokens import LearnedTokens
from repairgym.records import Trajectory
from repairgym.rollout.signals import TokenSignals


def signals_of(trajectories: Iterable[Trajectory], learned: Sequence[LearnedTokens]) -> Mapping[str, TokenSignals]:
    """Return trajectory id -> signals; the samples of a forked history are put together."""
    by_id: dict[str, list[LearnedTokens]] = {}
    for tokens in learned:
        by_id.setdefault(tokens.trajectory_id, []).append(tokens)
    return {item.id: _joined(item, by_id[item.id]) for item in trajectories if item.id in by_id}


def _joined(trajectory: Trajectory, parts: Sequence[LearnedTokens]) -> TokenSignals:
    starts = np.array([turn.action_span[0] for turn in trajectory.turns], dtype=np.int32)
    place = np.concatenate([starts[part.turn] + part.offset for part in parts])
    order = np.argsort(place, kind="stable")
    names = ("weight", "advantage", "old_log_prob", "log_prob", "entropy")
    arrays = {name: np.concatenate([getattr(part, name) for part in parts])[order] for name in names}
    num_steps = np.concatenate([np.full(len(part.turn), part.num_steps, dtype=np.int32) for part in parts])
    return TokenSignals(place=place[order], num_steps=num_steps[order], **arrays)
