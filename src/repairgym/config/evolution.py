"""A generation of tasks that evolves from the last one (`repairgym tasks evolve`)."""

from typing import Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repairgym.config.commands import EpisodesConfig
from repairgym.config.models import EndpointConfig
from repairgym.config.selection import TaskSelection
from repairgym.config.tasks import MutationConfig, TasksConfig
from repairgym.errors import ConfigError
from repairgym.records import Record


class PlanConfig(Record):
    """How fast the plan follows what tasks taught."""

    rate: PositiveFloat = 2.0
    """Exponent of the multiplicative update: a cell whose tasks are more learnable than all by 0.5 gets e times its
    weight, before shrinkage."""
    shrinkage: PositiveFloat = 4.0
    """Number of tasks at which a mean counts half."""
    floor: float = Field(0.1, gt=0, le=1)
    """Least weight of a cell, against 1 for one without evidence; its reciprocal is the largest."""
    max_edits: int = Field(3, ge=1, le=3)
    """Most edits of a planned bug."""


class EvolutionConfig(EpisodesConfig):
    """`repairgym tasks evolve`."""

    select: TaskSelection = TaskSelection(splits=("train",), sources=("mutations",))
    """Tasks of the last generation; new tasks keep the split of their package."""
    num_samples: PositiveInt = 4
    """Episodes per task that ``--policy`` runs."""
    num_tasks: PositiveInt = 100
    """Most new tasks: those from failed repairs and from proposals count, the plan makes the rest."""
    num_tries: PositiveInt = 6
    """Mutants tried per wanted task, at most."""
    num_failed_repairs: NonNegativeInt = 0
    """Most new tasks from failed repairs per package; 0: all."""
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

    def as_build(self, catalogue: str, locks: str) -> TasksConfig:
        """Return the settings of the sources."""
        names = ("mutations", "num_certificate_runs", "test_timeout_s", "run_timeout_s", "seed", "num_concurrent")
        own = {name: getattr(self, name) for name in names}
        rollout = {"sandbox": self.rollout.sandbox, "layers": self.rollout.layers}
        return TasksConfig(sources=("mutations",), catalogue=catalogue, locks=locks, **own, **rollout)
