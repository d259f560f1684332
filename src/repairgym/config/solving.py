"""`repairgym solve`: the budget of a search, its strategy, and the choice among its candidates."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repairgym.config.models import EndpointConfig
from repairgym.config.pipeline import GradingConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.selection import TaskSelection
from repairgym.records import Record

DEFAULT_CHAINS = 4
"""Chains of a search without a budget: a stop at the first visible pass makes the later ones rare."""
MAX_CHAINS = 64
"""Chains of a search whose budget alone would allow more."""
DEFAULT_NODES = 64
MAX_NODES = 1024
"""The same of searches by steps."""


class Budget(Record):
    """The most that the search for one repair may use; None: no bound.

    Episodes stop between two turns when their part of it is used, so each one passes a bound by one action at most.
    Episodes that run at the same time get equal parts. An external agent is not stopped: only a next one is not begun.
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


class _Strategy(Record):
    """Settings of every strategy."""

    is_stopped_at_pass: bool = True
    """Stop at the first wave in which a candidate passes visible tests that failed before. False: the whole budget is
    used, and the choice is among all candidates that pass."""

    @property
    def is_branching(self) -> bool:
        """True where candidates begin with turns of others."""
        return True

    def sample(self, rollout: RolloutConfig) -> RolloutConfig:
        """Return the settings of each chain."""
        return rollout


class _ChainStrategy(_Strategy):
    num_chains: NonNegativeInt = 0
    """Most chains and branches; 0: 4 without a budget, else as many as it allows, up to 64."""

    def max_candidates(self, *, is_bounded: bool) -> int:
        """Return the most candidates of one task, where a budget bounds the search or not."""
        return self.num_chains or (MAX_CHAINS if is_bounded else DEFAULT_CHAINS)


class _StepStrategy(_Strategy):
    num_nodes: NonNegativeInt = 0
    """Most nodes, each some turns behind another one; 0: 64 without a budget, else as many as it allows, up to 1024."""

    def max_candidates(self, *, is_bounded: bool) -> int:
        """Return the most candidates of one task, where a budget bounds the search or not."""
        return self.num_nodes or (MAX_NODES if is_bounded else DEFAULT_NODES)


class BestOfNConfig(_ChainStrategy):
    """Independent chains, one wave after the other, until one passes the visible tests or the budget is used."""

    type: Literal["best_of_n"] = "best_of_n"
    wave: PositiveInt = 1
    """Chains that run at the same time. The search stops between waves."""

    @property
    def is_branching(self) -> bool:
        """Chains begin at the task's start."""
        return False


class LongerConfig(_ChainStrategy):
    """One chain with more turns: the control of a search at equal cost."""

    type: Literal["longer"] = "longer"
    factor: PositiveInt = 4
    """Factor of ``rollout.pipeline.max_turns``; the context (``max_len_tokens``) stays as it is set."""
    num_chains: Literal[1] = 1
    wave: Literal[1] = 1
    is_stopped_at_pass: Literal[True] = True

    @property
    def is_branching(self) -> bool:
        """There is one chain."""
        return False

    def sample(self, rollout: RolloutConfig) -> RolloutConfig:
        """Return the settings of the chain."""
        pipeline = rollout.pipeline.model_copy(update={"max_turns": rollout.pipeline.max_turns * self.factor})
        return RolloutConfig.model_validate(rollout.model_dump() | {"pipeline": pipeline.model_dump()})


class ReplayConfig(_ChainStrategy):
    """Chains, and branches that begin within failed ones and keep their history (SWE-Replay, arXiv 2601.22129)."""

    type: Literal["replay"] = "replay"
    branch_share: float = Field(0.5, ge=0, le=1)
    """Chance that the next candidate is a branch, once a chain has failed (the paper: 0.5). It begins at a random state
    at which no branch has begun; chains with regressions are left out, as in the paper."""


class LookaheadConfig(_StepStrategy):
    """Several next actions are sampled and executed in forks, and the best state is continued (arXiv 2505.13652).

    The paper ranks actions by a critic, because its environments cannot fork; here visible tests run in each state.
    """

    type: Literal["lookahead"] = "lookahead"
    num_children: PositiveInt = 4
    """Actions sampled in each state."""
    width: Literal[1] = 1
    num_turns: Literal[1] = 1


class BeamConfig(_StepStrategy):
    """The best states of each depth are continued."""

    type: Literal["beam"] = "beam"
    width: PositiveInt = 2
    """States that are continued."""
    num_children: PositiveInt = 2
    """Continuations of each."""
    num_turns: PositiveInt = 4
    """Turns of a continuation."""


class BestFirstConfig(_StepStrategy):
    """The best state of all is continued; a state that was reached before is not kept a second time."""

    type: Literal["best_first"] = "best_first"
    num_children: PositiveInt = 2
    """Continuations that are sampled at the same time."""
    num_turns: PositiveInt = 1
    """Turns of a continuation."""
    max_expansions: PositiveInt = 3
    """Times that one state is continued."""


class MctsConfig(_ChainStrategy):
    """Monte Carlo tree search: branches run to their end, and their values choose the next branch point by UCT.

    Constants of RepoSearch-R1's code (arXiv 2510.26287): exploration 2.0, times 0.1 each 40 simulations, depth 10.
    """

    type: Literal["mcts"] = "mcts"
    num_children: PositiveInt = 2
    """Actions sampled in a state before its children are compared."""
    max_depth: PositiveInt = 10
    """Turns behind which no branch begins."""
    exploration: NonNegativeFloat = 2.0
    decay: float = Field(0.1, gt=0, le=1)


StrategyConfig = Annotated[
    BestOfNConfig | LongerConfig | ReplayConfig | LookaheadConfig | BeamConfig | BestFirstConfig | MctsConfig,
    Field(discriminator="type"),
]


class ChoiceConfig(Record):
    """The choice among candidates that pass the visible tests, behind the number of their regressions."""

    by: Literal["agreement", "log_prob", "scorer"] = "agreement"
    """``agreement``: most equal patches; ``log_prob``: the mean log-probability of the sampled tokens; ``scorer``: the
    chance that `repairgym eval scorer` has fitted. Level candidates: agreement, then the earlier one."""
    scorer: str = ""
    """File of the fitted scorer."""
    min_confidence: float = Field(0.0, ge=0, le=1)
    """Abstain where the scorer gives the chosen patch less."""

    @model_validator(mode="after")
    def _has_scorer(self) -> Self:
        is_needed = self.by == "scorer" or self.min_confidence > 0
        if is_needed != bool(self.scorer):
            raise ValueError(
                f"choice.by={self.by!r}, choice.min_confidence={self.min_confidence:g}, choice.scorer={self.scorer!r}: "
                "a scorer's file is needed for by='scorer' or min_confidence above 0, and only there"
            )
        return self


class SolveCommandConfig(Record):
    """`repairgym solve`."""

    select: TaskSelection = TaskSelection(splits=("test",), is_specified_only=True)
    """Tasks of a folder; ``--task`` replaces it."""
    budget: Budget = Budget()
    """Of each task. Without any bound the strategy's number of candidates is the budget."""
    strategy: StrategyConfig = BestOfNConfig()
    choice: ChoiceConfig = ChoiceConfig()
    is_abstaining: bool = True
    """Return no patch where none passes the visible tests. False: the best of the failing ones, labelled so."""
    seed: int = 0
    rollout: RolloutConfig = RolloutConfig(grading=GradingConfig(is_replayed=False, stops_at_failure=False))
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
        agent = self.rollout.agent.type
        if self.strategy.is_branching and agent != "pipeline":
            raise ValueError(
                f"strategy.type={self.strategy.type!r} with rollout.agent.type={agent!r}: the state of an external "
                "agent's program is not recorded, so its episodes cannot branch; use best_of_n or longer"
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
    def max_candidates(self) -> int:
        """Most candidates of one task."""
        return self.strategy.max_candidates(is_bounded=self.budget.is_set)
