"""Supervised training: pre-training on texts, imitation of teachers, rejection-sampling fine-tuning.

Reads samples; changes the model. Guarantees: the samples of step k follow from the config's seed and k alone, so a
resumed run continues the same sequence of batches; samples of one task are all learned or all validation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from transformers import PreTrainedModel

from repairgym.config.learning import ChoiceConfig, EntropyWindowChoice, LastChoice, LossChoice, SftConfig
from repairgym.errors import ConfigError
from repairgym.learning.learner import Learner
from repairgym.learning.losses import sft_loss
from repairgym.learning.samples import Sample


class SftTrainer:
    """Trains a model on a fixed set of samples."""

    def __init__(self, model: PreTrainedModel, config: SftConfig, *, num_steps: int | None = None) -> None:
        """Prepare the optimizer; ``model`` is changed in place, ``num_steps`` is the length of the schedule."""
        self.config = config
        self.learner = Learner(model, config.optimizer, config.compute, trained=config.trained, num_steps=num_steps)

    @classmethod
    def for_samples(cls, model: PreTrainedModel, config: SftConfig, num_samples: int) -> SftTrainer:
        """Return a trainer whose schedule covers ``config.num_epochs`` over ``num_samples``."""
        return cls(model, config, num_steps=num_steps_of(config, num_samples))

    def step(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Make one optimizer step on exactly these samples; return metrics (see `Learner.step`)."""
        return self.learner.step(samples, sft_loss)

    def evaluate(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Return ``sft/nll``, ``policy/entropy`` and counts of these samples without learning."""
        return self.learner.evaluate(samples, sft_loss)

    def fit(self, samples: Sequence[Sample]) -> Iterator[dict[str, float]]:
        """Train from the optimizer's current step to the end of the last epoch; yield each step's metrics.

        Raises:
            ValueError: a batch has nothing to learn (`learnable`): no step would follow, and the same batch would come
                again for ever.
        """
        per_epoch = -(-len(samples) // self.config.batch_size)
        while self.learner.optimizer.num_done < num_steps_of(self.config, len(samples)):
            epoch, index = divmod(self.learner.optimizer.num_done, per_epoch)
            order = epoch_order(len(samples), self.config.seed, epoch)
            chosen = order[index * self.config.batch_size : (index + 1) * self.config.batch_size]
            metrics = self.step([samples[at] for at in chosen])
            if not metrics:
                raise ValueError(f"none of the {len(chosen)} samples of a batch has a learned token")
            yield metrics


def learnable(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples with a learned token: one whose only turn is masked would be a step without a gradient.

    Raises:
        ConfigError: there is none.
    """
    chosen = [sample for sample in samples if sample.num_learned]
    if samples and not chosen:
        raise ConfigError(
            f"none of {len(samples)} samples has a token to learn: every turn is masked; collect more, or set "
            "is_format_error_masked=false"
        )
    return chosen


def num_steps_of(config: SftConfig, num_samples: int) -> int:
    """Count the optimizer steps of ``config.num_epochs`` epochs; the last batch of an epoch may be smaller."""
    return config.num_epochs * -(-num_samples // config.batch_size)


def epoch_order(num_samples: int, seed: int, epoch: int) -> np.ndarray:
    """[num_samples] permutation of one epoch."""
    return np.random.default_rng([seed, epoch]).permutation(num_samples)


class Selection:
    """The choice of a stage's checkpoint: the last, the one of least validation loss, or by entropy."""

    def __init__(self, choice: ChoiceConfig, best: float | None = None) -> None:
        """``best``: the best value of an interrupted run."""
        self._choice = choice
        self.best = best

    def is_best(self, nll: float, entropy: float) -> bool:
        """Record a checkpoint; True if it is the best so far. Means are over the validation set's learned tokens."""
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
    """Return (learned, validation), none for the choice ``last``; `ConfigError` if there are too few groups."""
    if isinstance(config.choice, LastChoice):
        return list(samples), []
    names = {sample.group_id for sample in samples}
    groups = sorted(names, key=lambda name: hashlib.sha256(f"{config.seed}:{name}".encode()).digest())
    if len(groups) < 2:
        raise ConfigError(
            f"choice.type={config.choice.type!r} holds out tasks for validation, but there is only {len(groups)}; "
            "collect more, or set choice.type='last'"
        )
    held_out = set(groups[: max(1, round(config.choice.validation_share * len(groups)))])
    return (
        [sample for sample in samples if sample.group_id not in held_out],
        [sample for sample in samples if sample.group_id in held_out],
    )
