"""Configuration of `repairgym sweep`: the child command, and what is drawn or compared."""

import math
import re
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repairgym.records import Record

RangeT = TypeVar("RangeT", bound=Record)
Setting = str | int | float | bool
RUN = "{run}"
"""Stands for the child's run folder in `SweepConfig.command`, `SweepConfig.program` and `SweepConfig.evaluation`."""
_ARM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


class ChoiceConfig(Record):
    """One of some values, each as likely as another."""

    type: Literal["choice"] = "choice"
    values: tuple[Setting, ...] = Field(default=(), min_length=2)


class UniformConfig(Record):
    """A number between two bounds, all alike."""

    type: Literal["uniform"] = "uniform"
    low: float = 0.0
    high: float = 1.0

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        return _checked_range(self, self.low, self.high)


class LogUniformConfig(Record):
    """A number between two positive bounds, whose logarithm is uniform: for learning rates."""

    type: Literal["log_uniform"] = "log_uniform"
    low: PositiveFloat = 1e-5
    high: PositiveFloat = 1e-3

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        return _checked_range(self, self.low, self.high)


class IntConfig(Record):
    """A whole number between two bounds, both included."""

    type: Literal["int"] = "int"
    low: int = 1
    high: int = 8

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        return _checked_range(self, self.low, self.high)


Distribution = Annotated[ChoiceConfig | UniformConfig | LogUniformConfig | IntConfig, Field(discriminator="type")]


class SweepConfig(Record):
    """`repairgym sweep`: child runs of one command with other settings each."""

    command: tuple[str, ...] = ()
    """Words of a `repairgym` command that trains, evaluates or rolls out, with ``{run}`` for the child's run folder:
    ``["train", "rl", "tasks", "{run}", "base", "--preset", "demo_rl"]``."""
    program: tuple[str, ...] = ()
    """A program of your own instead, called in the same way; it writes numbers as JSON to ``{run}/result.json``."""
    evaluation: tuple[str, ...] = ()
    """Words of a second `repairgym` command for each child whose ``command`` has ended, without the child's overrides:
    ``["eval", "run", "tasks", "{run}", "--policy", "{run}/checkpoints/rl", "--stage", "rl"]``. Its tokens and
    seconds are not counted."""
    settings: dict[str, Distribution] = {}
    """Dotted setting -> what is drawn for it: random search (arXiv 2507.04103, 1,370 random configurations)."""
    arms: dict[str, tuple[str, ...]] = {}
    """Name -> overrides ``a.b=value``: a comparison of named arms instead of random search."""
    num_runs: PositiveInt = 20
    """Draws of a random search; it may grow later where ``num_seeds`` is 1."""
    num_concurrent: PositiveInt = 1
    """Children at a time; each takes the processors, memory and device that its own settings say."""
    num_seeds: PositiveInt = 1
    """Runs of each draw or arm, with seeds of their own."""
    seed_setting: str = "seed"
    """Dotted setting that gets the child's seed; empty: none."""
    seed: NonNegativeInt = 0
    """Of the draws. Run k of a draw or arm has the seed ``seed + k``; with ``num_seeds=1`` all have ``seed``."""
    metric: str = ""
    """Value of a run: ``eval/STAGE/SET`` (its Pass@1; empty: of the only evaluation), ``PHASE:METRIC``, or a key of
    ``result.json``."""
    window: PositiveInt = 3
    """Last values of a ``PHASE:METRIC`` that are averaged (arXiv 2507.04103: rolling mean of 3)."""
    reference: str = ""
    """Arm that the others are compared with, task by task and seed by seed, where ``metric`` is an evaluation; empty:
    the first."""
    is_higher_better: bool = True
    num_bins: PositiveInt = Field(default=3, ge=2)
    """Parts into which the range of a drawn number is cut to compare them."""
    num_resamples: PositiveInt = 1000
    """Bootstrap resamples of the importance (arXiv 2507.04103: 1,000)."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.command and self.program:
            raise ValueError("got command and program, expected one of them")
        if self.settings and self.arms:
            raise ValueError("got settings and arms, expected one of them: draws, or named arms")
        if self.evaluation and not self.command:
            raise ValueError("got evaluation without command; a program evaluates by itself")
        for words in (self.command or self.program, self.evaluation):
            if words and not any(RUN in word for word in words):
                raise ValueError(f"got {' '.join(words)!r} without {RUN}, which stands for the child's run folder")
        is_whole = self.arms or self.command or self.program  # else the rest is in the folder of the sweep
        if self.reference and is_whole and self.reference not in self.arms:
            raise ValueError(f"got the reference {self.reference!r}, expected one of the arms {', '.join(self.arms)}")
        if self.arms and len(self.arms) < 2:
            raise ValueError("got one arm, expected at least 2 to compare")
        if bad := [name for name in self.arms if not _ARM.fullmatch(name)]:
            raise ValueError(f"got the arm {bad[0]!r}, expected letters, digits and . _ + -")
        if self.seed_setting and self.seed_setting in self.settings:
            raise ValueError(f"got {self.seed_setting!r} among the settings, but it gets the child's seed")
        return self


def _checked_range(record: RangeT, low: float, high: float) -> RangeT:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"got low={low:g} and high={high:g}, expected two numbers, the lower one first")
    return record
