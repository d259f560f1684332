"""How a run is watched: who else gets its metrics, and what gives an alarm.

Reads nothing, makes `WatchConfig`. Invariants: frozen; bounds without a source are our choice.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from repairgym.records import Record

TrackerName = Literal["jsonl", "tensorboard", "wandb"]


class AlarmConfig(Record):
    """Bounds of `training/alarms.py`; shares and means are over the last ``window`` iterations."""

    window: PositiveInt = 3
    """Iterations that are looked at together, so that one bad draw is no alarm."""
    log_prob_gap: PositiveFloat = 0.005
    """Mean |log-prob of the sampler - of the learner| per token; verl's documentation: below is fine."""
    broken_log_prob_gap: PositiveFloat = 0.01
    """verl's documentation: above is broken."""
    reward_spread: NonNegativeFloat = 0.05
    """Least mean standard deviation of the rewards within a group."""
    entropy_share: float = Field(default=0.2, ge=0.0, le=1.0)
    """Least entropy, as a share of that of the first iterations."""
    grad_norm_ratio: PositiveFloat = 10.0
    """Greatest gradient norm, as a multiple of the median so far."""
    invalid_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """Of the episodes."""
    exploited_share: float = Field(default=0.05, ge=0.0, le=1.0)
    """Of the valid episodes."""
    truncated_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Of the valid episodes: ended by a limit."""
    zero_advantage_share: float = Field(default=0.8, ge=0.0, le=1.0)
    """Of the groups: all rewards equal, so that nothing is learned."""
    weight_lag: NonNegativeInt = 0
    """Updates that the sampler's weights may be behind the learner's; at least `rl.max_staleness`."""


class WatchConfig(Record):
    """Who watches a run."""

    trackers: tuple[TrackerName, ...] = ()
    """``jsonl`` (metrics.jsonl in the run folder), ``tensorboard`` (tensorboard/ in it), ``wandb``."""
    project: str = "repairgym"
    """Name of the project where a tracker has projects (wandb)."""
    alarms: AlarmConfig = AlarmConfig()
