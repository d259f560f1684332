"""What the processes of a verl run need to know to run episodes; written once, read by each of them.

Reads and writes ``episodes.toml`` in the configuration folder of a run. Invariant: the file says everything, so a
process on another node makes the same episodes of the same row.
"""

from __future__ import annotations

from pathlib import Path

from repairgym.config.algorithms import OverlongPolicy
from repairgym.config.loading import load_config, to_toml
from repairgym.config.rewards import RewardConfig, TerminalRewardConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.records import Record

FILE = "episodes.toml"


class EpisodeSettings(Record):
    """How episodes run, what they are worth, and where they are left."""

    phase: str
    """Under which the run store keeps them."""
    seed: int = 0
    tasks: str
    """Folder of tasks, on every node."""
    tokenizer: str
    """Model folder whose tokenizer renders conversations."""
    spool: str
    """Folder that finished trajectories are left in, on a file system that the run's own process sees."""
    overlong: OverlongPolicy = "penalise"
    reward: RewardConfig = TerminalRewardConfig()
    rollout: RolloutConfig = RolloutConfig()


def write_settings(settings: EpisodeSettings, folder: Path) -> Path:
    """Write ``episodes.toml``."""
    path = folder / FILE
    path.write_text(to_toml(settings), encoding="utf-8")
    return path


def read_settings(path: Path) -> EpisodeSettings:
    """Inverse of `write_settings`.

    Raises:
        InputError: the file is not there.
        ConfigError: it was written by another version.
    """
    return load_config(EpisodeSettings, path)
