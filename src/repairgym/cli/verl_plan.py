"""What the commands about verl read: a recipe's configuration, a machine's, and the comments of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from repairgym.config.commands import RlCommandConfig
from repairgym.config.loading import load_config, to_toml
from repairgym.config.training import DistilThenGrpoConfig, TwoStageConfig
from repairgym.config.verl import VerlConfig, VerlRecipe
from repairgym.training.run_settings import CallConfig

VerlRecipeOption = Annotated[
    VerlRecipe, typer.Option("--recipe", help="Whose TOML --config is: repairgym train RECIPE.")
]
Machine = Annotated[Path | None, typer.Option("--machine", help="TOML file of machines and engine (VerlConfig).")]
_MACHINE_PREFIX = "verl."
_FREE_OF_MACHINE = (
    "rollout_tensor_parallel", "sequence_parallel", "is_offloaded", "gpu_memory_share", "save_every",
    "num_checkpoints_kept", "ray_address", "num_cpus",
)  # fmt: skip
"""Settings of the machine that a later call may set otherwise. Others change what is sampled or how large a batch is,
or are the number of processes, which verl's checkpoints are written for."""


@dataclass(frozen=True)
class VerlPlan:
    """What is learned, and where."""

    recipe: VerlRecipe
    config: RlCommandConfig | DistilThenGrpoConfig | TwoStageConfig
    machine: VerlConfig
    comments: Mapping[str, str] = field(default_factory=dict)
    """Dotted key -> what the recipe's TOML says behind it."""

    def calls(self) -> tuple[CallConfig, CallConfig]:
        """What a run keeps of both configurations; each recipe has phases, and so settings, of its own in a run."""
        name = f"train-verl-{self.recipe}"
        machine = CallConfig(f"{name}-machine", self.machine, _FREE_OF_MACHINE, "--machine")
        return CallConfig(name, self.config), machine

    def as_toml(self) -> str:
        """Both configurations, the machine's below ``[verl]``."""
        return f"{to_toml(self.config)}\n[verl]\n{to_toml(self.machine)}"


def load_verl_plan(recipe: VerlRecipe, config: Path | None, machine: Path | None, overrides: Sequence[str]) -> VerlPlan:
    """Both configurations; overrides that begin with ``verl.`` are the machine's.

    Raises:
        ConfigError: an unknown key, a wrong type, or an engine that does not fit its device.
        InputError: a file cannot be read.
    """
    from repairgym.bridges.verl.config_files import read_comments
    from repairgym.bridges.verl.training import SOURCES

    of_machine = [text.removeprefix(_MACHINE_PREFIX) for text in overrides if text.startswith(_MACHINE_PREFIX)]
    others = [text for text in overrides if not text.startswith(_MACHINE_PREFIX)]
    resolved: RlCommandConfig | DistilThenGrpoConfig | TwoStageConfig = load_config(SOURCES[recipe], config, others)
    comments = read_comments(config) if config else {}
    changed = {text.partition("=")[0].strip(): "given on the command line" for text in others}
    return VerlPlan(recipe, resolved, load_config(VerlConfig, machine, of_machine), {**comments, **changed})
