"""Forked histories as what the learner reads: one unforked trajectory per history.

Reads trajectories whose ledger has branches; makes parts of them. Invariants: a part holds the tokens as the policy saw
them; a token that was sampled once is an action in one part; parts have the trajectory's id and the numbers of its
turns, so denominators per trajectory and per turn count it once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from repairgym.ledger import UNKNOWN_VERSION, Branch, TokenLedger
from repairgym.records import Trajectory


def split_histories(trajectory: Trajectory) -> list[Trajectory]:
    """The histories of ``trajectory`` in which something was sampled; itself when its ledger never forked.

    A turn that belongs to another part has an empty span.
    """
    if not trajectory.ledger.branches:
        return [trajectory]
    parts = (_part(trajectory, number) for number in range(len(trajectory.ledger.branches)))
    return [part for part in parts if part.ledger.is_action.any()]


def _part(trajectory: Trajectory, number: int) -> Trajectory:
    ledger = trajectory.ledger
    branch = ledger.branches[number]
    end = ledger.branches[number + 1].start if number + 1 < len(ledger.branches) else len(ledger)
    positions = _positions(branch)
    offset_of = {int(position): offset for offset, position in enumerate(positions)}
    turns = tuple(
        turn.model_copy(update={"action_span": _moved(turn.action_span, offset_of, branch.start, end)})
        for turn in trajectory.turns
    )
    return replace(trajectory, ledger=_gather(ledger, positions, branch.start), turns=turns)


def _positions(branch: Branch) -> np.ndarray:
    """[tokens of the history] places in the flat arrays, in the order in which the policy saw them."""
    return np.concatenate([np.arange(start, end) for start, end in branch.spans] or [np.arange(0)])


def _gather(ledger: TokenLedger, positions: np.ndarray, start: int) -> TokenLedger:
    """The tokens at ``positions``; those before ``start`` were sampled in another history and are context here."""
    is_action = ledger.is_action[positions] & (positions >= start)
    return TokenLedger(
        token_id=ledger.token_id[positions],
        is_action=is_action,
        log_prob=np.where(is_action, ledger.log_prob[positions], np.float32(0.0)).astype(np.float32),
        policy_version=np.where(is_action, ledger.policy_version[positions], UNKNOWN_VERSION).astype(np.int32),
    )


def _moved(span: tuple[int, int], offset_of: dict[int, int], start: int, end: int) -> tuple[int, int]:
    """Where an action sampled in this history (flat positions ``start`` to ``end``) stands in it."""
    first, last = span
    if first == last or not start <= first < end:
        return (0, 0)
    return offset_of[first], offset_of[last - 1] + 1
