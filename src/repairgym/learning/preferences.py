"""Step-level DPO on pairs of actions (Agent Q, arXiv 2408.07199), an offline alternative to policy gradients.

Reads pairs of samples that share their history; changes the model. Guarantees: the reference is the policy before
`update` (Agent Q, Algorithm 1), so the first step has margin 0; pairs stay whole; the order follows from the seed and
the number of steps done.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import PreTrainedModel

from repairgym.config.learning import StepDpoConfig
from repairgym.learning.learner import Learner
from repairgym.learning.losses import linear_loss, preference_loss
from repairgym.learning.rl import combine_metrics
from repairgym.learning.samples import Sample


@dataclass(frozen=True)
class Pair:
    """Two actions after one history; only the action's tokens are learned."""

    chosen: Sample
    rejected: Sample

    def __post_init__(self) -> None:
        """Check that the samples form a pair; `ValueError` if the histories differ, or an action is empty."""
        firsts = [np.flatnonzero(sample.weight) for sample in (self.chosen, self.rejected)]
        if not all(len(positions) for positions in firsts):
            raise ValueError("a pair needs learned tokens in both actions; one has none")
        start = int(firsts[0][0])
        if start != firsts[1][0] or not np.array_equal(self.chosen.token_id[:start], self.rejected.token_id[:start]):
            raise ValueError("the actions of a pair must follow one history, token for token; these histories differ")


class PreferenceTrainer:
    """Makes chosen actions more probable than rejected ones, relative to the policy before the update."""

    def __init__(self, model: PreTrainedModel, config: StepDpoConfig, *, num_steps: int | None = None) -> None:
        """Prepare the optimizer; ``model`` is changed in place."""
        self.config = config
        self.learner = Learner(model, config.optimizer, config.compute, trained=config.trained, num_steps=num_steps)

    def update(self, pairs: Sequence[Pair]) -> dict[str, float]:
        """Make ``num_epochs`` passes over the pairs; return metrics averaged over the steps, empty without pairs.

        ``preference/accuracy`` is the share of pairs with a positive margin before each step.
        """
        before = self._sums(pairs)
        steps = []
        for _ in range(self.config.num_epochs):
            generator = np.random.default_rng([self.config.seed, self.learner.optimizer.num_done])
            for at in np.array_split(generator.permutation(len(pairs)), -(-len(pairs) // self.config.batch_size) or 1):
                if len(at):
                    steps.append(self._step([pairs[index] for index in at], before[:, at]))
        return combine_metrics(steps)

    def _step(self, pairs: Sequence[Pair], before: np.ndarray) -> dict[str, float]:
        chosen, rejected = torch.from_numpy(self._sums(pairs) - before)
        losses, derivatives = preference_loss(chosen, rejected, self.config.beta)
        samples = [
            replace(sample, advantage=sign * float(derivative))
            for pair, derivative in zip(pairs, derivatives, strict=True)
            for sample, sign in ((pair.chosen, -1.0), (pair.rejected, 1.0))
        ]
        metrics = self.learner.step(samples, linear_loss, float(len(pairs)))
        margin = self.config.beta * (chosen - rejected)
        return metrics | {
            "preference/loss": float(losses.mean()),
            "preference/accuracy": float((margin > 0).double().mean()),
            "preference/margin": float(margin.mean()),
        }

    def _sums(self, pairs: Sequence[Pair]) -> np.ndarray:
        """[2, pairs] float64 weighted log-probabilities of the chosen and of the rejected actions."""
        samples = [sample for pair in pairs for sample in (pair.chosen, pair.rejected)]
        measured = self.learner.measure(samples)
        sums = [float(m.log_prob.astype(np.float64) @ s.weight) for m, s in zip(measured, samples, strict=True)]
        return np.array(sums, dtype=np.float64).reshape(-1, 2).T
