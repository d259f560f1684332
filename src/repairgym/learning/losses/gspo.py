"""GSPO (arXiv 2507.18071, equations 5 to 7): the ratio, and so the clipping, is of the whole sequence.

s_i = exp(1/L_i sum over tokens of log(pi / pi_old)); J = 1/N sum over i of min(s_i * A_i, clip(s_i, ...) * A_i):
denominator ``trajectory``. A branch of a forked history has a ratio of its own. The advantage is one number per
sequence.
"""

from __future__ import annotations

import torch

from repairgym.config.algorithms import GspoLossConfig
from repairgym.learning.losses.base import LossOutput, log_ratio
from repairgym.learning.losses.clipping import clip_metrics, clipped_gain
from repairgym.learning.packing.forward import TokenScores


def gspo_loss(scores: TokenScores, normaliser: float, config: GspoLossConfig) -> LossOutput:
    """Clipped policy-gradient loss of sequences; ``normaliser`` is their number, the weights hold 1 / L_i.

    Returns:
        The loss share and the metrics of `clipping.clip_metrics`, each token with its sequence's ratio.
    """
    ratio = sequence_mean(log_ratio(scores), scores.row).exp()[scores.row]
    gain = clipped_gain(ratio, scores.advantage, config.eps_low, config.eps_high)
    loss = -(gain * scores.weight).sum() / normaliser
    return LossOutput(loss, clip_metrics(ratio, scores, config.eps_low, config.eps_high))


def sequence_mean(values: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """[N] values and their sequences -> [sequences] means."""
    num_rows = int(row.max()) + 1
    total = values.new_zeros(num_rows).index_add(0, row, values)
    return total / torch.bincount(row, minlength=num_rows).clamp(min=1)
