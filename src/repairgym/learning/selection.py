"""Which of the checkpoints of a supervised stage is kept: the last, the one of least validation loss, or by entropy.

Reads validation metrics as training goes on; says when the present weights are the best so far. Invariant: samples of
one task are all learned or all validation, decided by the task's group alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from repairgym.config.learning import ChoiceConfig, EntropyWindowChoice, LastChoice, LossChoice, SftConfig
from repairgym.errors import ConfigError
from repairgym.learning.data.samples import Sample


class Selection:
    """The best checkpoint so far, by `config`."""

    def __init__(self, choice: ChoiceConfig, best: float | None = None) -> None:
        """``best`` is what a killed run had reached."""
        self._choice = choice
        self.best = best

    def is_best(self, nll: float, entropy: float) -> bool:
        """Take note of a checkpoint; True when it is to be kept.

        Args:
            nll: Mean negative log-likelihood of the validation set's learned tokens.
            entropy: Mean entropy of the policy at these tokens, nats.
        """
        match self._choice:
            case LossChoice():
                badness = nll
                is_best = self.best is None or badness < self.best
            case EntropyWindowChoice(low=low, high=high):
                # The later of two checkpoints in the window has learned more.
                badness = max(low - entropy, entropy - high, 0.0)
                is_best = self.best is None or badness <= self.best
            case _:
                badness, is_best = 0.0, True
        if is_best:
            self.best = badness
        return is_best


def split_validation(samples: Sequence[Sample], config: SftConfig) -> tuple[list[Sample], list[Sample]]:
    """(samples to learn, samples to validate on); the second is empty for the choice ``last``.

    Raises:
        ConfigError: too few groups for one on each side.
    """
    if isinstance(config.choice, LastChoice):
        return list(samples), []
    names = {sample.group_id for sample in samples}
    groups = sorted(names, key=lambda name: hashlib.sha256(f"{config.seed}:{name}".encode()).digest())
    if len(groups) < 2:
        raise ConfigError(
            f"choice.type={config.choice.type!r} sets tasks apart for validation, but there is only {len(groups)}; "
            "collect more, or set choice.type='last'"
        )
    held_out = set(groups[: max(1, round(config.choice.validation_share * len(groups)))])
    return (
        [sample for sample in samples if sample.group_id not in held_out],
        [sample for sample in samples if sample.group_id in held_out],
    )
