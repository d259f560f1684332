"""MALT: a patcher, a reviewer and a refiner (arXiv 2412.01928). Imports no torch."""

from typing import Self

from pydantic import Field, PositiveInt, model_validator

from repairgym.config.learning import SftConfig, StepDpoConfig
from repairgym.config.pipeline import PipelineConfig, Role, check_undemonstrated
from repairgym.config.rollout import RolloutConfig
from repairgym.config.selection import TrainingSelection
from repairgym.records import Record


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
