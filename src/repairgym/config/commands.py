"""One config per command: what `repairgym grade`, `repairgym rollout`, `repairgym eval` and `repairgym train rl` read."""

from __future__ import annotations

from typing import Self

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repairgym.config.cluster import ClusterConfig
from repairgym.config.endpoint import EndpointConfig
from repairgym.config.layers import LayersConfig
from repairgym.config.pipeline import GradingConfig, check_undemonstrated
from repairgym.config.recipes import RlConfig
from repairgym.config.rewards import check_turns
from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.config.watch import WatchConfig
from repairgym.records import Record, SourceKind, Split


class TaskSelection(Record):
    """Which tasks of a folder."""

    split: Split = "test"
    source: SourceKind = "mutations"
    num_tasks: NonNegativeInt = 0
    """0 means all."""


class RolloutCommandConfig(Record):
    """`repairgym rollout` and `repairgym eval`."""

    select: TaskSelection = TaskSelection()
    num_samples: PositiveInt = 1
    """Paper B, Table 1: 10 runs per task."""
    seed: int = 0
    rollout: RolloutConfig = RolloutConfig()
    endpoint: EndpointConfig = EndpointConfig()
    """The server of the policies ``openai`` and ``vllm``."""
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _the_cluster_can_honour_it(self) -> Self:
        self.cluster.require_honoured(self.rollout)
        return self


class ReplayCommandConfig(Record):
    """`repairgym replay`."""

    phase: str = ""
    """Phase of the run whose episodes are replayed; empty: any."""
    num_episodes: PositiveInt = 100
    """At most."""
    rollout: RolloutConfig = RolloutConfig(max_in_flight=8)


class GradeCommandConfig(Record):
    """`repairgym grade`."""

    num_workers: NonNegativeInt = 0
    """Grading processes; 0 means one per core."""
    max_instance_s: PositiveFloat = 1800.0
    """Bound on one instance, retries included (the SWE-bench harness: 1800 s); beyond it the verdict is invalid."""
    grading: GradingConfig = GradingConfig(is_cold=True)
    sandbox: SandboxConfig = SandboxConfig()
    layers: LayersConfig = LayersConfig()


class StartsConfig(Record):
    """`repairgym knowledge starts`."""

    num_fixes: PositiveInt = 4
    """Candidate fixes of each task: the first one and one per retry (paper A, full pipeline: 3 retries)."""
    num_concurrent: PositiveInt = 2
    """Builds at one time."""
    sandbox: SandboxConfig = SandboxConfig()
    layers: LayersConfig = LayersConfig()


class RlCommandConfig(Record):
    """`repairgym train rl`."""

    seed: int = 0
    rl: RlConfig = RlConfig()
    rollout: RolloutConfig = RolloutConfig()
    cluster: ClusterConfig = ClusterConfig()
    watch: WatchConfig = WatchConfig()

    @model_validator(mode="after")
    def _training_can_honour_it(self) -> Self:
        check_turns(self.rl.reward, self.rollout.pipeline.max_turns)
        check_undemonstrated(self.rollout.pipeline)
        self.rollout.require_training_temperature()
        self.cluster.require_honoured(self.rollout)
        return self
