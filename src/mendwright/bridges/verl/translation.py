"""Our RL configuration in verl's words (verl 0.9.1, `verl/trainer/config/ppo_trainer.yaml`).

Reads `RlConfig`, `RolloutConfig` and `VerlConfig`; makes settings. Invariants: every value of ours is translated, is
carried out by our own code inside the episodes, or is refused by name when it is not the neutral one; nothing is a
silent no-op. Imports no verl.
"""

from __future__ import annotations

from mendwright.bridges.verl import learned_settings, machine_settings
from mendwright.bridges.verl.leaves import Leaves
from mendwright.bridges.verl.refusals import problems_of
from mendwright.bridges.verl.settings import Setting, Settings
from mendwright.config.recipes import RlConfig
from mendwright.config.rollout import RolloutConfig
from mendwright.config.verl import VerlConfig
from mendwright.errors import ConfigError


def translate(rl: RlConfig, rollout: RolloutConfig, machine: VerlConfig, seed: int) -> list[Setting]:
    """What verl is told for one stage of RL, without paths and names.

    Raises:
        ConfigError: verl has no counterpart of a value; all such values are named.
    """
    leaves = Leaves({"rl": rl, "rollout": rollout})
    settings = Settings(leaves, machine, seed)
    learned_settings.translate(settings)
    machine_settings.translate(settings)
    problems = settings.problems + problems_of(leaves)
    if problems:
        raise ConfigError(f"verl has no counterpart of: {'; '.join(problems)}. `mend train rl` has them all")
    return settings.found
