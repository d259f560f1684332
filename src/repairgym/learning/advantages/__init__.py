"""How much better a trajectory was than its group, by name.

Adding an estimator: a file with an `Estimator`, a member of `config.algorithms.AdvantageConfig`, a line here; the
conformance tests of `tests/learning/test_advantages.py` run it.
"""

from collections.abc import Sequence

from repairgym.config.algorithms import AdvantageConfig
from repairgym.learning.advantages.base import Estimator, GroupAdvantages, Outcome
from repairgym.learning.advantages.dr_grpo import estimate_dr_grpo
from repairgym.learning.advantages.gae import estimate_gae, token_advantages
from repairgym.learning.advantages.group import estimate_group, group_advantages
from repairgym.learning.advantages.reinforce_pp import estimate_reinforce_pp
from repairgym.learning.advantages.rloo import estimate_rloo

ESTIMATORS: dict[str, Estimator] = {
    "group": estimate_group,
    "dr_grpo": estimate_dr_grpo,
    "rloo": estimate_rloo,
    "reinforce_pp": estimate_reinforce_pp,
    "gae": estimate_gae,
}


def estimate_advantages(groups: Sequence[Sequence[Outcome]], config: AdvantageConfig) -> list[GroupAdvantages]:
    """Advantages of an iteration's groups, in their order, by the estimator that ``config`` names."""
    return ESTIMATORS[config.type](groups, config)


__all__ = [
    "ESTIMATORS",
    "Estimator",
    "GroupAdvantages",
    "Outcome",
    "estimate_advantages",
    "group_advantages",
    "token_advantages",
]
