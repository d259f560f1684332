"""Learned tokens of an update: advantage, weight, and log-probability and entropy under the learner.

Reads the samples and scores of one optimizer step; makes records by turn, from which the run store finds the tokens of
a trajectory again. Guarantee: values are those of the step itself; nothing is computed a second time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from repairgym.learning.learner import LossTerm
from repairgym.learning.samples import Sample


@dataclass(frozen=True)
class LearnedTokens:
    """The learned tokens of one sample; arrays are [learned]."""

    trajectory_id: str
    turn: np.ndarray
    """int32 turn of the trajectory, from 0."""
    offset: np.ndarray
    """int32 place of the token among those of its turn."""
    weight: np.ndarray
    """float32 weight in the loss, before the normalizer of the batch; corrections of the sampler included."""
    advantage: np.ndarray
    """float32."""
    old_log_prob: np.ndarray
    """float32, the denominator of the ratio: the sampler's, or with a correction the learner's before the update."""
    log_prob: np.ndarray
    """float32 under the learner, just before the optimizer step that learned the token."""
    entropy: np.ndarray
    """float32 of the learner's distribution at the token, in nats."""
    num_steps: int
    """Optimizer steps of the same update before this one."""


def learned_tokens(term: LossTerm, num_steps: int) -> list[LearnedTokens]:
    """Return what a term with scores learned, after ``num_steps`` steps of its update."""
    return list(_of_samples(term, num_steps))


def _of_samples(term: LossTerm, num_steps: int) -> Iterator[LearnedTokens]:
    for index, (log_prob, entropy) in sorted((term.scores or {}).items()):
        sample = term.samples[index]
        at = np.flatnonzero(sample.weight)
        if sample.trajectory_id and sample.turn is not None and (sample.turn[at] >= 0).all():
            turn = sample.turn[at]
            yield LearnedTokens(
                sample.trajectory_id,
                turn,
                at.astype(np.int32) - _turn_starts(sample)[turn],
                sample.weight[at],
                np.broadcast_to(np.float32(sample.advantage), len(sample))[at],
                sample.old_log_prob[at],
                log_prob,
                entropy,
                num_steps,
            )


def _turn_starts(sample: Sample) -> np.ndarray:
    """[turns] int32 first place of each turn in the sample; 0 for turns of other samples."""
    assert sample.turn is not None
    numbers, places = np.unique(sample.turn, return_index=True)
    starts = np.zeros(max(int(numbers[-1]), 0) + 1, dtype=np.int32)
    starts[numbers[numbers >= 0]] = places[numbers >= 0]
    return starts
