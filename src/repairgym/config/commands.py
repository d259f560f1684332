"""Configs of commands, one class each: rollout, replay, grade, serve, view, eval (graded cold) and others."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from repairgym.config.agent import ShellScriptConfig
from repairgym.config.cluster import ClusterConfig, check_cluster
from repairgym.config.exploration import GroupTreeConfig, NoTreeConfig, check_tree
from repairgym.config.learning import AlgorithmConfig
from repairgym.config.models import EndpointConfig, EngineConfig
from repairgym.config.pipeline import AnyPipelineConfig, FullConfig, GradingConfig, PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import LayersConfig, SandboxConfig
from repairgym.config.selection import DataSetSelection, Date, TaskSelection
from repairgym.config.tasks import MutationConfig, PlanConfig, TasksConfig
from repairgym.errors import ConfigError
from repairgym.records import Record

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
"""Pattern of a name that becomes part of phases and ids."""


class EpisodesConfig(Record):
    """Episodes of a policy on tasks."""

    select: TaskSelection = TaskSelection(splits=("test",), is_specified_only=True)
    num_samples: PositiveInt = 1
    """Paper B, Table 1: 10 runs per task."""
    seed: int = 0
    rollout: RolloutConfig = RolloutConfig()
    endpoint: EndpointConfig = EndpointConfig()
    """The server of the policies ``openai`` and ``vllm``."""
    cluster: ClusterConfig = ClusterConfig()

    _nodes_can_run_it = model_validator(mode="after")(check_cluster)


class GenerationSettings(Record):
    """Making of one generation of tasks."""

    num_tasks: PositiveInt = 100
    """Most new tasks: those from failed repairs and from proposals count, the plan makes the rest."""
    num_tries: PositiveInt = 6
    """Mutants tried per wanted task, at most."""
    num_failed_repairs: NonNegativeInt = 0
    """Most new tasks from failed repairs, and from injections, per package; 0: all."""
    num_proposals: NonNegativeInt = 0
    """Questions to ``generator`` per package; 0: no model proposes bugs."""
    generator: EndpointConfig = EndpointConfig()
    """Server of the model that proposes bugs."""
    plan: PlanConfig = PlanConfig()
    mutations: MutationConfig = MutationConfig()
    catalogue: str = ""
    """Catalogue file of the packages; empty: that of the last generation's build."""
    locks: str = ""
    """Folder of their locks; empty: that of the last generation's build."""
    num_certificate_runs: PositiveInt = 3
    """Empty runs and gold runs per task."""
    test_timeout_s: PositiveFloat = 1.5
    """Bound on one test while tasks are made."""
    run_timeout_s: PositiveFloat = 3.0
    """Bound on one run of a task's tests while tasks are made."""
    num_concurrent: PositiveInt = 2
    """Sandboxes at once."""

    @model_validator(mode="after")
    def _generator_is_named(self) -> Self:
        if self.num_proposals:
            try:
                self.generator.require_server()
            except ConfigError as error:
                raise ValueError(str(error).replace("endpoint.", "generator.")) from error
        elif self.generator != EndpointConfig():
            raise ValueError("generator is set, but num_proposals=0 asks it nothing; set num_proposals")
        return self


class EvolutionConfig(EpisodesConfig, GenerationSettings):
    """`repairgym tasks evolve`."""

    select: TaskSelection = TaskSelection(splits=("train",), sources=("mutations",))
    """Tasks of the last generation; new tasks keep the split of their package."""
    num_samples: PositiveInt = 4
    """Episodes per task that ``--policy`` runs."""

    def as_build(self, catalogue: str, locks: str) -> TasksConfig:
        """Return the settings of the sources."""
        names = ("mutations", "num_certificate_runs", "test_timeout_s", "run_timeout_s", "seed", "num_concurrent")
        own = {name: getattr(self, name) for name in names}
        rollout = {"sandbox": self.rollout.sandbox, "layers": self.rollout.layers}
        return TasksConfig(sources=("mutations",), catalogue=catalogue, locks=locks, **own, **rollout)


class RolloutCommandConfig(EpisodesConfig):
    """`repairgym rollout`."""

    tree: GroupTreeConfig = NoTreeConfig()
    """Branches among the episodes of a task; ``num_samples`` counts all of them."""

    @model_validator(mode="after")
    def _grows(self) -> Self:
        check_tree(self.tree, self.num_samples, self.rollout.agent.type)
        return self


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
    datasets: str = "datasets"
    """Folder of your downloads: ``--dataset NAME`` looks for ``NAME.jsonl``, ``.parquet`` or ``.txt`` (ids) there."""
    grading: GradingConfig = GradingConfig(is_cold=True, stops_at_failure=False)
    sandbox: SandboxConfig = SandboxConfig()
    layers: LayersConfig = LayersConfig()


class StartsConfig(Record):
    """`repairgym knowledge starts`."""

    select: TaskSelection = TaskSelection()
    num_fixes: PositiveInt = 4
    """Candidate fixes of each task: the first one and one per retry (paper A, full pipeline: 3 retries)."""
    num_concurrent: PositiveInt = 2
    """Builds at one time."""
    sandbox: SandboxConfig = SandboxConfig()
    layers: LayersConfig = LayersConfig()


class BackTestConfig(Record):
    """`repairgym tasks backtest`."""

    select: TaskSelection = TaskSelection()
    exclude_newer: str = ""
    """RFC 3339 time: other versions are the newest of then; empty: today's."""
    versions: dict[str, str] = {}
    """Distribution -> its other version, e.g. ``{setuptools = "69.5.1"}``; the others stay as `exclude_newer` says."""
    num_runs: PositiveInt = 1
    """Runs without and with the repair, in each environment."""
    num_concurrent: PositiveInt = 2
    """Repairs at one time."""
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
    """Computation of the advantages of ``samples``, from the verdicts' own rewards over each iteration. Of each sample
    one number: ``group``, ``dr_grpo``, ``rloo`` and ``reinforce_pp``. Branches compare with all members."""


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
    model_aliases: tuple[str, ...] = ()
    """Further names under which clients may ask for it, for programs that name a provider's model."""
    max_concurrent: PositiveInt = 16
    """Answers that are sampled at one time."""
    max_waiting: NonNegativeInt = 240
    """Answers that may wait; more are rejected with status 429."""
    default_reply_tokens: PositiveInt = 512
    """Bound on a model's reply to a request without one; scripted replies are never cut."""
    is_strict: bool = False
    """Reject what changes the sampled distribution: RL needs temperature 1 and nothing else."""
    max_body_bytes: PositiveInt = 16 << 20
    client_timeout_s: PositiveFloat = 60.0
    """Time that a client has to send its request, and to read on in a stream."""
    drain_s: PositiveFloat = 30.0
    """Time that running requests get when the server is stopped."""
    engine: EngineConfig = EngineConfig()
    endpoint: EndpointConfig = EndpointConfig()
    """With ``--policy vllm``: the server that samples, one."""
    pipeline: AnyPipelineConfig = PipelineConfig()
    """Pipeline whose action format scripted policies write."""
    shell: ShellScriptConfig = ShellScriptConfig()


class ServeTasksConfig(Record):
    """`repairgym serve-tasks`."""

    select: DataSetSelection = DataSetSelection()
    """``splits`` of ``test`` and ``validation`` are for evaluation only."""
    seed: int = 0
    host: str = "127.0.0.1"
    """Address to listen on; any but the loopback address needs a token."""
    port: int = Field(default=8010, ge=0, le=65_535)
    """0: any free port, printed at the start."""
    token_env: str = "REPAIRGYM_SERVE_TOKEN"
    """Environment variable that holds the token of clients; without a value no token is needed."""
    max_episodes: PositiveInt = 16
    """Episodes that clients lead at one time."""
    idle_timeout_s: PositiveFloat = 900.0
    """An episode whose client calls nothing for so long is stopped, ungraded."""
    rollout: RolloutConfig = RolloutConfig(
        pipeline=PipelineConfig(
            tools=("shell", "read_file", "write_file", "find_files", "find_files_with_text", "test", "submit"),
            action_format="native",
            max_turns=100,
            is_place_opened=False,
        )
    )
    """Tools and limits are the pipeline's; its tokens bound nobody, because clients send calls and no tokens."""

    @model_validator(mode="after")
    def _can_be_led(self) -> Self:
        pipeline = self.rollout.pipeline
        if self.rollout.agent.type != "pipeline":
            raise ValueError("rollout.agent: the client is the agent; leave it out")
        if pipeline.action_format != "native":
            raise ValueError(
                f"pipeline.action_format={pipeline.action_format!r}: clients call tools with JSON; set it to 'native'"
            )
        if isinstance(pipeline, FullConfig):
            raise ValueError("pipeline.type='full' begins again after an attempt; clients lead one attempt")
        return self


class AcpConfig(Record):
    """`repairgym acp`."""

    seed: int = 0
    rollout: RolloutConfig = RolloutConfig(grading=GradingConfig(is_replayed=False, is_differential=False))
    """Sandbox, pipeline and limits of the agent; its grading judges patches by the tests of the folder."""
    endpoint: EndpointConfig = EndpointConfig()
    """The server of the policies ``openai`` and ``vllm``."""

    @model_validator(mode="after")
    def _has_no_repair(self) -> Self:
        grading = self.rollout.grading
        if grading.is_replayed or grading.is_differential:
            raise ValueError(
                "rollout.grading.is_replayed and is_differential compare with a known repair, which a folder of an "
                "editor does not have; leave them off"
            )
        if self.rollout.agent.type != "pipeline":
            raise ValueError("rollout.agent: editors start agents of others themselves; leave it out")
        return self


Origin = Annotated[str, Field(pattern=r"^[a-z][a-z0-9+.-]*://[^\s;,'\"/]+$")]
"""Scheme, host and port of a web page."""


class ViewConfig(Record):
    """`repairgym view`."""

    host: str = "127.0.0.1"
    """Address to listen on; any but the loopback address needs a token."""
    port: int = Field(default=8320, ge=0, le=65_535)
    """0: any free port."""
    embed_from: tuple[Origin, ...] = ()
    """Origins, e.g. ``http://localhost:8888``, whose pages may show these in frames."""
    max_trajectories: NonNegativeInt = 0
    """Of each run in an export (``--export``), as whole groups of every phase; 0: all."""


# --- evaluation ----------------------------------------------------------------------------------------------------


class EvalCommandConfig(EpisodesConfig):
    """`repairgym eval run`."""

    num_samples: PositiveInt = 10
    """Runs per task (paper B, Table 1: mean of 10 runs ± standard error)."""
    rollout: RolloutConfig = RolloutConfig(grading=GradingConfig(is_cold=True))


class CalibrationConfig(EvalCommandConfig):
    """`repairgym tasks calibrate`: every task, unless some are selected."""

    num_samples: PositiveInt = 8
    select: TaskSelection = TaskSelection()


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
    select: TaskSelection = TaskSelection(splits=("test",), is_specified_only=True)
    num_samples: PositiveInt = 5
    """Runs per task (paper A: 5 runs per configuration)."""
    seed: int = 0
    endpoint: EndpointConfig = EndpointConfig()
    """The server of the policies ``openai`` and ``vllm``."""

    @field_validator("policies", "environments")
    @classmethod
    def _names_are_plain(cls, value: dict[str, Record]) -> dict[str, Record]:
        bad = [name for name in value if not NAME.fullmatch(name)]
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

    select: TaskSelection = TaskSelection(splits=("train",))
    num_steps: PositiveInt = 8
    first_cheat_share: float = Field(default=0.0, ge=0.0, le=1.0)
    last_cheat_share: float = Field(default=0.9, ge=0.0, le=1.0)
    num_samples: PositiveInt = 4
    """Episodes per task and step."""
    seed: int = 0
    rollout: RolloutConfig = RolloutConfig(
        grading=GradingConfig(
            is_protected_restored=False, is_inspected=False, num_canaries=0, is_differential=False, is_replayed=False
        )
    )
    """By default without gates, the subject of the study. Turn them on to see the gap close."""


class ChangesConfig(Record):
    """`repairgym train changes`: small changes of functions between releases of packages."""

    packages: tuple[str, ...] = ()
    """Names on the package index; ``--preset changes`` names some of this project's own dependencies."""
    num_releases: int = Field(default=12, ge=2)
    """Newest final releases of each package; those next to one another are compared."""
    max_archive_mib: PositiveFloat = 8.0
    """Larger source distributions are left out."""
    max_hunks: PositiveInt = 3
    """Places in a function that change."""
    max_changed_lines: PositiveInt = 8
    """Removed and added lines of a function."""
    max_code_lines: PositiveInt = 40
    """Lines of a function, docstring and blank lines not counted."""
    max_chars: PositiveInt = 2000
    """Characters of a function."""
    num_downloads: PositiveInt = 4
    """Archives of a package that are fetched at the same time."""
    num_workers: PositiveInt = 2
    """Processes, one package each."""


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


class MergeConfig(Record):
    """`repairgym eval merge`. The limits are our own; no paper sets them."""

    phase: str = ""
    """Evaluation phase; empty: the only one of the run."""
    max_size_ratio: PositiveFloat = 3.0
    """Added and removed lines, over those of gold."""
    min_lines: PositiveInt = 6
    """As many changed lines are never too many."""
    max_more_files: NonNegativeInt = 0
    """Changed files that gold does not change."""
    max_more_complexity: NonNegativeInt = 2
    """Branches (McCabe 1976) added beyond gold's."""


class ContaminationConfig(Record):
    """`repairgym eval contamination`."""

    select: TaskSelection = TaskSelection(splits=("test",))
    """Tasks whose functions the policy should not know."""
    control: TaskSelection = TaskSelection(splits=("validation",))
    """Tasks whose functions it cannot know: newer than its corpus, or known to be left out."""
    num_renamings: PositiveInt = 4
    """Controls of each function: the same code with its local names exchanged."""
    max_functions: PositiveInt = 200
    """Of each side, drawn by the digests of their texts."""
    max_len_tokens: PositiveInt = Field(default=512, ge=16)
    """Longer functions are cut."""
    phase: str = ""
    """Evaluation phase of the run; empty: its only one."""
    known_until: Date = ""
    """Day on which the model's corpus ends: Pass@1 of a run is then compared between older and newer tasks."""
