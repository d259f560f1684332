"""What verl is told: single values of its configuration, each with where it comes from.

Reads `FlatConfig`; makes `Setting` records and the list of what verl cannot do. Invariant: a value of ours that becomes a
setting counts as taken. Imports no verl.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from repairgym.bridges.verl.flat_config import FlatConfig
from repairgym.config.verl import VerlConfig

OUR_CHOICE = "our choice"


@dataclass(frozen=True)
class Setting:
    """One value of verl's configuration."""

    key: str
    """Dotted, as in ``ppo_trainer.yaml``."""
    value: Any
    source: str
    """The key of ours that it comes from, or why it is as it is."""
    is_ours: bool = True
    """True when ``source`` is a key of ours."""


class Settings:
    """Collects settings and refusals while a configuration is translated."""

    def __init__(self, leaves: FlatConfig, machine: VerlConfig, seed: int) -> None:
        """Nothing is translated yet."""
        self.leaves = leaves
        self.machine = machine
        self.seed = seed
        self.found: list[Setting] = []
        self.problems: list[str] = []

    def ours(self, key: str, name: str, value: Any = None) -> None:
        """Verl's ``key`` from our ``name``, which is taken; ``value`` where it is not simply the same."""
        taken = self.leaves.take(name)
        self.found.append(Setting(key, taken if value is None else value, name))

    def fixed(self, key: str, value: Any, why: str) -> None:
        """Verl's ``key`` for another reason than a value of ours."""
        self.found.append(Setting(key, value, why, is_ours=False))

    def refuse(self, name: str, why: str) -> None:
        """Verl cannot do what our ``name`` says; ``name`` is taken."""
        self.problems.append(f"{name}={self.leaves.take(name)!r} ({why})")
