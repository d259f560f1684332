"""Losses by name.

To add a policy loss: a `PolicyLoss`, a member of `config.algorithms.LossConfig`, a line in `POLICY_LOSSES`. The
conformance suite `tests/learning/losses/test_conformance.py` then runs it. `docs/howto/algorithms.md` has an example.
"""

from repairgym.config.algorithms import KlConfig, LossConfig, ReferenceKlConfig
from repairgym.learning.losses.base import Loss, LossOutput, PolicyLoss
from repairgym.learning.losses.policy_gradient import (
    cispo_loss,
    dapo_loss,
    dr_grpo_loss,
    grpo_loss,
    gspo_loss,
    ppo_loss,
    with_kl,
)
from repairgym.learning.losses.supervised import linear_loss, preference_loss, sft_loss
from repairgym.learning.packing.forward import TokenScores

POLICY_LOSSES: dict[str, PolicyLoss] = {
    "dapo": dapo_loss,
    "grpo": grpo_loss,
    "dr_grpo": dr_grpo_loss,
    "gspo": gspo_loss,
    "cispo": cispo_loss,
    "ppo": ppo_loss,
}


def policy_loss(config: LossConfig, kl: ReferenceKlConfig | None = None) -> Loss:
    """Return the loss that ``config`` names with its settings bound, plus the KL term if there is one."""
    function = POLICY_LOSSES[config.type]

    def bound(scores: TokenScores, normalizer: float, /) -> LossOutput:
        return function(scores, normalizer, config)

    return with_kl(bound, kl) if isinstance(kl, KlConfig) else bound


__all__ = [
    "POLICY_LOSSES",
    "Loss",
    "LossOutput",
    "PolicyLoss",
    "linear_loss",
    "policy_loss",
    "preference_loss",
    "sft_loss",
]
