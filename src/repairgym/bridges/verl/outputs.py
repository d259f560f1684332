"""Rows of token ids, mask and log-probabilities of a finished trajectory, for verl's trainer (`AgentLoopOutput`).

Reads token ledgers, never text; makes plain records. Guarantees: a row is one history of the episode as the policy saw
it; the mask selects the tokens sampled in it, with the log-probability and the version of their sampling; a response
begins and ends with a sampled token, so its last token carries the reward; an invalid verdict makes no row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from repairgym.config.algorithms import OverlongPolicy
from repairgym.errors import ModelReplyError
from repairgym.learning.rewards import RewardShaping
from repairgym.learning.samples import ERRORS, split_histories
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.records import OVERLONG, Task, Trajectory


@dataclass(frozen=True)
class Row:
    """One history; all lists except ``prompt_ids`` have one length."""

    prompt_ids: list[int]
    """Everything before the first sampled token."""
    response_ids: list[int]
    response_mask: list[int]
    """1: sampled in this history and learned."""
    response_log_probs: list[float]
    """Under the sampling policy; 0.0 where not sampled."""
    min_version: int
    """Lowest version of the weights that sampled its tokens."""
    max_version: int
    """Highest."""
    error_spans: tuple[tuple[int, int], ...] = ()
    """Of the response: turns that ended in a format or tool error."""


@dataclass(frozen=True)
class Outcome:
    """An episode's rows and reward."""

    rows: tuple[Row, ...]
    """Empty where the group continues without the episode: invalid, or over-long and dropped."""
    reward: float = 0.0
    raw_reward: float = 0.0
    """Of the verdict, before shaping."""


def outcome_of(task: Task, trajectory: Trajectory, shaping: RewardShaping, overlong: OverlongPolicy) -> Outcome:
    """Return rows and reward of ``trajectory`` for verl.

    Raises:
        ModelReplyError: a sampled token has no log-probability or no version.
    """
    (reward,) = shaping.shape(task, (trajectory,))
    is_overlong = trajectory.stop_reason in OVERLONG
    if reward is None or (is_overlong and overlong == "drop"):
        return Outcome(())
    is_learned = not is_overlong or overlong == "penalise"
    rows = tuple(_row(part, is_learned) for part in split_histories(trajectory) if part.ledger.is_action.any())
    return Outcome(rows, reward, trajectory.verdict.reward)


def _row(part: Trajectory, is_learned: bool) -> Row:
    ledger = part.ledger
    sampled = np.flatnonzero(ledger.is_action)
    first, end = int(sampled[0]), int(sampled[-1]) + 1
    versions, log_probs = ledger.policy_version[sampled], ledger.log_prob[sampled]
    if (versions == UNKNOWN_VERSION).any() or not np.isfinite(log_probs).all():
        raise ModelReplyError("sampled tokens have no log-probability or no version; expected both from verl's servers")
    mask = ledger.is_action[first:end] & is_learned
    return Row(
        prompt_ids=ledger.token_id[:first].tolist(),
        response_ids=ledger.token_id[first:end].tolist(),
        response_mask=[int(learned) for learned in mask],
        response_log_probs=ledger.log_prob[first:end].tolist(),
        min_version=int(versions.min()),
        max_version=int(versions.max()),
        error_spans=tuple(
            (turn.action_span[0] - first, turn.action_span[1] - first)
            for turn in part.turns
            if turn.error in ERRORS and turn.action_span[0] < turn.action_span[1]
        ),
    )
