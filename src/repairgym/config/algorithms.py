"""Policy-gradient algorithms: advantages, losses, corrections and extra loss terms, as discriminated unions.

Each member of a union holds only the numbers that it uses; defaults are those of the named paper. "Paper B" is arXiv
2508.03501. Imports no torch.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from repairgym.records import Record

MeanDenominator = Literal["token", "group", "trajectory", "turn"]
"""Divisor that turns the sum over tokens into a mean; equations: `learning/denominators.py`."""
Denominator = MeanDenominator | Literal["constant", "mode"]
"""`MeanDenominator`, the constant of Dr. GRPO, which needs a budget, or DeGRPO's two means, which need a weight."""


def _check_bounds(config: Any) -> Any:
    low, high = config.min_ratio, config.max_ratio
    if not low < 1.0 < high:
        raise ValueError(
            f"min_ratio={low} and max_ratio={high} must lie below and above 1, the ratio of equal policies"
        )
    return config


# --- advantages ----------------------------------------------------------------------------------------------------


class GroupAdvantageConfig(Record):
    """(R - mean) / (std + delta) over the group (GRPO, arXiv 2402.03300, section 4.1.2; paper B, equation 2)."""

    type: Literal["group"] = "group"
    delta: PositiveFloat = 1e-6
    """Keeps the quotient finite; the papers give no value."""


class DrGrpoAdvantageConfig(Record):
    """R - mean, without the deviation (Dr. GRPO, arXiv 2503.20783)."""

    type: Literal["dr_grpo"] = "dr_grpo"


class RlooAdvantageConfig(Record):
    """R - mean of the others: the leave-one-out baseline (RLOO, arXiv 2402.14740)."""

    type: Literal["rloo"] = "rloo"


class ReinforcePpAdvantageConfig(Record):
    """(R - baseline), normalized over all tokens of the iteration (REINFORCE++, arXiv 2501.03262)."""

    type: Literal["reinforce_pp"] = "reinforce_pp"
    baseline: Literal["none", "group_mean", "leave_one_out"] = "none"
    """``group_mean`` is the paper's REINFORCE++-baseline; ``leave_one_out`` takes RLOO's baseline instead."""
    delta: PositiveFloat = 1e-6


class GaeAdvantageConfig(Record):
    """Generalized advantage estimation by a value head (arXiv 1506.02438), on two levels (RAGEN, arXiv 2504.20073).

    Within a turn the token-level discount and lambda apply; between turns the turn-level ones. Equal numbers on both
    levels give plain GAE over the action tokens.
    """

    type: Literal["gae"] = "gae"
    token_discount: float = Field(default=1.0, gt=0.0, le=1.0)
    """RAGEN: 1."""
    token_lambda: float = Field(default=1.0, ge=0.0, le=1.0)
    """RAGEN: 1."""
    turn_discount: float = Field(default=1.0, gt=0.0, le=1.0)
    """RAGEN's bi-level setting: 0.95; 1 leaves the return undiscounted, as in paper B (section 3.1)."""
    turn_lambda: float = Field(default=1.0, ge=0.0, le=1.0)
    is_normalized: bool = True
    """Mean 0 and deviation 1 over the tokens of the iteration."""


class StateValueAdvantageConfig(Record):
    """GAE between turns, whose values are counted over the states that the members of a group visit (no value head).

    After RTMC (arXiv 2604.11037), which counts state-action pairs; V(s) = (sum of R_j + k b) / (n + k) over the n
    members that visit s, with the group's mean b as a prior of weight k. Equal states are equal `Turn.state`.
    """

    type: Literal["state_value"] = "state_value"
    turn_lambda: float = Field(default=0.5, ge=0.0, le=1.0)
    """0: a turn's advantage is the change of the value. 1: the reward less the value of the turn's state. Our choice
    (ADR 058)."""
    prior_weight: PositiveFloat = 1.0
    """k. Our choice; RTMC has such a prior, and its number was not found."""
    is_own_counted: bool = False
    """Count a member's own reward in its values. False leaves it out, as RLOO (arXiv 2402.14740) does."""
    group_weight: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the advantage of the whole episode, R - b, in that of each turn; 1 is RLOO or Dr. GRPO."""


class TreeGrpoAdvantageConfig(Record):
    """GRPO's advantage over the group plus that over the tree of a chain (Tree-GRPO, arXiv 2509.21240).

    A turn has the mean over the leaves below it, and its tokens are learned once. The published code learns a turn once
    for each leaf below it (``leaf_power=1``), and takes the raw reward for the only leaf of a tree (here 0).
    """

    type: Literal["tree_grpo"] = "tree_grpo"
    delta: PositiveFloat = 1e-6
    """Keeps the quotients finite."""
    leaf_power: float = Field(default=0.0, ge=0.0, le=1.0)
    """Factor n^leaf_power for n leaves below. 0: a turn counts once. 1: the gradient is the sum over leaves, each with
    all of its turns."""


class TreeRlAdvantageConfig(Record):
    """(V(s) - V(root)) + (V(s) - V(parent)) of each segment between branchings (TreeRL, arXiv 2506.11902).

    V is the mean reward of the leaves below.
    """

    type: Literal["tree_rl"] = "tree_rl"
    global_weight: NonNegativeFloat = 1.0
    """Factor on V(s) - V(root). 0: a path's advantages sum to R - V(root) over its segments."""
    leaf_power: float = Field(default=0.5, ge=0.0, le=1.0)
    """Factor n^leaf_power for n leaves below. The paper learns a segment n times, each divided by sqrt(n)."""


class SelfDistillationAdvantageConfig(Record):
    """Advantages of tokens by the policy with feedback in its context (SDPO, arXiv 2601.20802); no other teacher.

    A_t = log pi(y_t | feedback, history) - log pi(y_t | history): minus the gradient of the divergence from the
    self-teacher. Feedback: a success of another member, or the failed attempt and its verdict. Groups of equal rewards
    teach, too.
    """

    type: Literal["self_distillation"] = "self_distillation"
    teacher: Literal["start", "current"] = "start"
    """Weights of the self-teacher. ``current``: those before the update, as in the paper's plain form; a policy that
    no longer reads feedback then teaches that, too. ``start``: those that the run began with, the limit of the paper's
    regularized teachers. Our choice after the bandit of `tests/learning/test_self_distillation.py`."""
    max_gain: PositiveFloat = 5.0
    """Bound on |A_t|, in nats. Our choice."""
    group_weight: NonNegativeFloat = 0.0
    """Factor on GRPO's advantage of the episode, which is added. The paper: 0."""
    delta: PositiveFloat = 1e-6


AdvantageConfig = Annotated[
    GroupAdvantageConfig
    | DrGrpoAdvantageConfig
    | RlooAdvantageConfig
    | ReinforcePpAdvantageConfig
    | GaeAdvantageConfig
    | StateValueAdvantageConfig
    | TreeGrpoAdvantageConfig
    | TreeRlAdvantageConfig
    | SelfDistillationAdvantageConfig,
    Field(discriminator="type"),
]
TURN_ADVANTAGES = ("state_value", "tree_grpo", "tree_rl")
"""Types that give each turn an advantage of its own."""
TOKEN_ADVANTAGES = ("gae", "self_distillation")
"""Types that give each token an advantage of its own, in the trainer."""

# --- losses --------------------------------------------------------------------------------------------------------


class _ClippedLossConfig(Record):
    """Bounds of the ratio pi / pi_old."""

    eps_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    eps_high: PositiveFloat = 0.2
    dual_clip: float | None = Field(default=None, gt=1.0)
    """Bound on ratio * |A| where A < 0 (dual clip, arXiv 1912.09729, equation 5: 3); None: unbounded."""


class DapoLossConfig(_ClippedLossConfig):
    """Clip-higher and a mean over action tokens (DAPO, arXiv 2503.14476, equation 8; paper B, equation 8)."""

    type: Literal["dapo"] = "dapo"
    eps_high: PositiveFloat = 0.3
    """Paper B, Table 3, stage 1; stage 2 uses 0.26, DAPO 0.28."""
    denominator: MeanDenominator = "token"
    """``token``: over the optimizer batch (common practice). ``group``: per problem (the equation as written)."""


class GrpoLossConfig(_ClippedLossConfig):
    """A mean over trajectories of means over their tokens (GRPO, arXiv 2402.03300, equation 3)."""

    type: Literal["grpo"] = "grpo"
    denominator: MeanDenominator = "trajectory"
    """``turn``: means of turns first (paper B, equation 7)."""


class DegrpoLossConfig(_ClippedLossConfig):
    """GRPO whose choice to think or not is a term of its own (DeGRPO: Thinkless, arXiv 2505.13379).

    A substitute for Step-SRPO (KAT-V1, arXiv 2507.08297), whose formula is not published. The choice is the first token
    of a turn, where the template opens the thought: in a mean over all tokens it would weigh less, the longer the
    thought after it.
    """

    type: Literal["degrpo"] = "degrpo"
    mode_weight: PositiveFloat = 1e-3
    """Of the mean over the first tokens of turns; the mean over the others has 1. Thinkless has one turn and
    alpha = 0.001 in its script."""
    denominator: Literal["mode"] = "mode"


class DrGrpoLossConfig(_ClippedLossConfig):
    """A sum over tokens divided by a constant: no length bias (Dr. GRPO, arXiv 2503.20783)."""

    type: Literal["dr_grpo"] = "dr_grpo"
    denominator: Literal["constant"] = "constant"
    max_action_tokens: PositiveInt = 1024
    """The constant, per trajectory: the action-token budget of an episode. Our choice; set it to your budget."""


class GspoLossConfig(Record):
    """One ratio per sequence, the geometric mean of its tokens' ratios (GSPO, arXiv 2507.18071, equations 5 to 7)."""

    type: Literal["gspo"] = "gspo"
    eps_low: float = Field(default=3e-4, gt=0.0, lt=1.0)
    """Section 5.1."""
    eps_high: PositiveFloat = 4e-4
    """Section 5.1."""
    denominator: Literal["trajectory"] = "trajectory"


class CispoLossConfig(Record):
    """Policy gradient with a clipped, detached ratio as weight (CISPO, MiniMax-M1, arXiv 2506.13585, eq. 4, 5)."""

    type: Literal["cispo"] = "cispo"
    min_ratio: NonNegativeFloat = 0.0
    """The paper sets no lower bound."""
    max_ratio: PositiveFloat = 5.0
    """1 + eps_high. The paper tunes it and gives no number; ScaleRL (arXiv 2510.13786) uses 5."""
    denominator: MeanDenominator = "token"

    _bounds_hold_one = model_validator(mode="after")(_check_bounds)


class PpoLossConfig(_ClippedLossConfig):
    """Clipped ratio and a value head with a clipped squared error (PPO, arXiv 1707.06347, equations 7 and 9)."""

    type: Literal["ppo"] = "ppo"
    value_clip: PositiveFloat = 0.2
    """A value moves at most this far from the one before the update (arXiv 2005.12729, section 2)."""
    value_coefficient: PositiveFloat = 0.5
    """c1 of equation 9; the paper uses 1 with shared parameters on Atari and none otherwise; 0.5 is common practice."""
    value_learning_rate: PositiveFloat = 1e-4
    """Learning rate of the value head, which starts at 0. Our choice."""
    denominator: MeanDenominator = "token"


LossConfig = Annotated[
    DapoLossConfig
    | GrpoLossConfig
    | DegrpoLossConfig
    | DrGrpoLossConfig
    | GspoLossConfig
    | CispoLossConfig
    | PpoLossConfig,
    Field(discriminator="type"),
]

Preset = Literal["dapo", "grpo", "dr_grpo", "rloo", "gspo", "cispo", "ppo", "reinforce_pp"]


class PresetParts(NamedTuple):
    """Loss and advantage of a named algorithm."""

    loss: LossConfig
    advantage: AdvantageConfig


PRESETS: Mapping[Preset, PresetParts] = {
    "dapo": PresetParts(DapoLossConfig(), GroupAdvantageConfig()),
    "grpo": PresetParts(GrpoLossConfig(), GroupAdvantageConfig()),
    "dr_grpo": PresetParts(DrGrpoLossConfig(), DrGrpoAdvantageConfig()),
    "rloo": PresetParts(DapoLossConfig(), RlooAdvantageConfig()),
    "gspo": PresetParts(GspoLossConfig(), GroupAdvantageConfig()),
    "cispo": PresetParts(CispoLossConfig(), GroupAdvantageConfig()),
    "ppo": PresetParts(PpoLossConfig(), GaeAdvantageConfig()),
    "reinforce_pp": PresetParts(DapoLossConfig(), ReinforcePpAdvantageConfig()),
}

# --- corrections and terms -----------------------------------------------------------------------------------------


class NoCorrectionConfig(Record):
    """No correction: sampler log-probabilities count as the learner's (paper B; embedded engine: gap of 1e-5)."""

    type: Literal["none"] = "none"


class TruncateCorrectionConfig(Record):
    """Truncated importance sampling: each token's loss times min(pi_learner / pi_sampler, max_ratio).

    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training". The loss's own ratio is
    then pi / pi_learner, both computed by the learner.
    """

    type: Literal["truncate"] = "truncate"
    level: Literal["token", "sequence"] = "token"
    """``sequence``: the product of a sequence's token ratios, applied to each token."""
    max_ratio: PositiveFloat = 2.0


class MaskCorrectionConfig(Record):
    """Masked importance sampling: like truncation, but tokens outside the bounds are not trained on.

    IcePop (Ring-1T, arXiv 2510.18855): bounds 0.5 and 5, token by token.
    """

    type: Literal["mask"] = "mask"
    level: Literal["token", "sequence"] = "token"
    min_ratio: PositiveFloat = 0.5
    max_ratio: PositiveFloat = 5.0

    _bounds_hold_one = model_validator(mode="after")(_check_bounds)


SamplerCorrectionConfig = Annotated[
    NoCorrectionConfig | TruncateCorrectionConfig | MaskCorrectionConfig, Field(discriminator="type")
]


class NoKlConfig(Record):
    """No term for the distance to a reference (paper B, equation 8; DAPO, section 2.3)."""

    type: Literal["none"] = "none"


class KlConfig(Record):
    """Distance to the policy that the run started from (estimators: Schulman 2020, "Approximating KL divergence").

    With d = log pi - log pi_reference: ``k1`` = d is subtracted from the advantage of the token (as a loss its gradient
    would be 0 in the mean); ``k2`` = d^2 / 2 and ``k3`` = exp(-d) - 1 + d are added to the loss.
    """

    type: Literal["k1", "k2", "k3"] = "k3"
    coefficient: PositiveFloat = 0.001
    """Ring-lite (arXiv 2506.14731) and verl's examples; the GRPO paper: 0.04."""


ReferenceKlConfig = Annotated[NoKlConfig | KlConfig, Field(discriminator="type")]


class NoDemonstrationConfig(Record):
    """No imitation: learn from rewards only."""

    type: Literal["none"] = "none"


class GatedDemonstrationConfig(Record):
    """Imitate a successful demonstration while the task's group has few successes (AHPO, arXiv 2510.08540)."""

    type: Literal["gated"] = "gated"
    coefficient: PositiveFloat = 0.1
    """Our choice."""
    min_successes: PositiveInt = 2
    """Groups with fewer imitate. The paper's threshold was not found; our choice."""


class DecayingDemonstrationConfig(Record):
    """Imitate demonstrators, less with each iteration (after ForgER, arXiv 2006.09939)."""

    type: Literal["decaying"] = "decaying"
    coefficient: PositiveFloat = 0.1
    """At the first iteration. Our choice."""
    final_coefficient: NonNegativeFloat = 0.0
    num_iterations: PositiveInt = 50
    """Iterations of the linear decay; ForgER: 50 episodes."""


DemonstrationConfig = Annotated[
    NoDemonstrationConfig | GatedDemonstrationConfig | DecayingDemonstrationConfig, Field(discriminator="type")
]

OverlongPolicy = Literal["penalize", "baseline_only", "drop"]
"""Treatment of episodes that end at a limit of turns, tokens or time. ``penalize``: train on them with their reward,
like others (paper B, section 5.2, finding 1: without these negatives loops become more frequent). ``baseline_only``:
their reward counts in the group's mean and deviation; their tokens are not trained on. ``drop``: ignore them."""


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
    """L_thr of paper B, Table 3: shorter episodes are not penalized. T_max is ``rollout.pipeline.max_turns``,
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


class DropMomentConfig(Record):
    """A success whose process loses most of its value at some turn is worth less (PS-GRPO of URSA, arXiv 2501.04686).

    There a process reward model values the steps; here the values are counted over the states that the other members
    of the group visit (`learning/state_values.py`).
    """

    type: Literal["drop_moment"] = "drop_moment"
    threshold: float = Field(default=0.3, ge=0.0, lt=1.0)
    """rho of URSA: the largest relative drop between two turns that is no drop moment."""
    discount: float = Field(default=0.5, gt=0.0, le=1.0)
    """gamma of URSA: a success with a drop moment is worth 1 - gamma."""
    prior_weight: PositiveFloat = 1.0
    """Visits that the mean of the others counts as in each value. Our choice."""


class AdaptThinkConfig(Record):
    """A bonus for the turns without a thought (AdaptThink, arXiv 2505.13417).

    A substitute for Step-SRPO (KAT-V1, arXiv 2507.08297), whose formula is not published. The bonus is below a success,
    so thoughts go where they do not change the verdict. Not built: the baseline of a frozen reference, for which the
    mean of the group stands, and first tokens that are forced to both modes, so the start model has to show both.
    """

    type: Literal["adapt_think"] = "adapt_think"
    bonus: float = Field(default=0.05, gt=0.0, lt=1.0)
    """delta, times the share of turns without a thought; 0.05 in AdaptThink's scripts."""


RewardConfig = Annotated[
    TerminalRewardConfig
    | StepPenaltyConfig
    | PartialCreditConfig
    | SuspiciousDiscountConfig
    | DropMomentConfig
    | AdaptThinkConfig,
    Field(discriminator="type"),
]


def check_turns(reward: RewardConfig, max_turns: int) -> None:
    """Raise a ValueError where the penalty would never begin in episodes of at most ``max_turns`` turns."""
    if isinstance(reward, StepPenaltyConfig) and reward.threshold_turns >= max_turns:
        raise ValueError(
            f"rl.reward.threshold_turns={reward.threshold_turns} is not below rollout.pipeline.max_turns={max_turns}, "
            "so no episode could be penalized; lower it or choose type='terminal'"
        )
