"""The configuration folder of a verl run, which `python -m verl.trainer.main_ppo` reads.

Its files::

    verl.yaml          verl's own configuration: its defaults, then our settings, each with its source as comment
    agent_loop.yaml    the class that runs our episodes
    episodes.toml      settings of episodes (`EpisodeSettings`)

Guarantees: every line of ``verl.yaml`` below its head names our key, with the comment that the TOML has there, or a
reason; no file holds a secret.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repairgym.bridges.verl.episodes import EpisodeSettings
from repairgym.bridges.verl.translation import Setting, translate
from repairgym.config.cluster import VerlConfig
from repairgym.config.loading import to_toml
from repairgym.config.recipes import RlConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.sizing.workers import describe_workers, size_workers, this_host

_TOML_SECTION = re.compile(r"^\s*\[([^\]]+)\]")
_TOML_KEY = re.compile(r'^\s*([A-Za-z0-9_\-]+)\s*=\s*(?:"[^"]*"|\'[^\']*\'|[^#"\']*)\s*(?:#\s*(.*\S))?\s*$')
CONFIG_NAME = "verl"
AGENT_LOOP_FILE = "agent_loop.yaml"
METRICS_FILE = "metrics.jsonl"
CPUS_PER_LEARNER = 3
"""CPUs that Ray reserves for each of the learner's processes."""

_HEAD = """\
# RL of RepairGym's episodes under verl, written by `repairgym`; change the TOML that it was made from instead.
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
    """Absolute paths of a verl run."""

    folder: Path
    """Of the configuration, the metrics and the spool."""
    model: Path
    tasks: Path
    train_rows: Path
    validation_rows: Path
    checkpoints: Path
    """Folder of verl's own checkpoints."""

    @property
    def spool(self) -> Path:
        """Trajectories on their way to the run store."""
        return self.folder / "spool"


def paths_of(run: Path, phase: str, start: str, tasks: Path) -> VerlPaths:
    """Return the paths of a stage in a run folder."""
    run = run.resolve()
    folder = run / "verl" / phase
    return VerlPaths(
        folder=folder,
        model=run / "checkpoints" / start,
        tasks=tasks.resolve(),
        train_rows=folder / "train.parquet",
        validation_rows=folder / "validation.parquet",
        checkpoints=run / "checkpoints" / f"{phase}-verl",
    )


@dataclass(frozen=True)
class Stage:
    """One stage of RL under verl."""

    phase: str
    rl: RlConfig
    rollout: RolloutConfig
    seed: int = 0
    comments: Mapping[str, str] | None = None
    """Dotted key of ``rl`` and ``rollout`` -> the TOML's comment on it."""


def sized(stage: Stage, machine: VerlConfig) -> Stage:
    """Return ``stage`` with workers and sandboxes in the place of ``auto``, for nodes like this machine.

    Processors of the learner are left out, and an iteration's episodes bound the workers.
    """
    host = this_host()
    num_cpus = (machine.num_cpus or host.num_cpus) - CPUS_PER_LEARNER * machine.gpus_per_node
    hosts = [replace(host, num_cpus=max(1.0, num_cpus))] * machine.num_nodes
    num_episodes = stage.rl.num_groups_sampled * stage.rl.algorithm.group_size
    rollout = size_workers(stage.rollout, hosts, num_episodes=num_episodes)
    if not (text := describe_workers(stage.rollout, rollout, hosts)):
        return stage
    return replace(stage, rollout=rollout, comments={**(stage.comments or {}), "rollout.num_workers": text})


def write_stage(stage: Stage, machine: VerlConfig, paths: VerlPaths) -> Path:
    """Write the folder of a `sized` stage; returns the path of ``verl.yaml``; raises as `translate`."""
    settings = translate(stage.rl, stage.rollout, machine, stage.seed)
    episodes = EpisodeSettings(
        phase=stage.phase,
        seed=stage.seed,
        tasks=str(paths.tasks),
        tokenizer=str(paths.model),
        spool=str(paths.spool),
        overlong=stage.rl.algorithm.overlong,
        reward=stage.rl.reward,
        rollout=stage.rollout,
    )
    paths.folder.mkdir(parents=True, exist_ok=True)
    episodes_file = paths.folder / "episodes.toml"
    episodes_file.write_text(to_toml(episodes), encoding="utf-8")
    (paths.folder / AGENT_LOOP_FILE).write_text(
        "- name: repairgym\n"
        "  _target_: repairgym.bridges.verl.workers.RepairGymAgentLoop\n"
        f"  settings: {json.dumps(str(episodes_file))}\n",
        encoding="utf-8",
    )
    settings += run_settings(paths, stage.phase, machine)
    text = _HEAD.format(folder=paths.folder, name=CONFIG_NAME) + "\n".join(
        setting_lines(settings, stage.comments or {})
    )
    config = paths.folder / f"{CONFIG_NAME}.yaml"
    config.write_text(f"{text}\n", encoding="utf-8")
    return config


def environment(paths: VerlPaths, machine: VerlConfig) -> dict[str, str]:
    """Return the environment variables that every process of the run needs."""
    variables = {
        "VERL_USE_EXTERNAL_MODULES": "repairgym.bridges.verl.plugin",
        "VERL_FILE_LOGGER_PATH": str(paths.folder / METRICS_FILE),
        # verl reads rows through `datasets`, which copies each file that it reads, by default to the home folder.
        "HF_DATASETS_CACHE": str(paths.folder / "datasets"),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if machine.device == "cpu":
        # The training engines are registered for CUDA only; they compute on the platform's device.
        variables |= {"VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "VERL_ENGINE_VENDOR": "nvidia"}
    return variables


def run_settings(paths: VerlPaths, phase: str, machine: VerlConfig) -> Iterator[Setting]:
    """Yield paths, names and the start of Ray: settings of this run, not of the recipe."""

    def fixed(key: str, value: Any, reason: str = "of this run") -> Setting:
        return Setting(key, value, reason, is_ours=False)

    yield fixed("actor_rollout_ref.model.path", str(paths.model))
    yield fixed("data.train_files", str(paths.train_rows))
    yield fixed("data.val_files", str(paths.validation_rows))
    yield fixed("trainer.default_local_dir", str(paths.checkpoints))
    yield fixed("trainer.project_name", "repairgym")
    yield fixed("trainer.experiment_name", phase)
    yield fixed("actor_rollout_ref.rollout.agent.agent_loop_config_path", str(paths.folder / AGENT_LOOP_FILE))
    ray = "ray_kwargs.ray_init"
    for name, value in environment(paths, machine).items():
        yield fixed(f"{ray}.runtime_env.env_vars.{name}", value, "needed by every process")
    if machine.ray_address:
        yield Setting(f"{ray}.address", machine.ray_address, "verl.ray_address")
        return
    yield fixed(f"{ray}.address", "local", "needed: Ray would join a running cluster of this machine")
    if machine.num_cpus:
        yield Setting(f"{ray}.num_cpus", machine.num_cpus, "verl.num_cpus")
    if machine.device == "cpu":
        yield fixed(f"{ray}.num_gpus", machine.gpus_per_node, "needed: verl counts its processes in GPUs, also here")
        yield fixed(f"{ray}.include_dashboard", False, "our choice: tests start many")


def setting_lines(settings: Iterable[Setting], comments: Mapping[str, str]) -> Iterator[str]:
    """Yield lines of YAML, each with our key and its comment, or with the reason for its value."""
    tree: dict[str, Any] = {}
    for setting in settings:
        *sections, name = setting.key.split(".")
        parent = tree
        for section in sections:
            parent = parent.setdefault(section, {})
        parent[name] = setting
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
    comment = comments.get(setting.source)
    if comment is None:
        return f"{setting.source}, its default"
    return f"{setting.source}: {comment}" if comment else setting.source


def _yaml(value: Any) -> str:
    text = json.dumps(value)
    # JSON is YAML, but for 1e-06, which YAML 1.1 reads as text.
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


def command(paths: VerlPaths) -> list[str]:
    """Return the command that runs verl's own trainer with this configuration, in this interpreter."""
    return [
        sys.executable,
        "-m",
        "verl.trainer.main_ppo",
        "--config-path",
        str(paths.folder),
        "--config-name",
        CONFIG_NAME,
        f"hydra.run.dir={paths.folder / 'hydra'}",
    ]


def read_comments(file: Path) -> dict[str, str]:
    """Return dotted key -> the comment behind its value in a TOML file (none where a value spans several lines)."""
    comments: dict[str, str] = {}
    prefix = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if heading := _TOML_SECTION.match(line):
            prefix = f"{heading[1].strip()}."
        elif key := _TOML_KEY.match(line):
            comments[f"{prefix}{key[1]}"] = key[2] or ""
    return comments
