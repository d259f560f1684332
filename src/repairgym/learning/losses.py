"""Losses: policy gradients, the KL term that any of them can have, demonstrations and preferences.

Reads `TokenScores`; makes a scalar and metric sums. Guarantees of every loss: it is pure and knows no model; the shares
of the micro-batches of an optimizer batch sum to the loss of the batch, because each share is divided by the normalizer
of the whole batch and each sequence is in one share. A policy loss is -(1/Z) * sum over learned tokens of w * f, where
f is the gain of a token:

=========  ====================================================  ===================================================
name       f                                                     source
=========  ====================================================  ===================================================
dapo       min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A)    arXiv 2503.14476, equation 8; paper B (arXiv
                                                                 2508.03501), equations 6 and 8
grpo       the same, eps_high = eps_low                          arXiv 2402.03300, equation 3; paper B, equation 7
dr_grpo    the same, eps_high = eps_low                          arXiv 2503.20783
ppo        the same, eps_high = eps_low, and a value loss        arXiv 1707.06347, equations 7 and 9
gspo       the same with the ratio s of the whole sequence       arXiv 2507.18071, equations 5 to 7
cispo      stop_gradient(clip(rho, min_ratio, max_ratio)) A      arXiv 2506.13585, equations 4 and 5
           * log pi
=========  ====================================================  ===================================================

rho = pi(token) / pi_old(token), A = advantage. The weight w of a token and the normalizer Z come from
`learning/denominators.py`: DAPO divides by the number of learned tokens, GRPO and GSPO take 1 / L_i of each trajectory
and the number of trajectories, Dr. GRPO a constant budget. Dual clip (arXiv 1912.09729, equation 5) is an option of
dapo, grpo, dr_grpo and ppo: f is at least dual_clip * A where A < 0.

To add a policy loss: a `PolicyLoss`, a member of `config.algorithms.LossConfig`, a line in `POLICY_LOSSES`. The
conformance suite `tests/learning/test_losses_conformance.py` then runs it (example: `docs/howto/algorithms.md`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from repairgym.config.algorithms import (
    CispoLossConfig,
    DapoLossConfig,
    DegrpoLossConfig,
    DrGrpoLossConfig,
    GrpoLossConfig,
    GspoLossConfig,
    KlConfig,
    LossConfig,
    PpoLossConfig,
    ReferenceKlConfig,
)
from repairgym.learning.packing.forward import TokenScores

MAX_LOG_RATIO = 20.0
"""Beyond this exp() would overflow float32 gradients; the clipped side is flat there anyway for positive advantages."""


@dataclass(frozen=True)
class LossOutput:
    """A share of the optimizer batch's loss."""

    loss: torch.Tensor
    """Scalar with gradient; shares of all micro-batches sum to the loss."""
    metric_sums: dict[str, torch.Tensor]
    """Name -> sum over the learned tokens; the trainer divides by their number."""


Loss = Callable[[TokenScores, float], LossOutput]
"""From scores and the denominator of the whole optimizer batch to their share of its loss."""
PolicyLoss = Callable[[TokenScores, float, Any], LossOutput]
"""A `Loss` whose settings, the member of `LossConfig` it is registered for, are its third argument."""


def dapo_loss(
    scores: TokenScores,
    normalizer: float,
    config: DapoLossConfig | GrpoLossConfig | DegrpoLossConfig | DrGrpoLossConfig | PpoLossConfig,
) -> LossOutput:
    """Compute the DAPO loss: clip-higher, token-level, no KL term.

    J = 1/Z * sum over tokens of w * f with f = min(rho * A, clip(rho, 1 - eps_low, 1 + eps_high) * A); with
    ``config.dual_clip`` f is max(f, dual_clip * A) where A < 0. The loss is -J. A larger upper bound leaves room for
    unlikely tokens with a positive advantage, which counters the collapse of entropy. Z, with the denominator
    ``token``, is the number of learned tokens of the optimizer batch. Defaults: `config.algorithms.DapoLossConfig`.
    """
    return _clipped_loss(scores, normalizer, log_ratio(scores).exp(), config, config.dual_clip)


grpo_loss = dapo_loss
"""GRPO: the equation of DAPO with denominator ``trajectory`` (or ``turn``, paper B). Tokens of a long trajectory weigh
less, so a long failure is punished less per token than a short one. The paper's KL term is the option ``kl``."""
degrpo_loss = dapo_loss
"""DeGRPO: the equation of GRPO with denominator ``mode``, a mean of its own over the first tokens of turns."""
dr_grpo_loss = dapo_loss
"""Dr. GRPO: the equation of DAPO with denominator ``constant``. A token weighs the same in every batch, so length is
neither rewarded nor punished. Its advantage is not divided by the deviation either."""


def _clipped_loss(
    scores: TokenScores,
    normalizer: float,
    ratio: torch.Tensor,
    config: DapoLossConfig | GrpoLossConfig | DegrpoLossConfig | DrGrpoLossConfig | PpoLossConfig | GspoLossConfig,
    dual_clip: float | None = None,
) -> LossOutput:
    """Compute DAPO's loss for [N] ratios; where A < 0, large ratios are bounded by ``dual_clip`` alone.

    ``policy/clip_high_frac`` counts ratios above their bound with a positive advantage, so that there is no gradient;
    ``policy/clip_low_frac`` those below with a negative one.
    """
    advantage, low, high = scores.advantage, 1.0 - config.eps_low, 1.0 + config.eps_high
    gain = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    if dual_clip is not None:
        gain = torch.where(advantage < 0, torch.maximum(gain, dual_clip * advantage), gain)
    sums = _ratio_metrics(ratio, (ratio > high) & (advantage > 0), (ratio < low) & (advantage < 0))
    return LossOutput(-(gain * scores.weight).sum() / normalizer, sums | policy_metrics(scores))


def ppo_loss(scores: TokenScores, normalizer: float, config: PpoLossConfig) -> LossOutput:
    """Compute PPO's loss: the clipped gain of the policy plus the clipped error of a value head.

    loss = -1/Z sum of w * min(rho A, clip(rho) A) + value_coefficient / Z * sum of w * 1/2 max((V - T)^2, (V_c - T)^2),
    T the target, V_c = V_old + clip(V - V_old, -value_clip, value_clip) (arXiv 2005.12729, section 2). Advantages and
    targets come from `advantages.token_advantages`. ``value/squared_error`` is the error before clipping.

    Raises:
        ValueError: the scores have no value, no value before the update or no target.
    """
    policy = dapo_loss(scores, normalizer, config)
    if scores.value is None or scores.old_value is None or scores.value_target is None:
        raise ValueError(
            "the loss 'ppo' needs value, old_value and value_target of each token; train with a value head"
        )
    error, is_clipped = clipped_value_error(scores.value, scores.old_value, scores.value_target, config.value_clip)
    value_loss = 0.5 * (error * scores.weight).sum() / normalizer
    sums = {
        "value/squared_error": (scores.value.detach() - scores.value_target).square().sum(),
        "value/clip_frac": is_clipped.float().sum(),
    }
    return LossOutput(policy.loss + config.value_coefficient * value_loss, policy.metric_sums | sums)


def clipped_value_error(
    value: torch.Tensor, old_value: torch.Tensor, target: torch.Tensor, value_clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """[N] max((V - T)^2, (V_c - T)^2) with gradient, and a mask of the clipped ones (no gradient there)."""
    clipped = old_value + (value - old_value).clamp(-value_clip, value_clip)
    error, clipped_error = (value - target).square(), (clipped - target).square()
    return torch.maximum(error, clipped_error), clipped_error > error


def gspo_loss(scores: TokenScores, normalizer: float, config: GspoLossConfig) -> LossOutput:
    """Compute the GSPO loss: DAPO's gain with one ratio per sequence, s_i = exp(1/L_i * sum of log(pi / pi_old)).

    A branch of a forked history has a ratio of its own. The advantage is one number per sequence.
    """
    ratio = _sequence_mean(log_ratio(scores), scores.row).exp()[scores.row]
    return _clipped_loss(scores, normalizer, ratio, config)


def _sequence_mean(values: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """[N] values and their sequences -> [sequences] means."""
    num_rows = int(row.max()) + 1
    total = values.new_zeros(num_rows).index_add(0, row, values)
    return total / torch.bincount(row, minlength=num_rows).clamp(min=1)


def cispo_loss(scores: TokenScores, normalizer: float, config: CispoLossConfig) -> LossOutput:
    """Compute the CISPO loss: REINFORCE whose importance weight is clipped, so that every token keeps a gradient.

    ``policy/clip_high_frac`` and ``policy/clip_low_frac`` count the weights bounded above and below.
    """
    ratio = log_ratio(scores).exp().detach()
    importance = ratio.clamp(config.min_ratio, config.max_ratio)
    loss = -(importance * scores.advantage * scores.log_prob * scores.weight).sum() / normalizer
    sums = _ratio_metrics(ratio, ratio > config.max_ratio, ratio < config.min_ratio)
    return LossOutput(loss, sums | policy_metrics(scores))


def _with_kl(loss: Loss, config: KlConfig) -> Loss:
    """Add coefficient / Z * sum of w * `kl_estimate` to ``loss``, with the weights and normalizer of the loss.

    ``k1`` changes advantages before the loss (`learning/preparation.py`); here it is only reported.
    """

    def penalized(scores: TokenScores, normalizer: float, /) -> LossOutput:
        output = loss(scores, normalizer)
        if scores.reference_log_prob is None:
            raise ValueError("a KL term needs reference_log_prob of each token; give the trainer a reference model")
        estimate = kl_estimate(scores.log_prob - scores.reference_log_prob, config.type)
        sums = output.metric_sums | {f"policy/kl_{config.type}": estimate.detach().sum()}
        if config.type == "k1":
            return LossOutput(output.loss, sums)
        return LossOutput(output.loss + config.coefficient * (estimate * scores.weight).sum() / normalizer, sums)

    return penalized


def kl_estimate(gap: torch.Tensor, estimator: Literal["k1", "k2", "k3"]) -> torch.Tensor:
    """Estimate the distance to a reference policy (Schulman 2020, "Approximating KL divergence").

    With ``gap`` d = log pi - log pi_reference of [N] sampled tokens: k1 = d is unbiased; k2 = d^2 / 2 has the unbiased
    gradient; k3 = exp(-d) - 1 + d is unbiased and never negative (GRPO, arXiv 2402.03300, equation 4).
    """
    match estimator:
        case "k1":
            return gap
        case "k2":
            return 0.5 * gap.square()
        case "k3":
            return torch.exp((-gap).clamp(max=MAX_LOG_RATIO)) - 1.0 + gap


def log_ratio(scores: TokenScores) -> torch.Tensor:
    """[N] log(pi / pi_old) with gradient, bounded so that its exponential is finite."""
    return (scores.log_prob - scores.old_log_prob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _ratio_metrics(ratio: torch.Tensor, is_high: torch.Tensor, is_low: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "policy/ratio_mean": ratio.detach().sum(),
        "policy/clip_high_frac": is_high.float().sum(),
        "policy/clip_low_frac": is_low.float().sum(),
    }


def policy_metrics(scores: TokenScores) -> dict[str, torch.Tensor]:
    """Sums that every policy loss reports: entropy and the gap to the sampler's log-probabilities."""
    gap = (scores.log_prob.detach() - scores.old_log_prob).abs()
    return {"policy/entropy": scores.entropy.sum(), "policy/log_prob_gap": gap.sum()}


POLICY_LOSSES: dict[str, PolicyLoss] = {
    "dapo": dapo_loss,
    "grpo": grpo_loss,
    "degrpo": degrpo_loss,
    "dr_grpo": dr_grpo_loss,
    "gspo": gspo_loss,
    "cispo": cispo_loss,
    "ppo": ppo_loss,
}


def policy_loss(config: LossConfig, kl: ReferenceKlConfig | None = None) -> Loss:
    """Return the loss that ``config`` names with its settings bound, plus the KL term if there is one."""
    function = POLICY_LOSSES[config.type]

    def bound(scores: TokenScores, normalizer: float, /) -> LossOutput:
        return function(scores, normalizer, config)

    return _with_kl(bound, kl) if isinstance(kl, KlConfig) else bound


# --- demonstrations and preferences --------------------------------------------------------------------------------


def sft_loss(scores: TokenScores, normalizer: float) -> LossOutput:
    """Compute token-weighted cross-entropy (paper A, SFT; paper B, section 4.2).

    ``normalizer`` is the sum of the weights over the whole optimizer batch. ``sft/nll`` is unweighted.
    """
    loss = -(scores.log_prob * scores.weight).sum() / normalizer
    return LossOutput(loss, {"sft/nll": -scores.log_prob.detach().sum(), "policy/entropy": scores.entropy.sum()})


def preference_loss(chosen: torch.Tensor, rejected: torch.Tensor, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute loss and derivative of each pair for step-level DPO (Agent Q, arXiv 2408.07199).

    loss = 1/P sum over pairs of -log sigmoid(beta * (d_chosen - d_rejected)), d = sum over the action's tokens of
    log pi - log pi_reference (DPO, arXiv 2305.18290, equation 7); the reference is the policy before the update (Agent
    Q, Algorithm 1). The two actions of a pair may lie in different micro-batches, so the loss takes two passes: first
    the margins (here), then tokens weighted with the derivative for their action (`linear_loss`). The gradient is
    exact, and the sum over micro-batches stays a sum.

    From [P] d of the better and of the worse actions to [P] losses and [P] derivatives by ``chosen``; those by
    ``rejected`` are the negative. ``beta`` is the strength of the tie to the reference.
    """
    margin = beta * (chosen - rejected)
    return -torch.nn.functional.logsigmoid(margin), -beta * torch.sigmoid(-margin)


def linear_loss(scores: TokenScores, normalizer: float) -> LossOutput:
    """Compute -(sum of weight * advantage * log pi) / normalizer, for a loss whose outer derivative is known.

    With minus the derivative of a pair's loss as advantage, the gradient is that of the pair's loss; the value means
    nothing.
    """
    loss = -(scores.advantage * scores.log_prob * scores.weight).sum() / normalizer
    return LossOutput(loss, {"policy/entropy": scores.entropy.sum()})
