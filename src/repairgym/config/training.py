"""One config per training command: `repairgym train sft`, `rft`, `step_dpo`, `dapo_two_stage`, `distill_then_grpo`.

Defaults are the papers' values; the presets `paper_a` and `paper_b` (`data/presets`) hold them with the sizes of the
papers' models. "Paper A" is arXiv 2510.22075, "paper B" is arXiv 2508.03501. Imports no torch.
"""

from typing import Self

from pydantic import Field, PositiveInt, model_validator

from repairgym.config.algorithms import DapoLossConfig, check_turns
from repairgym.config.curation import SolveRateConfig
from repairgym.config.endpoint import EndpointConfig
from repairgym.config.learning import AlgorithmConfig, LossChoice, OptimizerConfig, RftConfig, SftConfig, StepDpoConfig
from repairgym.config.pipeline import check_undemonstrated
from repairgym.config.recipes import CollectConfig, RlConfig
from repairgym.config.rollout import RolloutConfig, WatchConfig
from repairgym.records import Record


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

    rl: RlConfig = RlConfig()
    rollout: RolloutConfig = RolloutConfig()

    @model_validator(mode="after")
    def _training_can_honor_it(self) -> Self:
        check_turns(self.rl.reward, self.rollout.pipeline.max_turns)
        self.rollout.require_training_temperature()
        check_undemonstrated(self.rollout.pipeline)
        return self


class TwoStageConfig(Record):
    """`repairgym train dapo_two_stage` (paper B, section 4.3 and Table 3)."""

    seed: int = 0
    stage_1: StageConfig = StageConfig()
    select: SolveRateConfig = SolveRateConfig()
    """Tasks of stage 2, by their solve rate over all iterations of stage 1."""
    yarn_factor: float = Field(default=4.0, ge=1.0)
    """Scaling of positions between the stages (Table 3: YaRN 4.0); 1 leaves the model unchanged."""
    stage_2: StageConfig = StageConfig(
        rl=RlConfig(
            algorithm=AlgorithmConfig(batch_size=256, loss=DapoLossConfig(eps_high=0.26)),
            num_groups=100,
            num_groups_sampled=100,
        )
    )
    """Table 3: batch 256, upper clip 0.26, 100 problems per iteration."""
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
    rollout: RolloutConfig = RolloutConfig()
    watch: WatchConfig = WatchConfig()

    @model_validator(mode="after")
    def _training_can_honor_it(self) -> Self:
        check_turns(self.rl.reward, self.rollout.pipeline.max_turns)
        self.rollout.require_training_temperature()
        check_undemonstrated(self.rollout.pipeline)
        return self
