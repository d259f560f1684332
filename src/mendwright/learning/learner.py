"""One optimiser step on a batch of samples, with gradient accumulation over micro-batches.

Reads samples; changes the model. Invariants: the loss is normalised over the whole optimiser batch, so the cut into
micro-batches changes results by float noise only; nothing random happens here.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from mendwright.config.learning import ComputeConfig, OptimizerConfig
from mendwright.learning.batching import pack
from mendwright.learning.forward import score
from mendwright.learning.losses import Loss, LossSettings
from mendwright.learning.optimisers import Optimiser
from mendwright.learning.samples import Sample
from mendwright.models.loading import require_trainable


class Learner:
    """A model, its optimiser, and how to compute a step."""

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: OptimizerConfig,
        compute: ComputeConfig,
        *,
        num_steps: int | None = None,
    ) -> None:
        """Prepare ``model`` for training (it is changed in place).

        Args:
            model: A causal LM with full attention and a plain output head.
            optimizer: Optimiser and schedule.
            compute: Micro-batches, precision, threads.
            num_steps: Length of the learning-rate schedule.

        Raises:
            ConfigError: the model's log-probabilities would be computed wrongly here.
        """
        if compute.num_threads is not None:
            torch.set_num_threads(compute.num_threads)
        require_trainable(model)
        self.model = model
        self.compute = compute
        self.optimiser = Optimiser(model, optimizer, num_steps)

    def step(self, samples: Sequence[Sample], loss: Loss, settings: LossSettings) -> dict[str, float]:
        """Learn from ``samples`` once.

        Args:
            samples: The whole optimiser batch.
            loss: Which loss.
            settings: Its numbers; the normaliser is replaced by the batch's own.

        Returns:
            Metrics of the batch before the update: means per learned token, counts and seconds; empty when no token
            is learned.
        """
        begin = time.perf_counter()
        normaliser = sum(float(sample.weight.sum()) for sample in samples)
        if normaliser <= 0:
            return {}
        # Training mode switches two things: dropout, which would part learner from sampler, and checkpointing.
        self.model.train(self._is_checkpointing)
        metrics = self._accumulate(samples, loss, replace(settings, normaliser=normaliser))
        metrics |= self.optimiser.step()
        self.model.eval()
        metrics["train/step_s"] = time.perf_counter() - begin
        return metrics

    def evaluate(self, samples: Sequence[Sample], loss: Loss, settings: LossSettings) -> dict[str, float]:
        """The metrics of `step` without learning: no gradients, no optimiser metrics; empty like there."""
        normaliser = sum(float(sample.weight.sum()) for sample in samples)
        if normaliser <= 0:
            return {}
        self.model.eval()
        with torch.no_grad():
            return self._accumulate(samples, loss, replace(settings, normaliser=normaliser))

    @property
    def _is_checkpointing(self) -> bool:
        return bool(getattr(self.model, "is_gradient_checkpointing", False))

    def _accumulate(self, samples: Sequence[Sample], loss: Loss, settings: LossSettings) -> dict[str, float]:
        sums: dict[str, float] = defaultdict(float)
        num_learned = num_tokens = num_padded = 0
        # With gradient checkpointing transformers drops the cache that carries shared prefixes.
        is_sharing = not self._is_checkpointing
        for batch in pack(samples, self.compute.micro_batch_tokens, is_sharing=is_sharing):
            total = torch.zeros((), device=next(self.model.parameters()).device)
            for scores in score(self.model, batch, self.compute):
                output = loss(scores, settings)
                total = total + output.loss
                num_learned += len(scores.weight)
                for name, value in output.metric_sums.items():
                    sums[name] += float(value)
            if torch.is_grad_enabled():
                torch.autograd.backward(total)
            sums["train/loss"] += float(total.detach())
            num_tokens += batch.num_tokens
            num_padded += batch.num_padded_tokens
        metrics = {name: value if name == "train/loss" else value / num_learned for name, value in sums.items()}
        counts = {"train/num_samples": len(samples), "train/num_learned_tokens": num_learned}
        return metrics | counts | {"train/num_tokens": num_tokens, "train/num_padded_tokens": num_padded}
