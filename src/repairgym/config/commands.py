"""Configs of commands: rollout, replay, grade, serve, view and others, one class each."""

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repairgym.config.cluster import ClusterConfig, check_cluster
from repairgym.config.learning import AlgorithmConfig
from repairgym.config.models import EndpointConfig, EngineConfig
from repairgym.config.pipeline import AnyPipelineConfig, GradingConfig, PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import LayersConfig, SandboxConfig
from repairgym.records import Record, SourceKind, Split


class TaskSelection(Record):
    """Selection of tasks from a folder."""

    split: Split = "test"
    source: SourceKind = "mutations"
    num_tasks: NonNegativeInt = 0
    """0: all."""


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

    _nodes_can_run_it = model_validator(mode="after")(check_cluster)


class ReplayCommandConfig(Record):
    """`repairgym replay`."""

    phase: str = ""
    """Phase of the run whose episodes are replayed; empty: any."""
    num_episodes: PositiveInt = 100
    """Largest number of episodes to replay."""
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


ExportKind = Literal["trajectories", "samples"]
ExportLayout = Literal["parquet", "dataset"]


class TrajectoryTablesConfig(Record):
    """`repairgym trajectories parquet`."""

    what: ExportKind = "trajectories"
    """``samples``: token sequences with weights, sampling log-probs and advantages, the input of a policy update."""
    layout: ExportLayout = "dataset"
    """``dataset``: a folder of Parquet shards by split, which `datasets.load_dataset` reads; ``parquet``: one file."""
    phase: str = ""
    """Phase of the run; empty: all (trajectories only)."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """Computation of the advantages of ``samples``."""


class ShellScriptConfig(Record):
    """Commands of the scripts ``shell-oracle`` and ``shell-submit`` for an agent that runs shell commands.

    The defaults are what mini-swe-agent 2 expects.
    """

    submit_command: str = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git add -A && git diff --cached"
    """Command that submits; an agent that reads the patch itself needs only its first part."""
    fence: str = "mswea_bash_command"
    """Language tag of the code fence around a command, for agents without a shell tool."""


class ServeConfig(Record):
    """`repairgym serve`."""

    host: str = "127.0.0.1"
    """Address to listen on; any but the loopback address needs a token."""
    port: int = Field(default=8000, ge=0, le=65_535)
    """0: any free port, printed at the start."""
    token_env: str = "REPAIRGYM_SERVE_TOKEN"
    """Environment variable that holds the token of clients; without a value no token is needed."""
    model_name: str = ""
    """Name of the model for clients; empty: the name of the policy or of the model folder."""
    max_concurrent: PositiveInt = 16
    """Requests that run at one time."""
    max_waiting: NonNegativeInt = 64
    """Requests that may wait; more are rejected with status 429."""
    default_reply_tokens: PositiveInt = 512
    """Bound on a model's reply to a request without one; scripted replies are never cut."""
    max_body_bytes: PositiveInt = 16 << 20
    drain_s: PositiveFloat = 30.0
    """Time that running requests get when the server is stopped."""
    engine: EngineConfig = EngineConfig()
    pipeline: AnyPipelineConfig = PipelineConfig()
    """Pipeline whose action format scripted policies write."""
    shell: ShellScriptConfig = ShellScriptConfig()


class ViewConfig(Record):
    """`repairgym view`."""

    host: str = "127.0.0.1"
    """Address to listen on; any but the loopback address needs a token."""
    port: int = Field(default=8320, ge=0, le=65_535)
    """0: any free port."""
