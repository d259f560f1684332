"""The policy update: from samples with advantages to new weights (paper B, sections 3.2 and 4.3).

Reads samples of complete groups; changes the model. Guarantees: minibatches keep groups whole, so prefixes stay shared;
the order follows from the seed and the number of steps done. Samples with advantage 0 are left out where only the
advantage is learned; the caller counts dropped groups (`learning/advantages.py`).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedModel

from repairgym.config.algorithms import DegrpoLossConfig, DrGrpoLossConfig, NoKlConfig, PpoLossConfig
from repairgym.config.learning import AlgorithmConfig
from repairgym.errors import ConfigError
from repairgym.learning.denominators import cut_to_budget, weigh
from repairgym.learning.learned_tokens import LearnedTokens, learned_tokens
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
        """Prepare the optimizer; ``model`` is changed, ``reference`` never; `ConfigError` for a KL term without it."""
        self._has_kl = not isinstance(config.kl, NoKlConfig)
        if config.needs_reference and reference is None:
            raise ConfigError(
                f"kl.type={config.kl.type!r} with advantage.type={config.advantage.type!r} needs a reference model; "
                "give one, or set kl.type='none' and no teacher='start'"
            )
        self.config = config
        self.learner = Learner(
            model,
            config.optimizer,
            config.compute,
            trained=config.trained,
            num_steps=num_steps,
            value_learning_rate=config.loss.value_learning_rate if isinstance(config.loss, PpoLossConfig) else None,
        )
        self._reference = None if reference is None else self.learner.scorer_of(reference)
        self._loss = policy_loss(config.loss, config.kl)
        self.learned: list[LearnedTokens] = []
        """Tokens that the newest update learned, by sample, in its first pass over them."""

    def update(
        self, samples: Sequence[Sample], demonstrations: Sequence[Sample] = (), demonstration_coefficient: float = 1.0
    ) -> dict[str, float]:
        """Run ``num_epochs`` passes in optimizer batches of about ``batch_size`` trajectories; return combined metrics.

        The mean negative log-likelihood per token of supervised ``demonstrations`` is added to the loss, times the
        coefficient (xi of AHPO, arXiv 2510.08540). No metrics when nothing can be learned.
        """
        learns_without_advantage = self._has_kl or self.learner.value_head is not None
        used = [s for s in samples if s.has_advantage or ((learns_without_advantage or s.hint) and s.num_learned)]
        used, prepared_metrics = prepare(used, self.learner, self.config, self._reference)
        steps: list[dict[str, float]] = []
        self.learned = []
        for epoch in range(self.config.num_epochs):
            generator = np.random.default_rng([self.config.seed, self.learner.optimizer.num_done])
            # Demonstrations matter most where every group failed and nothing else can be learned.
            batches = minibatches(used, self.config.batch_size, generator) or ([[]] if demonstrations else [])
            for index, batch in enumerate(batches):
                imitated = demonstrations[index :: len(batches)]
                terms = self._terms(batch, imitated, demonstration_coefficient)
                steps.append(self.learner.step_terms(terms))
                if not epoch:
                    self.learned += learned_tokens(terms[0], len(steps) - 1)
        metrics = combine_metrics([step for step in steps if step])
        return metrics | prepared_metrics if metrics else {}

    def _terms(self, batch: Sequence[Sample], imitated: Sequence[Sample], coefficient: float) -> list[LossTerm]:
        loss, budget = self.config.loss, self.config.token_budget
        if budget is not None:
            weighed, normalizer = cut_to_budget(batch, budget), float(budget)
        else:
            max_action_tokens = loss.max_action_tokens if isinstance(loss, DrGrpoLossConfig) else None
            mode_weight = loss.mode_weight if isinstance(loss, DegrpoLossConfig) else 1.0
            weighed, normalizer = weigh(batch, loss.denominator, max_action_tokens, mode_weight)
        corrected = [s if s.correction is None else replace(s, weight=s.weight * s.correction) for s in weighed]
        terms = [LossTerm(corrected, self._loss, normalizer, scores={})]
        num_imitated = sum(float(sample.weight.sum()) for sample in imitated)
        if num_imitated and coefficient > 0:
            terms.append(LossTerm(imitated, sft_loss, num_imitated / coefficient, DEMONSTRATION_PREFIX))
        return terms


def minibatches(samples: Sequence[Sample], batch_size: int, generator: np.random.Generator) -> list[list[Sample]]:
    """Shuffle groups and cut them into batches of about equally many trajectories; no group is split.

    The number of batches is that of trajectories over ``batch_size`` rounded up, so no small remainder gets a step of
    its own. A trajectory whose history forked counts once, however many samples it is.
    """
    groups: dict[str, list[Sample]] = {}
    trajectories: dict[str, set[str]] = {}
    for index, sample in enumerate(samples):
        key = sample.group_id or f"#{index}"
        groups.setdefault(key, []).append(sample)
        trajectories.setdefault(key, set()).add(sample.trajectory_id or f"#{index}")
    keys = list(groups)
    num_batches = min(len(keys), -(-sum(map(len, trajectories.values())) // batch_size))
    batches: list[list[Sample]] = [[] for _ in range(num_batches)]
    sizes = [0] * num_batches
    for at in generator.permutation(len(keys)):
        smallest = sizes.index(min(sizes))
        batches[smallest].extend(groups[keys[at]])
        sizes[smallest] += len(trajectories[keys[at]])
    return batches


def combine_metrics(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Average metrics over the steps that have them; sum counts and seconds.

    ``policy/log_prob_gap`` is of the first step, whose weights are still those that sampled.
    """
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
