"""What the commands about verl read: a recipe's configuration, a machine's, and the comments of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from mendwright.config.commands import RlCommandConfig
from mendwright.config.loading import load_config, to_toml
from mendwright.config.training import DistilThenGrpoConfig, TwoStageConfig
from mendwright.config.verl import VerlConfig, VerlRecipe

VerlRecipeOption = Annotated[VerlRecipe, typer.Option("--recipe", help="Whose TOML --config is: mend train RECIPE.")]
Machine = Annotated[Path | None, typer.Option("--machine", help="TOML file of machines and engine (VerlConfig).")]
_MACHINE_PREFIX = "verl."


@dataclass(frozen=True)
class VerlPlan:
    """What is learned, and where."""

    config: RlCommandConfig | DistilThenGrpoConfig | TwoStageConfig
    machine: VerlConfig
    comments: Mapping[str, str] = field(default_factory=dict)
    """Dotted key -> what the recipe's TOML says behind it."""

    def as_toml(self) -> str:
        """Both configurations, the machine's below ``[verl]``."""
        return f"{to_toml(self.config)}\n[verl]\n{to_toml(self.machine)}"


def load_verl_plan(recipe: VerlRecipe, config: Path | None, machine: Path | None, overrides: Sequence[str]) -> VerlPlan:
    """Both configurations; overrides that begin with ``verl.`` are the machine's.

    Raises:
        ConfigError: an unknown key, a wrong type, or an engine that does not fit its device.
        InputError: a file cannot be read.
    """
    from mendwright.bridges.verl.leaves import comments_of
    from mendwright.recipes.verl import SOURCES

    of_machine = [text.removeprefix(_MACHINE_PREFIX) for text in overrides if text.startswith(_MACHINE_PREFIX)]
    others = [text for text in overrides if not text.startswith(_MACHINE_PREFIX)]
    resolved: RlCommandConfig | DistilThenGrpoConfig | TwoStageConfig = load_config(SOURCES[recipe], config, others)
    comments = comments_of(config) if config else {}
    changed = {text.partition("=")[0].strip(): "given on the command line" for text in others}
    return VerlPlan(resolved, load_config(VerlConfig, machine, of_machine), {**comments, **changed})
