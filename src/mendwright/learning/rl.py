"""The policy update: from samples with advantages to new weights (paper B, sections 3.2 and 4.3).

Reads samples of complete groups; changes the model. Invariants: minibatches keep groups whole, so shared prefixes stay
shared; the order follows from the seed and the number of steps done; samples whose advantage is 0 are left out, but the
caller counts dropped groups (see `advantages.group`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel

from mendwright.config.learning import DapoConfig
from mendwright.errors import ConfigError
from mendwright.learning.learner import Learner
from mendwright.learning.losses import LOSSES, LossSettings
from mendwright.learning.samples import Sample, share_prefixes, weigh_by_trajectory


class PolicyTrainer:
    """Applies a policy-gradient loss to a model."""

    def __init__(self, model: PreTrainedModel, config: DapoConfig, *, num_steps: int | None = None) -> None:
        """Prepare the optimiser.

        Args:
            model: Changed in place.
            config: Loss, clip bounds, batch size, optimiser, compute.
            num_steps: Length of the learning-rate schedule in optimiser steps.

        Raises:
            ConfigError: unknown loss.
        """
        if config.loss not in LOSSES:
            raise ConfigError(f"loss {config.loss!r}; expected one of {sorted(LOSSES)}")
        self.config = config
        self.learner = Learner(model, config.optimizer, config.compute, num_steps=num_steps)
        self._loss = LOSSES[config.loss]
        self._settings = LossSettings(normaliser=1.0, eps_low=config.eps_low, eps_high=config.eps_high)

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One iteration: ``num_epochs`` passes in optimiser batches of about ``batch_size`` trajectories.

        Returns:
            Metrics averaged over the optimiser steps (counts and seconds are sums). ``policy/log_prob_gap`` is of the
            first step, where the weights are still those that sampled. Empty when nothing can be learned.
        """
        kept = share_prefixes([sample for sample in samples if sample.advantage != 0.0])
        if self.config.token_weighting == "trajectory":
            kept = weigh_by_trajectory(kept)
        steps: list[dict[str, float]] = []
        for _ in range(self.config.num_epochs):
            generator = np.random.default_rng([self.config.seed, self.learner.optimiser.num_done])
            for batch in minibatches(kept, self.config.batch_size, generator):
                steps.append(self.learner.step(batch, self._loss, self._settings))
        return combine_metrics([step for step in steps if step])


def minibatches(samples: Sequence[Sample], batch_size: int, generator: np.random.Generator) -> list[list[Sample]]:
    """Shuffle groups and cut them into batches of about equal size, none split.

    The number of batches is ``len(samples) / batch_size`` rounded up, so no small remainder gets a step of its own.
    """
    groups: dict[str, list[Sample]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.group_id or f"#{index}", []).append(sample)
    keys = list(groups)
    num_batches = min(len(keys), -(-len(samples) // batch_size))
    batches: list[list[Sample]] = [[] for _ in range(num_batches)]
    for at in generator.permutation(len(keys)):
        min(batches, key=len).extend(groups[keys[at]])
    return batches


def combine_metrics(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means over steps; sums for counts and seconds; the first step's ``policy/log_prob_gap``."""
    if not steps:
        return {}
    combined: dict[str, float] = {"optim/num_steps": float(len(steps))}
    for name in steps[0]:
        values = [step[name] for step in steps]
        if name == "policy/log_prob_gap":
            combined[name] = values[0]
        elif name.startswith("train/num_") or name.endswith("_s"):
            combined[name] = sum(values)
        elif name == "optim/num_skipped":
            combined[name] = values[-1]
        else:
            combined[name] = sum(values) / len(values)
    return combined
