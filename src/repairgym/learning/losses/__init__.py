"""Losses by name.

Adding a policy loss: a file with a `PolicyLoss`, a member of `config.algorithms.LossConfig`, a line here; the
conformance suite `tests/learning/test_loss_conformance.py` runs it. `docs/howto/algorithms.md` has an example.
"""

from repairgym.config.algorithms import KlConfig, LossConfig, ReferenceKlConfig
from repairgym.learning.losses.base import Loss, LossOutput, PolicyLoss
from repairgym.learning.losses.cispo import cispo_loss
from repairgym.learning.losses.dapo import dapo_loss
from repairgym.learning.losses.dr_grpo import dr_grpo_loss
from repairgym.learning.losses.grpo import grpo_loss
from repairgym.learning.losses.gspo import gspo_loss
from repairgym.learning.losses.kl import with_kl
from repairgym.learning.losses.ppo import ppo_loss
from repairgym.learning.losses.preference import linear_loss, preference_loss
from repairgym.learning.losses.sft import sft_loss
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
    """The loss that ``config`` names with its settings bound, plus the KL term when there is one."""
    function = POLICY_LOSSES[config.type]

    def bound(scores: TokenScores, normaliser: float, /) -> LossOutput:
        return function(scores, normaliser, config)

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
