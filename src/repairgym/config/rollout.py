"""Rollouts: workers, sandboxes, retries; alarms and trackers of a run."""

from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from repairgym.config.agent import AgentConfig, ExternalAgentConfig, PipelineAgentConfig, check_unused
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import AnyPipelineConfig, GradingConfig, PipelineConfig
from repairgym.config.sandbox import LayersConfig, SandboxConfig
from repairgym.records import Record

SizedCount = Annotated[NonNegativeInt, BeforeValidator(lambda value: 0 if value == "auto" else value)]
"""A number, or 0 (``auto``) for one that follows from the machines (`sizing/workers.py`)."""


class RolloutConfig(Record):
    """Settings from a list of jobs to graded trajectories."""

    num_workers: SizedCount = 0
    """Processes; each holds an engine, a sandbox back end and a grader, and computes with one thread. 0 or ``auto``: as
    many as the machines' processors and memory hold."""
    max_in_flight: PositiveInt = 48
    """Concurrent episodes of one worker."""
    max_sandboxes: SizedCount = 48
    """Concurrent sandboxes of one worker, each within `sandbox.limits`. 0 or ``auto``: two per processor (paper B,
    appendix D), as far as the memory suffices where each one takes its limit. The tokens of a worker are bounded by
    `engine.num_slots` times `engine.max_len_tokens`."""
    max_attempts: PositiveInt = 3
    """Fresh sandboxes tried before an episode is invalid."""
    backoff_s: NonNegativeFloat = 1.0
    """Longest wait for the next start of a sandbox after one failed; doubles with each failure in a row, up to a
    minute. No limit of an episode counts it."""
    max_failures_in_row: PositiveInt = 30
    """Number of consecutive invalid episodes that stops the run with the reason."""
    drain_timeout_s: float = Field(default=60.0, ge=0.0)
    """Time for running episodes to finish and be stored after Ctrl-C; a second Ctrl-C stops at once."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature of `repairgym rollout` and `repairgym eval`. Training samples at 1 and rejects other values
    (paper B, section 5.2, finding 2: they bias the gradient)."""
    agent: AgentConfig = PipelineAgentConfig()
    """The agent: the pipeline, or a program of others (``external``) within the limits of the pipeline."""
    pipeline: AnyPipelineConfig = PipelineConfig()
    grading: GradingConfig = GradingConfig()
    engine: EngineConfig = EngineConfig()
    sandbox: SandboxConfig = SandboxConfig()
    layers: LayersConfig = LayersConfig()

    @model_validator(mode="after")
    def _slots_are_kept(self) -> Self:
        if self.engine.is_batch_invariant and self.max_in_flight > self.engine.num_slots:
            raise ValueError(
                f"engine.is_batch_invariant with max_in_flight={self.max_in_flight} and engine.num_slots="
                f"{self.engine.num_slots}: a session that loses its slot gets different results; set "
                "max_in_flight to at most num_slots"
            )
        return self

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if isinstance(self.agent, ExternalAgentConfig):
            check_unused(self.pipeline)
        return self

    @property
    def scaffold(self) -> str:
        """Name of what acts, as trajectories have it: the type of the pipeline, or ``external``."""
        return self.pipeline.type if isinstance(self.agent, PipelineAgentConfig) else self.agent.type

    def require_engine_room(self) -> None:
        """Raise a `ConfigError` where an episode is longer than what the embedded engine, if it samples, keeps."""
        self.engine.require_room(self.pipeline.max_len_tokens)

    def describe_idle_engine(self, sampler: str) -> str:
        """Return a line on the engine's settings that have no effect, as ``sampler`` samples; empty without any."""
        default = EngineConfig()
        names = [name for name in EngineConfig.model_fields if getattr(self.engine, name) != getattr(default, name)]
        given = ", ".join(f"rollout.engine.{name}={getattr(self.engine, name)}" for name in names)
        bound = f"an episode has up to rollout.pipeline.max_len_tokens={self.pipeline.max_len_tokens}"
        return given and f"{given}: no effect, {sampler} samples; {bound}, within the context of its server"


TrackerName = Literal["jsonl", "tensorboard", "wandb", "trackio", "mlflow"]


class AlarmConfig(Record):
    """Bounds of `training/alarms.py`; shares and means are over the last ``window`` iterations."""

    window: PositiveInt = 3
    """Iterations per window, so that one bad iteration is no alarm."""
    log_prob_gap: PositiveFloat = 0.005
    """Mean |log-prob of the sampler - of the learner| per token; fine below this value (verl's documentation)."""
    broken_log_prob_gap: PositiveFloat = 0.01
    """Same mean; broken above this value (verl's documentation)."""
    reward_spread: NonNegativeFloat = 0.05
    """Least mean standard deviation of the rewards within a group."""
    entropy_share: float = Field(default=0.2, ge=0.0, le=1.0)
    """Least entropy, as a share of that of the first iterations."""
    grad_norm_ratio: PositiveFloat = 10.0
    """Greatest gradient norm, as a multiple of the median so far."""
    invalid_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """Largest share of invalid episodes."""
    exploited_share: float = Field(default=0.05, ge=0.0, le=1.0)
    """Largest share of exploits among the valid episodes."""
    truncated_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Largest share of valid episodes that a limit ended."""
    zero_advantage_share: float = Field(default=0.8, ge=0.0, le=1.0)
    """Largest share of groups with equal rewards, which have no gradient."""
    weight_lag: NonNegativeInt = 0
    """Updates that the sampler's weights may lag behind the learner's; at least `rl.max_staleness`."""


class WatchConfig(Record):
    """Trackers and alarms of a run."""

    trackers: tuple[TrackerName, ...] = ()
    """``jsonl`` (metrics.jsonl in the run folder), ``tensorboard`` (tensorboard/ in it), ``wandb``, ``trackio``,
    ``mlflow`` (MLFLOW_TRACKING_URI, else mlflow.db in it)."""
    project: str = "repairgym"
    """Project of trackers with projects (wandb, trackio, mlflow: the experiment)."""
    tags: tuple[str, ...] = ()
    """Of the run at its trackers, after ``repairgym``."""
    alarms: AlarmConfig = AlarmConfig()
