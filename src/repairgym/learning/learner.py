"""One optimizer step on a batch of samples, with gradient accumulation over micro-batches.

Reads samples; changes the model. Guarantees: the loss is normalized over the whole optimizer batch, so the cut into
micro-batches and their distribution over processes change results by float noise only; nothing here is random.
"""

import ctypes
import gc
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from repairgym.config.learning import ComputeConfig, LoraConfig, OptimizerConfig, TrainedConfig
from repairgym.errors import ConfigError
from repairgym.inference.engine.forward import check_supported
from repairgym.learning.adapters import add_lora
from repairgym.learning.distributed.context_parallel import context_group
from repairgym.learning.distributed.fsdp import check_processes, shard
from repairgym.learning.losses import Loss
from repairgym.learning.optimizers import Optimizer
from repairgym.learning.packing.batching import MicroBatch, pack
from repairgym.learning.packing.forward import Scorer, ValueHead, score
from repairgym.learning.samples import Sample
from repairgym.learning.weight_loading import fill, is_without_values, probe_of
from repairgym.sizing.positions import exact_positions


@dataclass(frozen=True)
class LossTerm:
    """Samples and a loss on them; an optimizer step minimizes a sum of terms."""

    samples: Sequence[Sample]
    loss: Loss
    normalizer: float | None = None
    """Denominator of the whole term; None: the sum of the weights, a weighted mean."""
    prefix: str = ""
    """Prefix of the names of its metrics."""
    scores: dict[int, list[np.ndarray]] | None = None
    """Gets, by index of the sample, [learned] log-probabilities and entropies before the step; None: not kept."""


@dataclass(frozen=True)
class Measured:
    """Log-probabilities and values of one sample; arrays are [tokens] float32, 0.0 where not learned."""

    log_prob: np.ndarray
    value: np.ndarray | None = None
    """None without a value head."""


class Learner:
    """A model and its optimizer."""

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: OptimizerConfig,
        compute: ComputeConfig,
        *,
        trained: TrainedConfig | None = None,
        num_steps: int | None = None,
        value_learning_rate: float | None = None,
    ) -> None:
        """Prepare ``model``, a causal LM with full attention and a plain output head; it is changed in place.

        ``trained`` is all weights (also None) or adapters, ``num_steps`` the length of the learning-rate schedule;
        without a ``value_learning_rate`` there is no value head.

        Raises:
            ConfigError: the model's log-probabilities would be wrong here, or several processes cannot train it with
                these settings.
        """
        if compute.num_threads is not None:
            torch.set_num_threads(compute.num_threads)
        check_supported(probe_of(model) if is_without_values(model) else model)
        self.world = check_processes(optimizer, compute)
        self._context = context_group(self.world, model)
        if isinstance(trained, LoraConfig):
            add_lora(model, trained)
        if compute.is_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.model = model
        self.compute = compute
        self.value_head = ValueHead(model) if value_learning_rate else None
        self._scorer = self.scorer_of(model, self.value_head)
        extra = [(list(self.value_head.parameters()), value_learning_rate or 0.0)] if self.value_head else []
        self.optimizer = Optimizer(model, optimizer, num_steps, extra)

    def scorer_of(self, model: PreTrainedModel, value_head: ValueHead | None = None) -> Scorer:
        """Return ``model``, such as a reference, ready to score with the processes of this learner."""
        scorer = Scorer(model, value_head, self._context)
        if self.world.size > 1:
            is_to_fill = is_without_values(model)
            shard(scorer, self.compute)
            if is_to_fill:
                fill(scorer, is_offloaded=self.compute.is_offloaded)
        return scorer

    def step(self, samples: Sequence[Sample], loss: Loss, normalizer: float | None = None) -> dict[str, float]:
        """Run `step_terms` with one term."""
        return self.step_terms([LossTerm(samples, loss, normalizer)])

    def step_terms(self, terms: Sequence[LossTerm]) -> dict[str, float]:
        """Learn from the whole batch; return means per learned token, counts and seconds before the update, if any."""
        begin = time.perf_counter()
        if not any(_normalizer(term) > 0 for term in terms):
            return {}
        self._train_mode()
        metrics = self._accumulate(terms)
        metrics |= self.optimizer.step()
        self._scorer.eval()
        metrics["train/step_s"] = time.perf_counter() - begin
        return metrics

    def evaluate(self, samples: Sequence[Sample], loss: Loss, normalizer: float | None = None) -> dict[str, float]:
        """Return the metrics of `step` without learning: no gradients, no optimizer metrics."""
        term = LossTerm(samples, loss, normalizer)
        if _normalizer(term) <= 0:
            return {}
        self._scorer.eval()
        with torch.no_grad():
            return self._accumulate([term])

    def measure(self, samples: Sequence[Sample], reference: Scorer | None = None) -> list[Measured]:
        """Compute log-probabilities (and values) of the learned tokens of each sample, without gradient.

        ``reference``: another model (`scorer_of`), without values; None: the model in training.
        """
        scorer = reference or self._scorer
        # A sample that is listed twice, in two pairs for instance, has one result.
        index = {id(sample): at for at, sample in enumerate(samples)}
        rows: dict[int, list[np.ndarray]] = {}
        scorer.eval()
        with torch.no_grad():
            for batch, is_counted in self._share(samples, scorer):
                part = score(scorer, batch, self.compute)
                if is_counted:
                    rows |= _rows_of(batch, index, part.log_prob, *([] if part.value is None else [part.value]))
        for part_of_rows in self.world.gather(rows):
            rows |= part_of_rows
        nothing = [np.zeros(0, dtype=np.float32)] * (2 if scorer.value_head else 1)
        return [
            Measured(*(_at_learned(sample, column) for column in rows.get(index[id(sample)], nothing)))
            for sample in samples
        ]

    def _share(self, samples: Sequence[Sample], scorer: Scorer) -> list[tuple[MicroBatch, bool]]:
        """The micro-batches of this process's context and whether they count (`World.share`)."""
        check_positions(scorer.model, max((sample.num_to_compute for sample in samples), default=0))
        batches = pack(samples, self.compute.micro_batch_tokens, is_sharing=scorer.is_sharing)
        return self.world.share(batches, [batch.num_tokens for batch in batches])

    def _train_mode(self) -> None:
        """Switch to training mode for checkpointing, but without dropout: learner and sampler have to agree."""
        self._scorer.train(bool(getattr(self.model, "is_gradient_checkpointing", False)))
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.eval()

    def _accumulate(self, terms: Sequence[LossTerm]) -> dict[str, float]:
        metrics: dict[str, float] = defaultdict(float)
        for term in terms:
            if _normalizer(term) > 0:
                for name, value in self._accumulate_term(term).items():
                    if name.startswith("train/"):
                        metrics[name] += value
                    else:
                        metrics[term.prefix + name] = value
        return dict(metrics)

    def _accumulate_term(self, term: LossTerm) -> dict[str, float]:
        """Compute the gradients of one term; ``train/`` metrics are sums, others means over its learned tokens."""
        normalizer = _normalizer(term)
        sums: dict[str, float] = defaultdict(float)
        index = {id(sample): at for at, sample in enumerate(term.samples)}
        own: dict[int, list[np.ndarray]] = {}
        for batch, is_counted in self._share(term.samples, self._scorer):
            scores = score(self._scorer, batch, self.compute)
            if term.scores is not None and is_counted:
                own |= _rows_of(batch, index, scores.log_prob.detach(), scores.entropy)
            output = term.loss(scores, normalizer)
            if torch.is_grad_enabled():
                # Sharding averages the processes' gradients; the loss is a sum over micro-batches, and the processes of
                # a context hold parts of its gradient.
                (output.loss * (self.world.size if is_counted else 0.0)).backward()
            if is_counted and self.world.is_counting:
                counts = {"train/num_learned_tokens": len(scores.weight), "train/num_tokens": batch.num_tokens}
                for name, value in (output.metric_sums | {"train/loss": output.loss.detach()} | counts).items():
                    sums[name] += float(value)
        if term.scores is not None:
            for part in self.world.gather(own):
                term.scores.update(part)
        sums = self.world.sums(sums)
        num_learned = sums["train/num_learned_tokens"]
        metrics = {name: value if name.startswith("train/") else value / num_learned for name, value in sums.items()}
        return metrics | {"train/num_samples": len(term.samples)}


def check_positions(model: PreTrainedModel, num_tokens: int) -> None:
    """Check that a sample of ``num_tokens`` is within the positions that are computed exactly here.

    Raises:
        ConfigError: it is not.
    """
    positions = exact_positions(model.config.to_dict())
    if positions is None or num_tokens <= positions:
        return
    remedy = (
        f"stretch it (repairgym models stretch MODEL OUT --factor {math.ceil(num_tokens / positions)} or more), or "
    )
    if positions < getattr(model.config, "max_position_embeddings", positions):
        remedy = "beyond them its rotary positions (LongRoPE) would follow from the other samples of a pack; "
    raise ConfigError(
        f"a sample has {num_tokens} tokens, and the model has {positions} positions: {remedy}limit episodes by "
        "rollout.pipeline.max_len_tokens"
    )


def _rows_of(batch: MicroBatch, index: dict[int, int], *columns: torch.Tensor) -> dict[int, list[np.ndarray]]:
    """By index of the sample: [learned] values of each column."""
    ends = np.cumsum([sample.num_learned for sample in batch.samples])[:-1]
    parts = [np.split(column.cpu().numpy(), ends) for column in columns]
    return {index[id(sample)]: list(values) for sample, *values in zip(batch.samples, *parts, strict=True)}


def _at_learned(sample: Sample, values: np.ndarray) -> np.ndarray:
    array = np.zeros(len(sample), dtype=np.float32)
    array[np.flatnonzero(sample.weight)] = values
    return array


def _normalizer(term: LossTerm) -> float:
    if term.normalizer is not None and any(sample.num_learned for sample in term.samples):
        return term.normalizer
    return sum(float(sample.weight.sum()) for sample in term.samples)


def release_memory() -> None:
    """Return freed memory to the system, if the C library can.

    glibc keeps blocks freed by training between live blocks: 1.4 of 2.7 GB after a supervised stage of the demo.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
