"""Recipes that sample and update in rounds of their own: experts, hints, searches, roles, self-play.

Defaults are the papers' values where they state them. Imports no torch.
"""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from repairgym.config.algorithms import TOKEN_ADVANTAGES
from repairgym.config.commands import EvolutionConfig, GenerationSettings
from repairgym.config.exploration import SearchTreeConfig, check_tree
from repairgym.config.learning import SftConfig, StepDpoConfig
from repairgym.config.pipeline import PipelineConfig, Role, check_undemonstrated
from repairgym.config.recipes import RlCommandConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.selection import TaskSelection, TrainingSelection
from repairgym.records import Record


class DaggerConfig(Record):
    """`repairgym train dagger`."""

    seed: int = 0
    select: TrainingSelection = TrainingSelection(num_tasks=64)
    num_rounds: PositiveInt = 3
    """Our choice."""
    num_samples: PositiveInt = 2
    """Episodes per task and round. Our choice."""
    first_share: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of the expert's turns in the first round; it falls by ``decay`` in each round after it (DAgger, arXiv
    1011.0686: 1, the teacher alone)."""
    decay: float = Field(default=0.5, ge=0.0, le=1.0)
    """Our choice; 0: only the first round has the expert's turns."""
    sft: SftConfig = SftConfig()
    rollout: RolloutConfig = RolloutConfig()

    def expert_share(self, step: int) -> float:
        """Return the share of the expert's turns in round ``step``."""
        return self.first_share * self.decay**step

    @model_validator(mode="after")
    def _expert_speaks(self) -> Self:
        if self.rollout.pipeline.type != "compact":
            raise ValueError(
                f"rollout.pipeline.type={self.rollout.pipeline.type!r}: the expert speaks compact actions only; "
                "expected 'compact'"
            )
        if self.sft.thoughts != "keep" or self.sft.is_paired or self.sft.is_format_error_masked:
            raise ValueError(
                "the expert's actions have neither thoughts nor format errors; leave sft.thoughts, sft.is_paired and "
                "sft.is_format_error_masked out"
            )
        return self


class HintsConfig(Record):
    """`repairgym train hints` (after CoRT, arXiv 2506.09820)."""

    seed: int = 0
    select: TrainingSelection = TrainingSelection(num_tasks=64)
    num_samples: PositiveInt = 4
    """Episodes per task whose wasted turns are looked for."""
    max_places: PositiveInt = 2
    """Most wasted turns of one failed episode that are made again: the first of each kind. Our choice."""
    num_forks: PositiveInt = 2
    """Forks with the hint at each place, and as many without it, which are the control. Our choice."""
    imitated: Literal["hinted", "unhinted"] = "hinted"
    """Forks whose successes are imitated; ``unhinted`` trains the control at equal compute."""
    max_per_task: PositiveInt = 4
    sft: SftConfig = SftConfig()
    rollout: RolloutConfig = RolloutConfig()

    @model_validator(mode="after")
    def _hints_are_seen(self) -> Self:
        pipeline = self.rollout.pipeline
        if pipeline.thinking == "dropped" or pipeline.context.type != "full" or self.rollout.agent.type != "pipeline":
            raise ValueError(
                "a hint stands in one history that our agent loop keeps whole; expected rollout.pipeline.thinking "
                f"'off' or 'kept', context.type 'full' and rollout.agent.type 'pipeline', got {pipeline.thinking!r}, "
                f"{pipeline.context.type!r} and {self.rollout.agent.type!r}"
            )
        check_undemonstrated(pipeline)
        return self


class AgentQConfig(Record):
    """`repairgym train agent_q` (Agent Q, arXiv 2408.07199, Algorithm 1)."""

    seed: int = 0
    select: TrainingSelection = TrainingSelection(num_tasks=64)
    num_rounds: PositiveInt = 3
    """Outer iterations; the reference of each is the policy that it begins with. Our choice."""
    num_leaves: PositiveInt = 16
    """Episodes of the search per task and round. Our choice: the paper states none."""
    tree: SearchTreeConfig = SearchTreeConfig(num_children=4, final_exploration=1.0)
    """The search; the paper's exploration has no decay, its number of actions per node is not stated."""
    critic_weight: float = Field(default=0.0, ge=0.0, lt=1.0)
    """1 - alpha of Q = alpha Q_search + (1 - alpha) Q_critic: the rank of an action's mean log-probability under the
    policy, from 0 to 1, stands for the paper's critic. The paper states no alpha."""
    min_gap: float = Field(default=0.3, ge=0.0, lt=1.0)
    """theta: least difference of the values of a pair. Our choice; the paper gives no value."""
    max_per_task: PositiveInt = 16
    step_dpo: StepDpoConfig = StepDpoConfig()
    rollout: RolloutConfig = RolloutConfig()

    @model_validator(mode="after")
    def _can_search(self) -> Self:
        check_tree(self.tree, self.num_leaves, self.rollout.agent.type)
        if self.tree.num_learned is not None:
            raise ValueError("the pairs are of all leaves of the search, so leave tree.num_learned out")
        return self


class MaltConfig(Record):
    """`repairgym train malt` (MALT, arXiv 2412.01928)."""

    seed: int = 0
    select: TrainingSelection = TrainingSelection(num_tasks=64)
    num_patches: PositiveInt = 3
    """Of each task; the paper's branching factor, as are the next two."""
    num_reviews: PositiveInt = 3
    """Of each patch."""
    num_refinements: PositiveInt = 3
    """Of each review."""
    threshold: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Values above it are positive, all others negative (the paper: 0.5)."""
    preferring_roles: tuple[Role, ...] = ("reviewer", "refiner")
    """Roles with DPO behind SFT; the paper's generator has SFT alone."""
    max_per_task: PositiveInt = 16
    """Most positives of one role, and most of its pairs. Our choice."""
    sft: SftConfig = SftConfig(is_format_error_masked=True)
    step_dpo: StepDpoConfig = StepDpoConfig()
    rollout: RolloutConfig = RolloutConfig(pipeline=PipelineConfig(review="actions"))

    @model_validator(mode="after")
    def _is_reviewed(self) -> Self:
        review, agent = self.rollout.pipeline.review, self.rollout.agent.type
        if review == "none" or agent != "pipeline":
            raise ValueError(
                "the roles are those of a pipeline with reviews; expected rollout.pipeline.review='actions' or "
                f"'written' and rollout.agent.type='pipeline', got {review!r} and {agent!r}"
            )
        if self.sft.thoughts != "keep" or self.sft.is_paired:
            raise ValueError("roles are learned as they were sampled; leave sft.thoughts and sft.is_paired out")
        check_undemonstrated(self.rollout.pipeline)
        return self


class SelfPlayConfig(RlCommandConfig):
    """`repairgym train self_play` (EigenData, arXiv 2601.22607; SSR, arXiv 2512.18552)."""

    num_rounds: PositiveInt = Field(default=2, ge=2)
    """Stages of RL, each of ``rl.max_iterations`` or ``rl.max_sampled_tokens``; before each but the first the tasks
    evolve. Our choice."""
    is_static: bool = False
    """The control at equal sampled tokens: every round has the first tasks."""
    trained: Literal["all", "newest"] = "all"
    """Tasks of a round: of all generations, or of the newest."""
    generation: GenerationSettings = GenerationSettings()
    """Making of the tasks; ``generation.num_tasks`` counts each generation."""
    num_injected_tasks: NonNegativeInt = 0
    """Training tasks in whose repaired code the policy plants bugs before each generation; 0: no injector. The same
    weights inject and repair; injections are sampled on top of ``rl.max_sampled_tokens``."""
    num_injections: PositiveInt = Field(default=8, ge=2)
    """Injections of each of these tasks; they are a group. Our choice."""
    injector_alpha: float = Field(default=0.8, gt=0.0, le=1.0)
    """Reward of an injection: 1 - (1 + alpha) s for a solve rate s between 0 and 1, -alpha at 0 and 1, -1 for no bug
    (SSR: 0.8)."""

    @model_validator(mode="after")
    def _something_evolves(self) -> Self:
        fields = type(self).model_fields
        names = ("generation", "trained", "num_injected_tasks")
        if self.is_static and (changed := [name for name in names if getattr(self, name) != fields[name].default]):
            raise ValueError(f"is_static=true leaves the tasks as they are, so leave out {', '.join(changed)}")
        if self.rl.max_staleness:
            raise ValueError("rl.max_staleness above 0 samples ahead of a round's end; leave it out")
        if self.num_injected_tasks and self.rollout.agent.type != "pipeline":
            raise ValueError("injections are episodes of a pipeline; set rollout.agent.type='pipeline'")
        if self.num_injected_tasks and self.rl.algorithm.advantage.type in TOKEN_ADVANTAGES:
            raise ValueError(
                f"rl.algorithm.advantage.type={self.rl.algorithm.advantage.type!r} looks into an episode for its "
                "signal, which an injection does not have; expected one that compares a group, such as 'group'"
            )
        return self

    def evolution(self, number: int, catalogue: str, locks: str) -> EvolutionConfig:
        """Return the settings of generation ``number``, with the catalogue and locks of the first tasks."""
        own = {name: getattr(self.generation, name) for name in GenerationSettings.model_fields}
        places = {"catalogue": own["catalogue"] or catalogue, "locks": own["locks"] or locks}
        chosen = TaskSelection(splits=("train",), sources=("mutations",))
        return EvolutionConfig(**{**own, **places}, select=chosen, rollout=self.rollout, seed=self.seed + number)
