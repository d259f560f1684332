"""Configurations of evaluation: eval runs, matrix, audit, exploit study, analysis.

Evaluations and audits are graded cold by default.
"""

import re
from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from repairgym.config.commands import RolloutCommandConfig, TaskSelection
from repairgym.config.models import EndpointConfig
from repairgym.config.pipeline import GradingConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.records import Record

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


class EvalCommandConfig(RolloutCommandConfig):
    """`repairgym eval run`."""

    num_samples: PositiveInt = 10
    """Runs per task (paper B, Table 1: mean of 10 runs ± standard error)."""
    rollout: RolloutConfig = RolloutConfig(grading=GradingConfig(is_cold=True))


class MatrixPolicy(Record):
    """One row of a matrix."""

    policy: str
    """Model folder or scripted policy."""
    trained_in: str = ""
    """Environment that it was trained in; empty: untrained."""
    start: str = ""
    """Policy of the matrix from which training started; the gain is the difference between the two."""


class MatrixConfig(Record):
    """`repairgym eval matrix`: every policy in every environment (paper A, section on environment mismatch)."""

    policies: dict[str, MatrixPolicy] = Field(min_length=1)
    environments: dict[str, RolloutConfig] = Field(min_length=1)
    """Name -> rollout settings: pipeline, tools, prompts, gates, thinking."""
    select: TaskSelection = TaskSelection()
    num_samples: PositiveInt = 5
    """Runs per task (paper A: 5 runs per configuration)."""
    seed: int = 0
    endpoint: EndpointConfig = EndpointConfig()
    """The server of the policies ``openai`` and ``vllm``."""

    @field_validator("policies", "environments")
    @classmethod
    def _names_are_plain(cls, value: dict[str, Record]) -> dict[str, Record]:
        bad = [name for name in value if not _NAME.fullmatch(name)]
        if bad:
            raise ValueError(f"got the name {bad[0]!r}, expected letters, digits and . _ + - (it becomes part of ids)")
        return value

    @model_validator(mode="after")
    def _names_refer_to_something(self) -> Self:
        for name, row in self.policies.items():
            if row.trained_in and row.trained_in not in self.environments:
                raise ValueError(
                    f"policies.{name}.trained_in is {row.trained_in!r}, environments are {sorted(self.environments)}"
                )
            if row.start and row.start not in self.policies:
                raise ValueError(f"policies.{name}.start is {row.start!r}, policies are {sorted(self.policies)}")
        return self


class AuditConfig(Record):
    """`repairgym eval audit`: training's submissions, graded again with every gate."""

    phase: str = "rl"
    num_per_step: NonNegativeInt = 32
    """Submissions of each training step, chosen by their ids; 0 means all."""
    num_in_flight: PositiveInt = 4
    grading: GradingConfig = GradingConfig(is_cold=True)
    sandbox: SandboxConfig = SandboxConfig()


class ExploitStudyConfig(Record):
    """`repairgym eval exploit-study`: a scripted policy whose share of cheats rises."""

    select: TaskSelection = TaskSelection(split="train")
    num_steps: PositiveInt = 8
    first_cheat_share: float = Field(default=0.0, ge=0.0, le=1.0)
    last_cheat_share: float = Field(default=0.9, ge=0.0, le=1.0)
    num_samples: PositiveInt = 4
    """Episodes per task and step."""
    seed: int = 0
    rollout: RolloutConfig = RolloutConfig(
        grading=GradingConfig(is_protected_restored=False, is_inspected=False, num_canaries=0, is_differential=False)
    )
    """By default without gates, the subject of the study. Turn them on to see the gap close."""


class DataFilesConfig(Record):
    """Files that `repairgym analyze` and `repairgym report --data` write next to the report."""

    tables: tuple[Literal["csv", "parquet"], ...] = ("csv", "parquet")
    """Parquet needs the extra ``datasets``."""
    figures: tuple[Literal["svg"], ...] = ("svg",)
    """Empty: tables only."""

    @field_validator("figures", mode="before")
    @classmethod
    def _reject_png(cls, value: object) -> object:
        formats = tuple(value) if isinstance(value, list | tuple) else value
        if isinstance(formats, tuple) and "png" in formats:
            raise ValueError('figures are SVG files; use figures=["svg"] and convert them (rsvg-convert makes PNG)')
        return formats


class AnalysisConfig(Record):
    """`repairgym analyze`."""

    phase: str = "rl"
    """Training phase."""
    before: str = ""
    """Phase whose behavior is compared with ``after``; empty: the first training step."""
    after: str = ""
    """Phase to compare with; empty: the last training step."""
    ngram: PositiveInt = 2
    """Length of the tool sequences that measure policy shift."""
    num_permutations: PositiveInt = 999
    seed: int = 0
    export: DataFilesConfig = DataFilesConfig()
