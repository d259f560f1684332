"""Episodes as rows of TRL's `GRPOTrainer`: one row per prompt, with a mask of the sampled tokens.

Reads graded trajectories; makes `Row` records and rewards. Guarantees: ids and log-probabilities are those of the
ledger, no text is encoded again; an episode without a verdict has no learned token and the reward None (never 0), which
TRL leaves out of the group's baseline.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repairgym.learning.samples import policy_sample
from repairgym.records import Trajectory, VerdictKind


@dataclass(frozen=True)
class Row:
    """One episode under TRL's names. The three lists of the completion have one length, at least 1."""

    prompt_ids: list[int]
    """Everything before the first sampled token."""
    completion_ids: list[int]
    """From the first sampled token to the last, observations between them included."""
    logprobs: list[float]
    """Under the sampling policy; 0.0 where the environment wrote."""
    env_mask: list[int]
    """1 where the policy sampled, 0 where the environment wrote."""


def make_row(trajectory: Trajectory, stop_token_id: int) -> Row:
    """Make the row of an episode; without learned tokens where it is invalid or sampled nothing.

    Args:
        trajectory: With one history.
        stop_token_id: Replaces an empty completion: TRL needs a token there.

    Raises:
        ValueError: the history forked, or a sampled token has no log-probability.
    """
    if trajectory.ledger.branches:
        raise ValueError(f"trajectory {trajectory.id}: its history forked, but a row of TRL holds one history")
    ids = trajectory.ledger.token_id
    sample = policy_sample(trajectory, 0.0) if trajectory.verdict.is_valid else None
    learned = np.flatnonzero(sample.weight) if sample is not None else np.empty(0, int)
    if sample is None or not len(learned):
        prompt = ids[: int(np.argmax(trajectory.ledger.is_action))] if trajectory.ledger.is_action.any() else ids
        return Row(prompt.tolist() or [stop_token_id], [stop_token_id], [0.0], [0])
    start, end = int(learned[0]), int(learned[-1]) + 1
    return Row(
        prompt_ids=ids[:start].tolist(),
        completion_ids=ids[start:end].tolist(),
        logprobs=sample.old_log_prob[start:end].tolist(),
        env_mask=(sample.weight[start:end] > 0).astype(int).tolist(),
    )


def make_output(trajectories: Sequence[Trajectory], stop_token_id: int) -> dict[str, list[Any]]:
    """Return the output of a `rollout_func`, with the verdicts for `verdict_reward`."""
    rows = [make_row(trajectory, stop_token_id) for trajectory in trajectories]
    verdicts = [trajectory.verdict for trajectory in trajectories]
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.completion_ids for row in rows],
        "logprobs": [row.logprobs for row in rows],
        "env_mask": [row.env_mask for row in rows],
        "verdict": [verdict.kind.value for verdict in verdicts],
        "reward": [verdict.reward if verdict.is_valid else None for verdict in verdicts],
    }


def verdict_reward(
    *,
    verdict: Sequence[str],
    reward: Sequence[float | None],
    log_metric: Callable[[str, float], None] | None = None,
    **_: Any,
) -> list[float | None]:
    """Return our grader's rewards to `GRPOTrainer`; None where there is no verdict (*invalid*).

    TRL logs the share of each kind of verdict as ``verdicts/<kind>``.
    """
    if log_metric is not None:
        for kind in VerdictKind:
            log_metric(f"verdicts/{kind.value}", sum(name == kind.value for name in verdict) / len(verdict))
    return list(reward)
