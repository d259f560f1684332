"""What an episode is worth to the learner: the verdict itself, or a shaping of it.

Read by `learning/rewards.py`; imports no torch. "Paper B" is arXiv 2508.03501. Invariants: the raw reward (1 when passed,
else 0) is what is stored and reported whatever is chosen here; no choice rewards an exploit or gives an invalid verdict
a number.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from repairgym.records import Record


class TerminalRewardConfig(Record):
    """1 when passed, else 0 (paper B, section 3.1; paper A's simplified pipeline)."""

    type: Literal["terminal"] = "terminal"


class StepPenaltyConfig(Record):
    """Paper B's penalty for long episodes (section 3.2, equations 3 and 4), between 0 and -1."""

    type: Literal["step_penalty"] = "step_penalty"
    mode: Literal["as_written", "successes_only", "raw_filtered"] = "as_written"
    """``as_written``: on every episode, so that a group without a success prefers the shortest failure.
    ``successes_only``: failures stay at 0. ``raw_filtered``: as written, but groups whose raw rewards are equal are
    dropped first."""
    threshold_turns: PositiveInt = 10
    """L_thr of paper B, Table 3: episodes below it are not penalised. T_max is ``rollout.pipeline.max_turns``,
    times ``max_attempts`` where a pipeline has an outer loop."""


class PartialCreditConfig(Record):
    """A failure that breaks nothing earns a share for the tests that it fixes (an idea of paper B, section 6)."""

    type: Literal["partial_credit"] = "partial_credit"
    weight: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Reward of a failure that fixes every ``fail_to_pass`` test but one, in the limit. Our choice: the paper has no
    number."""


class SuspiciousDiscountConfig(Record):
    """A success with a suspicious finding is worth less (after PS-GRPO of URSA, arXiv 2501.04686)."""

    type: Literal["suspicious_discount"] = "suspicious_discount"
    discount: float = Field(default=0.5, gt=0.0, le=1.0)
    """gamma of URSA: a success whose process is in doubt is worth 1 - gamma."""


RewardConfig = Annotated[
    TerminalRewardConfig | StepPenaltyConfig | PartialCreditConfig | SuspiciousDiscountConfig,
    Field(discriminator="type"),
]


def check_turns(reward: RewardConfig, max_turns: int) -> None:
    """Check that ``reward`` can be computed for episodes of at most ``max_turns`` turns.

    Raises:
        ValueError: the penalty would never begin.
    """
    if isinstance(reward, StepPenaltyConfig) and reward.threshold_turns >= max_turns:
        raise ValueError(
            f"rl.reward.threshold_turns={reward.threshold_turns} is not below rollout.pipeline.max_turns={max_turns}, "
            "so no episode could be penalised; lower it or choose type='terminal'"
        )
