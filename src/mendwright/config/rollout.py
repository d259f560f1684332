"""How many episodes run at once, and how often trouble is tried again."""

from __future__ import annotations

from typing import Self

from pydantic import Field, PositiveInt, model_validator

from mendwright.config.layers import LayersConfig
from mendwright.config.models import EngineConfig
from mendwright.config.pipeline import AnyPipelineConfig, GradingConfig, PipelineConfig
from mendwright.config.sandbox import SandboxConfig
from mendwright.records import Record


class RolloutConfig(Record):
    """Everything between a list of jobs and graded trajectories."""

    num_workers: PositiveInt = 2
    """Processes; each holds an engine, a sandbox back end and a grader, and computes with one thread."""
    max_in_flight: PositiveInt = 48
    """Episodes at one time in one worker."""
    max_attempts: PositiveInt = 3
    """Fresh sandboxes tried before an episode is invalid."""
    max_failures_in_row: PositiveInt = 30
    """Invalid episodes one after the other that stop the run with the reason."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Paper B, section 5.2, finding 2: anything but 1 while training biases the gradient."""
    pipeline: AnyPipelineConfig = PipelineConfig()
    grading: GradingConfig = GradingConfig()
    engine: EngineConfig = EngineConfig()
    sandbox: SandboxConfig = SandboxConfig()
    layers: LayersConfig = LayersConfig()

    @model_validator(mode="after")
    def _episodes_fit_the_engine(self) -> Self:
        if self.pipeline.max_len_tokens > self.engine.max_len_tokens:
            raise ValueError(
                f"pipeline.max_len_tokens={self.pipeline.max_len_tokens} is more than the engine keeps; "
                f"set engine.max_len_tokens (now {self.engine.max_len_tokens}) to at least as much"
            )
        return self
