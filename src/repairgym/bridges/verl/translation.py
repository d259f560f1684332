"""Our RL configuration in verl's words (verl 0.9.1, `verl/trainer/config/ppo_trainer.yaml`).

Reads `RlConfig`, `RolloutConfig` and `VerlConfig`; makes settings. Invariants: every value of ours is translated, is
carried out by our own code inside the episodes, or is refused by name when it is not the neutral one; nothing is a
silent no-op. Imports no verl.
"""

from __future__ import annotations

from repairgym.bridges.verl import learned_settings, machine_settings
from repairgym.bridges.verl.flat_config import FlatConfig
from repairgym.bridges.verl.settings import Setting, Settings
from repairgym.bridges.verl.unsupported import problems_of
from repairgym.config.recipes import RlConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.verl import VerlConfig
from repairgym.errors import ConfigError


def translate(rl: RlConfig, rollout: RolloutConfig, machine: VerlConfig, seed: int) -> list[Setting]:
    """What verl is told for one stage of RL, without paths and names.

    Raises:
        ConfigError: verl has no counterpart of a value; all such values are named.
    """
    leaves = FlatConfig({"rl": rl, "rollout": rollout})
    settings = Settings(leaves, machine, seed)
    learned_settings.translate(settings)
    machine_settings.translate(settings)
    problems = settings.problems + problems_of(leaves)
    if problems:
        raise ConfigError(f"verl has no counterpart of: {'; '.join(problems)}. `repairgym train rl` has them all")
    return settings.found
