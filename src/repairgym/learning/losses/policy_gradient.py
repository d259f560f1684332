"""Policy-gradient losses: DAPO, GRPO, Dr. GRPO, PPO, GSPO and CISPO, and the KL term that any of them can have.

Every loss is -(1/Z) * sum over learned tokens of w * f, where f is the gain of a token:

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
`learning/denominators.py`: DAPO divides by the number of action tokens, GRPO and GSPO take 1 / L_i of each trajectory
and the number of trajectories, Dr. GRPO a constant budget. Dual clip (arXiv 1912.09729, equation 5) is an option of
dapo, grpo, dr_grpo and ppo: f is at least dual_clip * A where A < 0.
"""

from typing import Literal

import torch

from repairgym.config.algorithms import (
    CispoLossConfig,
    DapoLossConfig,
    DrGrpoLossConfig,
    GrpoLossConfig,
    GspoLossConfig,
    KlConfig,
    PpoLossConfig,
)
from repairgym.learning.losses.base import Loss, LossOutput
from repairgym.learning.packing.forward import TokenScores

MAX_LOG_RATIO = 20.0
"""Beyond this exp() would overflow float32 gradients; the clipped side is flat there anyway for positive advantages."""


def dapo_loss(
    scores: TokenScores, normalizer: float, config: DapoLossConfig | GrpoLossConfig | DrGrpoLossConfig | PpoLossConfig
) -> LossOutput:
    """Compute the DAPO loss: clip-higher, token-level, no KL term.

    J = 1/Z * sum over tokens of w * min(rho * A, clip(rho, 1 - eps_low, 1 + eps_high) * A); the loss is -J. A larger
    upper bound leaves room for unlikely tokens with a positive advantage, which counters the collapse of entropy.

    Args:
        scores: [N] tokens with ``log_prob`` (gradient), ``old_log_prob``, ``advantage`` and ``weight``.
        normalizer: Z; with the denominator ``token`` the number of action tokens of the whole optimizer batch.
        config: Bounds.
    """
    ratio = log_ratio(scores).exp()
    gain = clipped_gain(ratio, scores.advantage, config.eps_low, config.eps_high, config.dual_clip)
    loss = -(gain * scores.weight).sum() / normalizer
    return LossOutput(loss, clip_metrics(ratio, scores, config.eps_low, config.eps_high))


grpo_loss = dapo_loss
"""GRPO: the equation of DAPO with denominator ``trajectory`` (or ``turn``, paper B). Tokens of a long trajectory weigh
less, so a long failure is punished less per token than a short one. The paper's KL term is the option ``kl``."""
dr_grpo_loss = dapo_loss
"""Dr. GRPO: the equation of DAPO with denominator ``constant``. A token weighs the same in every batch, so length is
neither rewarded nor punished. Its advantage is not divided by the deviation either."""


def clipped_gain(
    ratio: torch.Tensor, advantage: torch.Tensor, eps_low: float, eps_high: float, dual_clip: float | None = None
) -> torch.Tensor:
    """Compute min(rho * A, clip(rho, 1 - eps_low, 1 + eps_high) * A), at least dual_clip * A where A < 0.

    Args:
        ratio: [N] pi / pi_old with gradient.
        advantage: [N].
        eps_low: The lower bound is 1 - eps_low.
        eps_high: The upper bound is 1 + eps_high.
        dual_clip: None: a ratio that is far too large counts in full where A < 0.

    Returns:
        [N] to be maximized.
    """
    gain = torch.minimum(ratio * advantage, ratio.clamp(1.0 - eps_low, 1.0 + eps_high) * advantage)
    if dual_clip is None:
        return gain
    return torch.where(advantage < 0, torch.maximum(gain, dual_clip * advantage), gain)


def ppo_loss(scores: TokenScores, normalizer: float, config: PpoLossConfig) -> LossOutput:
    """Compute PPO's loss: the clipped gain of the policy plus the clipped error of a value head.

    loss = -1/Z sum of w * min(rho A, clip(rho) A) + value_coefficient / Z * sum of w * 1/2 max((V - T)^2, (V_c - T)^2),
    T the target, V_c = V_old + clip(V - V_old, -value_clip, value_clip) (arXiv 2005.12729, section 2). Advantages and
    targets come from `advantages.token_advantages`. Adds the metrics ``value/squared_error`` (before clipping) and
    ``value/clip_frac``.

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
    gain = clipped_gain(ratio, scores.advantage, config.eps_low, config.eps_high)
    loss = -(gain * scores.weight).sum() / normalizer
    return LossOutput(loss, clip_metrics(ratio, scores, config.eps_low, config.eps_high))


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
    sums = {
        "policy/ratio_mean": ratio.sum(),
        "policy/clip_high_frac": (ratio > config.max_ratio).float().sum(),
        "policy/clip_low_frac": (ratio < config.min_ratio).float().sum(),
    }
    return LossOutput(loss, sums | policy_metrics(scores))


def with_kl(loss: Loss, config: KlConfig) -> Loss:
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

    Args:
        gap: [N] d = log pi - log pi_reference of sampled tokens.
        estimator: k1 = d is unbiased; k2 = d^2 / 2 has the unbiased gradient; k3 = exp(-d) - 1 + d is unbiased and
            never negative (GRPO, arXiv 2402.03300, equation 4).
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


def clip_metrics(ratio: torch.Tensor, scores: TokenScores, eps_low: float, eps_high: float) -> dict[str, torch.Tensor]:
    """Sums of ``policy/ratio_mean``, ``policy/clip_high_frac``, ``policy/clip_low_frac`` and the policy metrics.

    High: the ratio is above its bound and the advantage positive, so there is no gradient; low: below and negative.
    """
    is_high = (ratio > 1.0 + eps_high) & (scores.advantage > 0)
    is_low = (ratio < 1.0 - eps_low) & (scores.advantage < 0)
    sums = {
        "policy/ratio_mean": ratio.detach().sum(),
        "policy/clip_high_frac": is_high.float().sum(),
        "policy/clip_low_frac": is_low.float().sum(),
    }
    return sums | policy_metrics(scores)


def policy_metrics(scores: TokenScores) -> dict[str, torch.Tensor]:
    """Sums that every policy loss reports: entropy and the gap to the sampler's log-probabilities."""
    gap = (scores.log_prob.detach() - scores.old_log_prob).abs()
    return {"policy/entropy": scores.entropy.sum(), "policy/log_prob_gap": gap.sum()}
