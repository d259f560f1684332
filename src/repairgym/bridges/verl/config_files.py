"""The configuration folder of a verl run, which `python -m verl.trainer.main_ppo` reads.

Makes, in one folder::

    verl.yaml          verl's own configuration: its defaults, then our settings, each with its source as comment
    agent_loop.yaml    the class that runs our episodes
    episodes.toml      how episodes run (`episode_settings`)

Invariants: every line of ``verl.yaml`` below its head names the key of ours that it comes from, with the comment that
the TOML has there, or says why it is as it is; secrets are in no file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repairgym.bridges.verl.episode_settings import EpisodeSettings, write_settings
from repairgym.bridges.verl.settings import Setting
from repairgym.bridges.verl.translation import translate
from repairgym.config.recipes import RlConfig
from repairgym.config.verl import VerlConfig

CONFIG_NAME = "verl"
AGENT_LOOP_FILE = "agent_loop.yaml"
METRICS_FILE = "metrics.jsonl"
PLUGIN = "repairgym.bridges.verl.plugin"

_HEAD = """\
# RL of RepairGym's episodes under verl, written by `repairgym`; a change belongs in the TOML that it was made from.
# python -m verl.trainer.main_ppo --config-path {folder} --config-name {name}
# needs the environment variables below ray_kwargs.ray_init.runtime_env; `repairgym train verl` sets them.
hydra:
  searchpath: [pkg://verl.trainer.config]
defaults:
  - ppo_trainer
  - _self_
"""


@dataclass(frozen=True)
class VerlPaths:
    """Where a verl run finds things; all absolute."""

    folder: Path
    """Of the configuration, the metrics and the trajectories on their way."""
    model: Path
    """Model folder to start from."""
    tasks: Path
    train_rows: Path
    validation_rows: Path
    checkpoints: Path
    """Folder of verl's own checkpoints."""

    @property
    def spool(self) -> Path:
        """Trajectories on their way to the run store."""
        return self.folder / "spool"


def write_config(
    places: VerlPaths,
    rl: RlConfig,
    settings: EpisodeSettings,
    machine: VerlConfig,
    comments: Mapping[str, str] | None = None,
) -> Path:
    """Write the folder; returns the path of ``verl.yaml``.

    Args:
        places: Where things are.
        rl: What is learned.
        settings: How episodes run.
        machine: Where and with which engine.
        comments: Dotted key of ours -> what its TOML says there.

    Raises:
        ConfigError: verl has no counterpart of something.
    """
    translated = translate(rl, settings.rollout, machine, settings.seed)
    places.folder.mkdir(parents=True, exist_ok=True)
    path = write_settings(settings, places.folder)
    loop = places.folder / AGENT_LOOP_FILE
    loop.write_text(
        "- name: repairgym\n"
        "  _target_: repairgym.bridges.verl.agent_loop.RepairGymAgentLoop\n"
        f"  settings: {json.dumps(str(path))}\n",
        encoding="utf-8",
    )
    all_settings = [*translated, *place_settings(places, settings, machine)]
    config = places.folder / f"{CONFIG_NAME}.yaml"
    head = _HEAD.format(folder=places.folder, name=CONFIG_NAME)
    config.write_text(head + "\n".join(_lines(all_settings, comments or {})) + "\n", encoding="utf-8")
    return config


def environment(places: VerlPaths, machine: VerlConfig) -> dict[str, str]:
    """Variables that every process of the run needs."""
    variables = {
        "VERL_USE_EXTERNAL_MODULES": PLUGIN,
        "VERL_FILE_LOGGER_PATH": str(places.folder / METRICS_FILE),
        # verl reads rows through `datasets`, which copies each file that it reads, by default to the home folder.
        "HF_DATASETS_CACHE": str(places.folder / "datasets"),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if machine.device == "cpu":
        # The training engines are registered for CUDA only; they compute where the platform says.
        variables |= {"VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "VERL_ENGINE_VENDOR": "nvidia"}
    return variables


def place_settings(places: VerlPaths, settings: EpisodeSettings, machine: VerlConfig) -> Iterator[Setting]:
    """Paths, names and Ray's start: what is of this run and no part of the recipe."""

    def place(key: str, value: Any, why: str = "of this run") -> Setting:
        return Setting(key, value, why, is_ours=False)

    yield place("actor_rollout_ref.model.path", str(places.model))
    yield place("data.train_files", str(places.train_rows))
    yield place("data.val_files", str(places.validation_rows))
    yield place("trainer.default_local_dir", str(places.checkpoints))
    yield place("trainer.project_name", "repairgym")
    yield place("trainer.experiment_name", settings.phase)
    yield place("actor_rollout_ref.rollout.agent.agent_loop_config_path", str(places.folder / AGENT_LOOP_FILE))
    ray = "ray_kwargs.ray_init"
    for name, value in environment(places, machine).items():
        yield place(f"{ray}.runtime_env.env_vars.{name}", value, "needed by every process")
    if machine.ray_address:
        yield Setting(f"{ray}.address", machine.ray_address, "verl.ray_address")
        return
    yield place(f"{ray}.address", "local", "needed: Ray would join a cluster that runs on this machine")
    if machine.num_cpus:
        yield Setting(f"{ray}.num_cpus", machine.num_cpus, "verl.num_cpus")
    if machine.device == "cpu":
        yield place(f"{ray}.num_gpus", machine.gpus_per_node, "needed: verl counts its processes in GPUs, also here")
        yield place(f"{ray}.include_dashboard", False, "our choice: tests start many")


def _lines(settings: Iterable[Setting], comments: Mapping[str, str]) -> Iterator[str]:
    tree: dict[str, Any] = {}
    for setting in settings:
        *sections, name = setting.key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = setting
    yield from _tree_lines(tree, comments, 0)


def _tree_lines(tree: Mapping[str, Any], comments: Mapping[str, str], depth: int) -> Iterator[str]:
    for name, value in tree.items():
        indent = "  " * depth
        if isinstance(value, Setting):
            yield f"{indent}{name}: {_yaml(value.value)}  # {_comment(value, comments)}"
        else:
            yield f"{indent}{name}:"
            yield from _tree_lines(value, comments, depth + 1)


def _comment(setting: Setting, comments: Mapping[str, str]) -> str:
    if not setting.is_ours:
        return setting.source
    told = comments.get(setting.source)
    return f"{setting.source}: {told}" if told else f"{setting.source}{'' if told is not None else ', its default'}"


def _yaml(value: Any) -> str:
    text = json.dumps(value)
    # JSON is YAML, but for 1e-06, which YAML 1.1 reads as text.
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


def command(places: VerlPaths) -> list[str]:
    """What runs verl's own trainer with this configuration, in this interpreter."""
    return [
        sys.executable,
        "-m",
        "verl.trainer.main_ppo",
        "--config-path",
        str(places.folder),
        "--config-name",
        CONFIG_NAME,
        f"hydra.run.dir={places.folder / 'hydra'}",
    ]
