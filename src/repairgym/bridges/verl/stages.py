"""The stages of RL that verl learns, from the configuration of any recipe of ours.

Reads the configuration of `repairgym train rl`, `distil_then_grpo` or `dapo_two_stage`; makes `Stage` records. Invariant:
what verl cannot do in any stage is refused by name before the first begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from repairgym.bridges.verl.translation import translate
from repairgym.config.commands import RlCommandConfig
from repairgym.config.recipes import RlConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.training import DistilThenGrpoConfig, TwoStageConfig
from repairgym.config.verl import VerlConfig, VerlRecipe
from repairgym.errors import ConfigError
from repairgym.recipes.dapo_two_stage import STAGE_1, STAGE_2
from repairgym.recipes.distil_then_grpo import GRPO
from repairgym.rollout.names import RL


@dataclass(frozen=True)
class Stage:
    """One stage of RL under verl."""

    phase: str
    rl: RlConfig
    rollout: RolloutConfig
    seed: int = 0
    comments: Mapping[str, str] | None = None
    """Dotted key of ``rl`` and ``rollout`` -> what the TOML says behind it."""


VerlSource = RlCommandConfig | DistilThenGrpoConfig | TwoStageConfig
SOURCES: dict[VerlRecipe, type[VerlSource]] = {
    "rl": RlCommandConfig,
    "distil_then_grpo": DistilThenGrpoConfig,
    "dapo_two_stage": TwoStageConfig,
}
"""Recipe -> the configuration of its command."""


def stages_of(config: VerlSource, comments: Mapping[str, str] | None = None) -> list[Stage]:
    """The stages of RL of a recipe; paper A's supervised part comes before them and is not verl's.

    Raises:
        ConfigError: episodes are to run on a cluster of our own.
    """
    if isinstance(config, RlCommandConfig) and config.cluster.is_used:
        raise ConfigError(
            f"cluster.address={config.cluster.address!r}: verl places episodes beside its own processes; leave "
            "cluster.* out and name a running Ray cluster as verl.ray_address"
        )
    if isinstance(config, TwoStageConfig):
        return [
            Stage(phase, stage.rl, stage.rollout, config.seed, _below(comments, name))
            for phase, name, stage in ((STAGE_1, "stage_1", config.stage_1), (STAGE_2, "stage_2", config.stage_2))
        ]
    phase = GRPO if isinstance(config, DistilThenGrpoConfig) else RL
    return [Stage(phase, config.rl, config.rollout, config.seed, comments)]


def check_stages(stages: Iterable[Stage], machine: VerlConfig) -> None:
    """Refuse what verl cannot do in any stage, before the first begins.

    Raises:
        ConfigError: verl has no counterpart of something; it is named.
    """
    for stage in stages:
        translate(stage.rl, stage.rollout, machine, stage.seed)


def _below(comments: Mapping[str, str] | None, section: str) -> dict[str, str] | None:
    if comments is None:
        return None
    return {k.removeprefix(f"{section}."): told for k, told in comments.items() if k.startswith(f"{section}.")}
