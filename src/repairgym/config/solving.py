"""`repairgym solve`: the budget of a search, its strategy, and the choice among its candidates."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repairgym.config.models import EndpointConfig
from repairgym.config.pipeline import GradingConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.selection import TaskSelection
from repairgym.records import Record

DEFAULT_CHAINS = 4
"""Chains of a search without a budget: a stop at the first visible pass makes the later ones rare."""
MAX_CHAINS = 64
"""Chains of a search whose budget alone would allow more."""


class Budget(Record):
    """The most that the search for one repair may use; None: no bound.

    It is compared with the stored candidates between two waves, so the last wave may pass it by what it uses itself.
    """

    max_sampled_tokens: PositiveInt | None = None
    max_forward_tokens: PositiveInt | None = None
    """Tokens that the model computes where a cache keeps each history: prompts, observations and answers, once."""
    max_test_runs: PositiveInt | None = None
    """Runs that the policy asked for, and the final one of each candidate."""
    max_wall_s: PositiveFloat | None = None
    """Seconds in which candidates of this task were made and judged; those of one wave run at the same time."""
    max_cost_usd: PositiveFloat | None = None
    """By ``endpoint.prices``, without discounts for cached prompts."""

    @property
    def is_set(self) -> bool:
        """True where something is bounded."""
        return any(bound is not None for bound in self.model_dump().values())


class BestOfNConfig(Record):
    """Independent chains, one wave after the other, until one passes the visible tests or the budget is used."""

    type: Literal["best_of_n"] = "best_of_n"
    num_chains: NonNegativeInt = 0
    """Most chains; 0: 4 without a budget, else as many as it allows, up to 64."""
    wave: PositiveInt = 1
    """Chains that run at the same time. The search stops between waves."""
    is_stopped_at_pass: bool = True
    """Stop at the first wave in which a candidate passes visible tests that failed before. False: the whole budget is
    used, and regressions and agreement choose among the candidates that pass."""

    def sample(self, rollout: RolloutConfig) -> RolloutConfig:
        """Return the settings of each chain."""
        return rollout


class LongerConfig(Record):
    """One chain with more turns: the control of a search at equal cost."""

    type: Literal["longer"] = "longer"
    factor: PositiveInt = 4
    """Factor of ``rollout.pipeline.max_turns``; the context (``max_len_tokens``) stays as it is set."""
    num_chains: Literal[1] = 1
    wave: Literal[1] = 1
    is_stopped_at_pass: Literal[True] = True

    def sample(self, rollout: RolloutConfig) -> RolloutConfig:
        """Return the settings of the chain."""
        pipeline = rollout.pipeline.model_copy(update={"max_turns": rollout.pipeline.max_turns * self.factor})
        return RolloutConfig.model_validate(rollout.model_dump() | {"pipeline": pipeline.model_dump()})


StrategyConfig = Annotated[BestOfNConfig | LongerConfig, Field(discriminator="type")]


class SolveCommandConfig(Record):
    """`repairgym solve`."""

    select: TaskSelection = TaskSelection(splits=("test",), is_specified_only=True)
    """Tasks of a folder; ``--task`` replaces it."""
    budget: Budget = Budget()
    """Of each task. Without any bound the strategy's number of chains is the budget."""
    strategy: StrategyConfig = BestOfNConfig()
    is_abstaining: bool = True
    """Return no patch where none passes the visible tests. False: the best of the failing ones, labelled so."""
    seed: int = 0
    rollout: RolloutConfig = RolloutConfig(grading=GradingConfig(is_replayed=False))
    """Sandbox, pipeline and limits of each chain; its grading judges candidates by visible tests."""
    endpoint: EndpointConfig = EndpointConfig()
    """The server of the policies ``openai`` and ``vllm``."""

    @model_validator(mode="after")
    def _knows_no_answer(self) -> Self:
        if self.rollout.grading.is_replayed:
            raise ValueError(
                "rollout.grading.is_replayed=true: the replay judge compares with the known repair, which a search "
                "must not see; leave it off, and use --grade for a verdict on the chosen patch"
            )
        if self.budget.max_cost_usd is not None and self.endpoint.model not in self.endpoint.prices:
            raise ValueError(
                f"budget.max_cost_usd is set, but endpoint.prices has no {self.endpoint.model!r}; add its price"
            )
        return self

    def without_differential(self) -> Self:
        """Return the settings for a task without a known repair, which a differential run would take back."""
        grading = self.rollout.grading.model_copy(update={"is_differential": False})
        return self.model_copy(update={"rollout": self.rollout.model_copy(update={"grading": grading})})

    @property
    def max_chains(self) -> int:
        """Most candidates of one task."""
        return self.strategy.num_chains or (MAX_CHAINS if self.budget.is_set else DEFAULT_CHAINS)
