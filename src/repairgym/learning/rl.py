"""The policy update: from samples with advantages to new weights (paper B, sections 3.2 and 4.3).

Reads samples of complete groups; changes the model. Invariants: minibatches keep groups whole, so shared prefixes stay
shared; the order follows from the seed and the number of steps done; samples whose advantage is 0 are left out where
nothing but the advantage is learned, but the caller counts dropped groups (see `learning/advantages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedModel

from repairgym.config.algorithms import DrGrpoLossConfig, NoKlConfig, PpoLossConfig
from repairgym.config.learning import AlgorithmConfig
from repairgym.errors import ConfigError
from repairgym.learning.denominators import cut_to_budget, weigh
from repairgym.learning.learner import Learner, LossTerm
from repairgym.learning.losses import policy_loss, sft_loss
from repairgym.learning.preparation import prepare
from repairgym.learning.samples import Sample

DEMONSTRATION_PREFIX = "demonstration/"


class PolicyTrainer:
    """Applies a policy-gradient loss to a model."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: AlgorithmConfig,
        *,
        num_steps: int | None = None,
        reference: PreTrainedModel | None = None,
    ) -> None:
        """Prepare the optimiser.

        Args:
            model: Changed in place.
            config: Loss, advantages, corrections, batch size, optimiser, compute.
            num_steps: Length of the learning-rate schedule in optimiser steps.
            reference: Where the distance of ``config.kl`` is measured from; never changed.

        Raises:
            ConfigError: a KL term without a reference.
        """
        self._has_kl = not isinstance(config.kl, NoKlConfig)
        if self._has_kl and reference is None:
            raise ConfigError(f"kl.type={config.kl.type!r} needs a reference model; give one, or set kl.type='none'")
        self.config = config
        value_learning_rate = config.loss.value_learning_rate if isinstance(config.loss, PpoLossConfig) else None
        self.learner = Learner(
            model,
            config.optimizer,
            config.compute,
            trained=config.trained,
            num_steps=num_steps,
            value_learning_rate=value_learning_rate,
        )
        self._reference = reference
        self._loss = policy_loss(config.loss, config.kl)

    def update(
        self, samples: Sequence[Sample], demonstrations: Sequence[Sample] = (), demonstration_coefficient: float = 1.0
    ) -> dict[str, float]:
        """One iteration: ``num_epochs`` passes in optimiser batches of about ``batch_size`` trajectories.

        Args:
            samples: Of this iteration's groups.
            demonstrations: Supervised samples; their mean negative log-likelihood per token is added to the loss.
            demonstration_coefficient: Its factor (xi of AHPO, arXiv 2510.08540).

        Returns:
            Metrics averaged over the optimiser steps (counts and seconds are sums). ``policy/log_prob_gap`` is of the
            first step, where the weights are still those that sampled. Empty when nothing can be learned.
        """
        is_all_kept = self._has_kl or self.learner.value_head is not None
        kept = [sample for sample in samples if sample.has_advantage or (is_all_kept and sample.num_learned)]
        kept, prepared_metrics = prepare(kept, self.learner, self.config, self._reference)
        steps: list[dict[str, float]] = []
        for _ in range(self.config.num_epochs):
            generator = np.random.default_rng([self.config.seed, self.learner.optimiser.num_done])
            # Demonstrations are wanted most where every group failed and nothing else can be learned.
            batches = minibatches(kept, self.config.batch_size, generator) or ([[]] if demonstrations else [])
            for index, batch in enumerate(batches):
                imitated = demonstrations[index :: len(batches)]
                steps.append(self.learner.step_terms(self._terms(batch, imitated, demonstration_coefficient)))
        metrics = combine_metrics([step for step in steps if step])
        return metrics | prepared_metrics if metrics else {}

    def _terms(self, batch: Sequence[Sample], imitated: Sequence[Sample], coefficient: float) -> list[LossTerm]:
        loss, budget = self.config.loss, self.config.token_budget
        if budget is not None:
            weighed, normaliser = cut_to_budget(batch, budget), float(budget)
        else:
            max_action_tokens = loss.max_action_tokens if isinstance(loss, DrGrpoLossConfig) else None
            weighed, normaliser = weigh(batch, loss.denominator, max_action_tokens)
        terms = [LossTerm([_with_correction(sample) for sample in weighed], self._loss, normaliser)]
        num_imitated = sum(float(sample.weight.sum()) for sample in imitated)
        if num_imitated and coefficient > 0:
            terms.append(LossTerm(imitated, sft_loss, num_imitated / coefficient, DEMONSTRATION_PREFIX))
        return terms


def _with_correction(sample: Sample) -> Sample:
    if sample.correction is None:
        return sample
    return replace(sample, weight=sample.weight * sample.correction)


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
    """Means over the steps that have them; sums for counts and seconds; the first step's ``policy/log_prob_gap``."""
    if not steps:
        return {}
    combined: dict[str, float] = {"optim/num_steps": float(len(steps))}
    for name in dict.fromkeys(name for step in steps for name in step):
        values = [step[name] for step in steps if name in step]
        if name == "policy/log_prob_gap":
            combined[name] = values[0]
        elif name.startswith("train/num_") or name.endswith("_s"):
            combined[name] = sum(values)
        elif name == "optim/num_skipped":
            combined[name] = values[-1]
        else:
            combined[name] = sum(values) / len(values)
    return combined
