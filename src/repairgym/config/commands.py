"""One config per command: what `repairgym grade`, `repairgym rollout`, `repairgym eval` and `repairgym train rl` read."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repairgym.config.algorithms import check_turns
from repairgym.config.cluster import ClusterConfig
from repairgym.config.endpoint import EndpointConfig
from repairgym.config.learning import AlgorithmConfig
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import AnyPipelineConfig, GradingConfig, PipelineConfig, check_undemonstrated
from repairgym.config.recipes import RlConfig
from repairgym.config.rollout import RolloutConfig, WatchConfig
from repairgym.config.sandbox import LayersConfig, SandboxConfig
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


ExportKind = Literal["trajectories", "samples"]
ExportLayout = Literal["parquet", "dataset"]


class TrajectoryTablesConfig(Record):
    """`repairgym trajectories parquet`."""

    what: ExportKind = "trajectories"
    """``samples``: token sequences with weights, sampling log-probs and advantages, as a policy update reads them."""
    layout: ExportLayout = "dataset"
    """``dataset``: a folder of Parquet shards by split, which `datasets.load_dataset` reads; ``parquet``: one file."""
    phase: str = ""
    """Phase of the run; empty: all (trajectories only)."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """How advantages are computed for samples."""


LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ShellScriptConfig(Record):
    """How the scripts ``shell-oracle`` and ``shell-submit`` speak to an agent that runs shell commands.

    The defaults are what mini-swe-agent 2 expects.
    """

    submit_command: str = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git add -A && git diff --cached"
    """The command that hands in; an agent that reads the patch itself needs only its first part."""
    fence: str = "mswea_bash_command"
    """Word behind the three backticks around a command, for agents that offer no tool."""


class ServeConfig(Record):
    """`repairgym serve`."""

    host: str = "127.0.0.1"
    """Another address than the loopback one needs a token."""
    port: int = Field(default=8000, ge=0, le=65_535)
    """0: any free one, printed at the start."""
    token_env: str = "REPAIRGYM_SERVE_TOKEN"
    """Environment variable that holds the token of clients; without a value none is asked for."""
    model_name: str = ""
    """Name under which clients know the model; empty: the name of the policy or of the model folder."""
    max_concurrent: PositiveInt = 16
    """Requests that run at one time."""
    max_waiting: NonNegativeInt = 64
    """Requests that wait for one of these places; more are refused with status 429."""
    default_reply_tokens: PositiveInt = 512
    """Of a model's replies to requests that set no bound; scripts say all they have to say."""
    max_body_bytes: PositiveInt = 16 << 20
    drain_s: PositiveFloat = 30.0
    """Time that running requests get when the server is stopped."""
    engine: EngineConfig = EngineConfig()
    pipeline: AnyPipelineConfig = PipelineConfig()
    """Whose actions scripted policies speak."""
    shell: ShellScriptConfig = ShellScriptConfig()


class ViewConfig(Record):
    """`repairgym view`."""

    host: str = "127.0.0.1"
    """Other machines reach another address only with a token."""
    port: int = Field(default=8320, ge=0, le=65_535)
    """0: a free one."""
