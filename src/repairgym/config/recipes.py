"""Recipes and training commands: sizes, budgets and stages on top of the configs of the layers.

Defaults are the papers' values; the presets `paper_a` and `paper_b` (`data/presets`) hold them with the sizes of the
papers' models. "Paper A" is arXiv 2510.22075, "paper B" is arXiv 2508.03501. Imports no torch.
"""

from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from repairgym.config import exploration as exploration_config
from repairgym.config.algorithms import DapoLossConfig, RewardConfig, TerminalRewardConfig, check_turns
from repairgym.config.cluster import ClusterConfig, check_cluster
from repairgym.config.exploration import GroupTreeConfig, NoTreeConfig, check_tree
from repairgym.config.learning import (
    AlgorithmConfig,
    ComputeConfig,
    LossChoice,
    OptimizerConfig,
    RftConfig,
    SftConfig,
    StepDpoConfig,
)
from repairgym.config.models import (
    EmbeddedSamplerConfig,
    EndpointConfig,
    EngineConfig,
    ModelConfig,
    SamplerConfig,
    TeacherNoise,
)
from repairgym.config.pipeline import PipelineConfig, check_undemonstrated
from repairgym.config.rollout import RolloutConfig, WatchConfig
from repairgym.config.selection import TrainingSelection, ValidationSelection
from repairgym.config.tasks import MutationConfig, ReleaseConfig, SolveRateConfig, SplitLimits, TasksConfig
from repairgym.records import Record, SourceKind


class CollectConfig(Record):
    """Collection of trajectories for supervised training."""

    select: TrainingSelection = TrainingSelection(num_tasks=256)
    num_samples: PositiveInt = 4
    """Episodes per task; paper B, section 4.2: 10."""
    max_per_task: PositiveInt = 4
    """Most trajectories kept per task, so that easy tasks do not fill the set."""


class CorrectionConfig(Record):
    """Pre-training on the policy's own errors (`pretraining/simulated_search.py`)."""

    num_searches: PositiveInt = 1000
    """Searches, repeated whenever the training state is saved."""
    max_edits: PositiveInt = 8
    """Most edits of one search."""
    num_per_search: PositiveInt = 3
    """Decisions of a search to train on, including the first."""
    token_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of a step's tokens; the rest are episodes of the simulated teacher. 0: no corrections."""


class PretrainingConfig(Record):
    """Pre-training of a small base model on simulated repairs (design decision 9)."""

    model: ModelConfig = ModelConfig(num_layers=6, num_heads=6, head_dim=32, max_len_tokens=4096, is_tied=False)
    distributions: tuple[str, ...] = (
        "stdlib", "sympy", "networkx", "torch", "transformers", "jinja2", "matplotlib", "numpy", "fonttools", "rich",
        "pygments", "pydantic", "hypothesis", "mypy", "huggingface_hub", "coverage",
    )  # fmt: skip
    """Installed distributions whose functions form the corpus."""
    functions: str = ""
    """File of functions (`repairgym train functions`) instead, for a machine without the distributions."""
    changes: str = ""
    """File of function changes between releases (`repairgym train changes`)."""
    change_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the episodes that repair a change of ``changes``: real fixes, in free text."""
    damage_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the episodes that repair free damage (`pretraining/damage.py`); the rest repairs mutations."""
    num_line_labels: PositiveInt = 40
    num_tokenizer_functions: PositiveInt = 8000
    num_tokens: PositiveInt = 15_500_000
    """Training tokens, context included."""
    batch_tokens: PositiveInt = 8192
    """Tokens per optimizer step."""
    multi_bug_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of episodes with two to four bugs, which hold more repairs per token."""
    final_share: float = Field(default=0.3, ge=0.0, le=1.0)
    """Last share of the tokens: single bugs only, as in the tasks, and `corrections`."""
    corrections: CorrectionConfig = CorrectionConfig()
    context_weight: float = Field(default=0.1, ge=0.0)
    """Loss weight of observation tokens: the model also learns to predict code."""
    control_weight: float = Field(default=0.3, ge=0.0)
    """Loss weight of test, undo and submit."""
    noise: TeacherNoise = TeacherNoise(mistypes=0.15, misreads=0.1, tests=0.8, undoes=0.95, gives_up=0.05)
    """Noise of the simulated teacher. It errs more often than the real teacher and continues longer, because recovery
    from an error and search after failed guesses must be learned, too."""
    optimizer: OptimizerConfig = OptimizerConfig(
        type="muon", learning_rate=3e-3, muon_learning_rate=9e-3, weight_decay=0.05, betas=(0.9, 0.95),
        num_warmup_steps=60, schedule="linear",
    )  # fmt: skip
    compute: ComputeConfig = ComputeConfig()
    num_workers: NonNegativeInt = 0
    """Processes that make the batches ahead of the training; 0: the training process, in turn. A GPU needs many."""
    save_every_steps: PositiveInt = 100
    """Steps between saved states, each with measurements on validation functions."""
    time_limit_s: PositiveFloat | None = None
    """Seconds of one call; once its speed is known, ``num_tokens`` and with it the schedule are cut to what fits."""
    seed: int = 0

    @model_validator(mode="after")
    def _shares_have_a_source(self) -> Self:
        if self.change_share and not self.changes:
            raise ValueError("change_share needs changes=FILE, which repairgym train changes makes")
        if self.change_share + self.damage_share > 1.0:
            raise ValueError("change_share and damage_share add up to more than 1")
        return self


class RlConfig(Record):
    """The RL loop."""

    algorithm: AlgorithmConfig = AlgorithmConfig()
    sampler: SamplerConfig = EmbeddedSamplerConfig()
    """Engine that samples the episodes."""
    reward: RewardConfig = TerminalRewardConfig()
    """Reward of the learner; stored and reported is the reward of the verdict."""
    exploration: exploration_config.ExplorationConfig = exploration_config.NoExplorationConfig()
    """Bonus on top of ``reward``; never in evaluation, never for an exploit."""
    perturbation: exploration_config.WeightPerturbationConfig = exploration_config.NoPerturbationConfig()
    """Change of the weights on a plateau of validation."""
    tree: GroupTreeConfig = NoTreeConfig()
    """Branches among the members of a group; ``algorithm.group_size`` counts all of them."""
    num_groups: PositiveInt = 300
    """Groups with unequal rewards per iteration (paper B, Table 3: 300 problems)."""
    num_groups_sampled: PositiveInt = 300
    """Groups sampled first; groups that dynamic sampling drops are refilled."""
    spread_share: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the kept groups to train on: those whose rewards differ most (StarPO-S, arXiv 2504.20073: 0.25)."""
    max_refills: NonNegativeInt = 2
    select: TrainingSelection = TrainingSelection()
    """Training tasks."""
    source_shares: dict[SourceKind, PositiveFloat] = {}
    """Source -> its share of the groups that are sampled, e.g. ``{mutations = 0.7, releases = 0.3}``; the shares add up
    to 1, and a source without one is not drawn. Empty: every task alike, whatever its source."""
    curriculum: Literal["uniform", "learnability", "optimistic"] = "uniform"
    """Order of the training tasks; ``learnability`` prefers those whose latest group had mixed rewards, at first those
    that the reference policy of ``select.solve_rates`` sometimes solves. ``optimistic`` takes those that may be most
    learnable by all their groups, older ones counting less (`learning/curriculum.py`)."""
    max_iterations: PositiveInt = 100
    max_sampled_tokens: PositiveInt | None = None
    """Sampled tokens behind which no iteration begins, so that algorithms can be compared at equal sampling; validation
    does not count."""
    max_staleness: NonNegativeInt = 0
    """Policy versions that a token may lag behind the trained weights; older episodes are dropped and counted. 0:
    sample and train in turn (paper B, appendix D). Above 0: sample the next iterations during training, which needs
    ``algorithm.correction`` (the bound and the decoupled ratio of AReaL, arXiv 2505.24298)."""
    save_every: PositiveInt = 1
    """Iterations between saved training states. A killed run repeats the updates since the last one with their stored
    episodes. The model folder is written after every iteration: the next episodes are sampled with it."""
    validation_every: NonNegativeInt = 10
    """Iterations between validations; 0: never."""
    validation: ValidationSelection = ValidationSelection()
    """Validation tasks."""
    num_validation_samples: PositiveInt = 1
    """Episodes of each validation task; above 1 Pass@n is tracked, too (paper B, figure 3: Pass@10)."""

    @field_validator("source_shares")
    @classmethod
    def _shares_add_up(cls, value: dict[SourceKind, float]) -> dict[SourceKind, float]:
        if value and abs(sum(value.values()) - 1.0) > 1e-6:
            raise ValueError(f"the shares add up to {sum(value.values()):g}, expected 1")
        return value

    @model_validator(mode="after")
    def _stale_samples_are_corrected(self) -> Self:
        if self.max_staleness and self.algorithm.correction.type == "none":
            raise ValueError(
                f"max_staleness={self.max_staleness} learns from episodes of older weights; set "
                "algorithm.correction.type='truncate' or 'mask', to weight them by the agreement of the policies"
            )
        return self

    @model_validator(mode="after")
    def _plateaus_are_seen(self) -> Self:
        if self.perturbation.type == "none":
            return self
        if not self.validation_every or self.max_staleness or self.algorithm.trained.type != "full":
            raise ValueError(
                f"perturbation.type={self.perturbation.type!r} compares validations of all weights, iteration by "
                f"iteration, but validation_every={self.validation_every}, max_staleness={self.max_staleness} and "
                f"algorithm.trained.type={self.algorithm.trained.type!r}; expected above 0, 0 and 'full'"
            )
        return self


def _check_training(config: Any) -> Any:
    """Check that RL can use the episodes of a configuration: its sections ``rl`` and ``rollout``."""
    rollout = config.rollout
    check_turns(config.rl.reward, rollout.pipeline.max_turns)
    if config.rl.reward.type == "partial_credit" and rollout.grading.stops_at_failure:
        raise ValueError(
            "rl.reward.type='partial_credit' counts the tests that pass, and rollout.grading.stops_at_failure=true "
            "ends a run at the first that does not; set rollout.grading.stops_at_failure=false"
        )
    if config.rl.reward.type == "adapt_think" and not rollout.pipeline.is_thinking:
        raise ValueError("rl.reward.type='adapt_think' rewards turns without a thought, and pipeline.thinking='off'")
    if config.rl.reward.type == "adapt_think" and config.rl.algorithm.advantage.type == "group":
        raise ValueError(
            "rl.algorithm.advantage.type='group' divides by the deviation of a group, which makes the bonus of "
            "adapt_think as large as a pass where all members pass; set rl.algorithm=dr_grpo or rloo"
        )
    check_undemonstrated(rollout.pipeline)
    check_tree(config.rl.tree, config.rl.algorithm.group_size, rollout.agent.type)
    if rollout.temperature != 1.0:
        raise ValueError(
            f"rollout.temperature={rollout.temperature}: training samples at temperature 1 only, because its "
            "log-probabilities are those of the policy; leave it out (only repairgym rollout and eval accept it)"
        )
    return config


class EvaluationConfig(Record):
    """Final evaluation."""

    num_tasks: PositiveInt = 170
    """Test mutations for the start and the end of RL."""
    num_control_tasks: PositiveInt = 60
    """Test mutations for the other stages: base, SFT, controls."""
    num_checkpoints: NonNegativeInt = 1
    """RL checkpoints, of those kept at each validation, to evaluate on the control tasks; none below 40 minutes."""
    num_start_tasks: PositiveInt = 25
    """Test mutations on which Pass@k of the start is measured; not below 40 minutes."""
    num_release_tasks: PositiveInt = 20
    num_samples: PositiveInt = 1
    """Samples per task of most stages."""
    num_main_samples: PositiveInt = 1
    """Samples per task of the start and the end of RL; a demo of 60 minutes takes twice as many."""
    num_start_samples: PositiveInt = 8
    """Samples per task for Pass@k of the start."""
    temperatures: tuple[float, ...] = (0.7, 0.4)
    """Controls: the start sampled at lower temperatures; not below 40 minutes."""
    is_continued_control: bool = True
    """Control: continue supervised training for the compute that RL used."""


class DemoConfig(Record):
    """The whole loop on one machine."""

    minutes: PositiveFloat = 13.0
    """Wall-clock budget with evaluation and report; below 15 with the set-up of a fresh clone."""
    seed: int = 0
    base: str = ""
    """Model folder to start from; empty: the shipped one."""
    start: Literal["own", "teacher"] = "own"
    """Start of RL: RFT on the base's own successes (paper B, section 4.2), or SFT on a teacher's first (paper A)."""
    is_from_scratch: bool = False
    """Pre-train a base first; the time for `pretraining.num_tokens` adds to `minutes`."""
    tasks: TasksConfig = TasksConfig(
        limits=SplitLimits(train=144, validation=32, test=170),
        mutations=MutationConfig(num_per_package=80, num_tests=8, num_passing_kept=8),
        releases=ReleaseConfig(splits=("test",), num_pairs=1, num_per_pair=4),
    )
    pretraining: PretrainingConfig = PretrainingConfig()
    rollout: RolloutConfig = RolloutConfig(
        pipeline=PipelineConfig(max_turns=30, max_action_tokens=24, max_len_tokens=1536),
        engine=EngineConfig(num_slots=64, max_len_tokens=1536),
    )
    teacher: CollectConfig = CollectConfig(select=TrainingSelection(num_tasks=120), num_samples=2)
    sft: SftConfig = SftConfig(
        optimizer=OptimizerConfig(learning_rate=3e-4, weight_decay=0.0, num_warmup_steps=5, schedule="cosine"),
        batch_size=32,
        num_epochs=2,
    )
    own: CollectConfig = CollectConfig(select=TrainingSelection(num_tasks=64), num_samples=4, max_per_task=3)
    """Rollouts of the policy itself, selected by verdict."""
    rft: RftConfig = RftConfig(
        optimizer=OptimizerConfig(learning_rate=2e-4, weight_decay=0.0, num_warmup_steps=5, schedule="cosine"),
        batch_size=32,
        num_epochs=2,
    )
    rl: RlConfig = RlConfig(
        algorithm=AlgorithmConfig(
            group_size=8,
            batch_size=96,
            loss=DapoLossConfig(denominator="trajectory"),
            is_error_masked=True,
            negative_weight=0.3,
            optimizer=OptimizerConfig(learning_rate=2e-4, weight_decay=0.0, num_warmup_steps=3),
            compute=ComputeConfig(micro_batch_tokens=4096),
        ),
        num_groups=12,
        num_groups_sampled=16,
        max_refills=1,  # none below 40 minutes
        curriculum="learnability",
        max_iterations=1000,
    )
    evaluation: EvaluationConfig = EvaluationConfig()
    watch: WatchConfig = WatchConfig()

    _episodes_can_train = model_validator(mode="after")(_check_training)

    @model_validator(mode="after")
    def _engine_keeps_episodes(self) -> Self:
        self.rollout.require_engine_room()
        return self


class RlCommandConfig(Record):
    """`repairgym train rl`."""

    seed: int = 0
    rl: RlConfig = RlConfig()
    rollout: RolloutConfig = RolloutConfig()
    cluster: ClusterConfig = ClusterConfig()
    watch: WatchConfig = WatchConfig()

    _episodes_can_train = model_validator(mode="after")(_check_training)
    _nodes_can_run_it = model_validator(mode="after")(check_cluster)


class SftCommandConfig(Record):
    """`repairgym train sft`."""

    phase: str = "rollout"
    """Phase of the run whose passed trajectories are the training data."""
    max_per_task: PositiveInt = 4
    sft: SftConfig = SftConfig()


class RftCommandConfig(Record):
    """`repairgym train rft`."""

    seed: int = 0
    phase: str = "rollout"
    """Phase of the run whose passed trajectories are the training data; `--tasks` collects them first."""
    collect: CollectConfig = CollectConfig(num_samples=10)
    """Paper B, section 4.2: 10 rollouts per task. Without `--tasks` only ``max_per_task`` is read."""
    sampler: Literal["embedded", "vllm", "openai"] = "embedded"
    """Engine of the collected rollouts: that of each worker, or servers that hold the start model (`endpoint`)."""
    endpoint: EndpointConfig = EndpointConfig()
    """The servers of the samplers ``vllm`` and ``openai``."""
    rft: RftConfig = RftConfig()
    rollout: RolloutConfig = RolloutConfig()


class StepDpoCommandConfig(Record):
    """`repairgym train step_dpo`."""

    phase: str = "rollout"
    """Phase of the run whose groups are compared."""
    min_gap: float = Field(default=0.3, ge=0.0, lt=1.0)
    """Least difference in mean later reward between the actions of a pair. Our choice; Agent Q gives no value."""
    max_per_task: PositiveInt = 16
    """Our choice."""
    step_dpo: StepDpoConfig = StepDpoConfig()


class StageConfig(Record):
    """One stage of RL: algorithm and environment."""

    yarn_factor: float = Field(default=1.0, ge=1.0)
    """Positions of the stage as a multiple of those that the model was first trained with, by YaRN; 1 leaves the model
    as it is. Paper B, Table 3: 4.0 in stage 2; 65k of Qwen2.5 (32,768 positions) in stage 1 need 2.0."""
    rl: RlConfig = RlConfig()
    rollout: RolloutConfig = RolloutConfig()

    _episodes_can_train = model_validator(mode="after")(_check_training)


class TwoStageConfig(Record):
    """`repairgym train dapo_two_stage` (paper B, section 4.3 and Table 3)."""

    seed: int = 0
    stage_1: StageConfig = StageConfig()
    select: SolveRateConfig = SolveRateConfig()
    """Tasks of stage 2, by their solve rate over all iterations of stage 1."""
    stage_2: StageConfig = StageConfig(
        yarn_factor=4.0,
        rl=RlConfig(
            algorithm=AlgorithmConfig(batch_size=256, loss=DapoLossConfig(eps_high=0.26)),
            num_groups=100,
            num_groups_sampled=100,
        ),
    )
    """Table 3: YaRN 4.0, batch 256, upper clip 0.26, 100 problems per iteration."""
    watch: WatchConfig = WatchConfig()


class DistillThenGrpoConfig(Record):
    """`repairgym train distill_then_grpo` (paper A, appendices on SFT and RL)."""

    seed: int = 0
    teacher: str = "teacher"
    """Policy to imitate: the name of a scripted policy, a model folder, ``openai`` or ``vllm``."""
    endpoint: EndpointConfig = EndpointConfig()
    """The server of the teachers ``openai`` and ``vllm``."""
    collect: CollectConfig = CollectConfig()
    sft: SftConfig = SftConfig(choice=LossChoice())
    rl: RlConfig = RlConfig(
        algorithm=AlgorithmConfig(
            preset="grpo", group_size=4, batch_size=32, optimizer=OptimizerConfig(weight_decay=0.0)
        ),
        num_groups=8,
        num_groups_sampled=8,
        max_refills=0,
        max_iterations=1000,
    )
    """Paper A: 8 problems x 4 rollouts, 1,000 steps. Learning rate, clip, KL and denominator are not published: paper
    B's rate and GRPO's own are our choice."""
    collect_rollout: RolloutConfig | None = None
    """Episodes of the teacher, where they differ from those of RL: paper A distills in the full pipeline and does RL in
    the simplified one."""
    rollout: RolloutConfig = RolloutConfig()
    """Episodes of RL, and of the teacher without ``collect_rollout``."""
    watch: WatchConfig = WatchConfig()

    _episodes_can_train = model_validator(mode="after")(_check_training)
