"""What is learned, in verl's words: sizes, loss, advantage, the terms beside them, the optimiser.

Reads and takes values of `RlConfig`; adds settings and refusals. "Rows" are verl's sequences: an episode whose history
forked is several. Imports no verl.
"""

from __future__ import annotations

from repairgym.bridges.verl.settings import Settings

UNBOUNDED_DUAL_CLIP = 1e9
"""verl always clips ratio * |A| where A < 0; this bound is never met."""
WEIGHTED_GROUP = "repairgym_group"
"""The estimator that `credit` adds to verl's."""
_DELTA = 1e-6
"""What verl's GRPO adds to the deviation; it cannot be set."""
_BY_GROUP = ("group", "dr_grpo")
"""Estimators whose sign follows from the group's rewards alone, as our sampler sees them."""
_ACTOR = "actor_rollout_ref.actor"


def translate(to: Settings) -> None:
    """Add everything of this module."""
    _sizes(to)
    _loss(to)
    _advantage(to)
    _kl(to)
    _correction(to)
    _optimizer(to)


def _sizes(to: Settings) -> None:
    to.ours("data.train_batch_size", "rl.num_groups_sampled")
    to.ours("trainer.v1.sampler.sampler_kwargs.num_groups", "rl.num_groups")
    to.ours("trainer.v1.sampler.sampler_kwargs.max_refills", "rl.max_refills")
    to.ours("actor_rollout_ref.rollout.n", "rl.algorithm.group_size")
    _batch_size(to)
    to.ours(f"{_ACTOR}.ppo_epochs", "rl.algorithm.num_epochs")
    to.ours(f"{_ACTOR}.data_loader_seed", "rl.algorithm.seed")
    to.ours("trainer.total_training_steps", "rl.max_iterations")
    num_tasks = to.leaves.peek("rl.num_validation_tasks")
    to.ours("trainer.test_freq", "rl.validation_every", None if num_tasks else -1)
    to.ours("data.val_max_samples", "rl.num_validation_tasks", num_tasks or 1)


def _batch_size(to: Settings) -> None:
    name, key = "rl.algorithm.batch_size", f"{_ACTOR}.ppo_mini_batch_size"
    batch_size, group_size = to.leaves.peek(name), to.leaves.peek("rl.algorithm.group_size")
    num_groups = max(1, round(batch_size / group_size))
    if num_groups * group_size == batch_size:
        to.ours(key, name, num_groups)
    elif to.machine.batch_rounding == "nearest":
        to.leaves.take(name)
        to.fixed(
            key,
            num_groups,
            f"{name} / rl.algorithm.group_size = {batch_size} / {group_size}, in whole groups (batch_rounding)",
        )
    else:
        to.refuse(
            name,
            f"verl counts in whole groups of {group_size}; set {num_groups * group_size}, or "
            "verl.batch_rounding='nearest'",
        )


def _loss(to: Settings) -> None:
    prefix, leaves = "rl.algorithm.loss", to.leaves
    kind = leaves.peek(f"{prefix}.type")
    if kind == "ppo":
        to.refuse(f"{prefix}.type", "our value head shares the model, verl's critic is another model")
        leaves.take_section(prefix)
        return
    modes = {"dapo": "vanilla", "grpo": "vanilla", "dr_grpo": "vanilla", "gspo": "gspo", "cispo": "cispo"}
    to.ours(f"{_ACTOR}.policy_loss.loss_mode", f"{prefix}.type", modes[kind])
    if kind == "cispo":
        to.ours(f"{_ACTOR}.clip_ratio_low", f"{prefix}.min_ratio", 1.0 - leaves.peek(f"{prefix}.min_ratio"))
        to.ours(f"{_ACTOR}.clip_ratio_high", f"{prefix}.max_ratio", leaves.peek(f"{prefix}.max_ratio") - 1.0)
    else:
        to.ours(f"{_ACTOR}.clip_ratio_low", f"{prefix}.eps_low")
        to.ours(f"{_ACTOR}.clip_ratio_high", f"{prefix}.eps_high")
    if f"{prefix}.dual_clip" in leaves:
        bound = leaves.peek(f"{prefix}.dual_clip") or UNBOUNDED_DUAL_CLIP
        to.ours(f"{_ACTOR}.clip_ratio_c", f"{prefix}.dual_clip", bound)
    _denominator(to, f"{prefix}.denominator")


def _denominator(to: Settings, name: str) -> None:
    modes = {"token": "token-mean", "trajectory": "seq-mean-token-mean", "constant": "seq-mean-token-sum-norm"}
    denominator = to.leaves.peek(name)
    if denominator not in modes:
        to.refuse(name, "verl takes means over tokens or over rows")
        return
    to.ours(f"{_ACTOR}.loss_agg_mode", name, modes[denominator])
    if denominator == "constant":
        to.ours(f"{_ACTOR}.loss_scale_factor", "rl.algorithm.loss.max_action_tokens")
    if denominator != "token" and to.leaves.peek("rl.algorithm.overlong") == "baseline_only":
        to.refuse("rl.algorithm.overlong", f"verl counts rows without a learned token in {name}={denominator!r}")


def _advantage(to: Settings) -> None:
    prefix, leaves = "rl.algorithm.advantage", to.leaves
    kind = leaves.peek(f"{prefix}.type")
    baseline = leaves.peek(f"{prefix}.baseline") if kind == "reinforce_pp" else "none"
    names = {
        "group": "grpo",
        "dr_grpo": "grpo",
        "rloo": "rloo",
        "reinforce_pp": "reinforce_plus_plus" if baseline == "none" else "reinforce_plus_plus_baseline",
    }
    if kind not in names:
        to.refuse(f"{prefix}.type", "our value head shares the model, verl's critic is another model")
    elif baseline == "leave_one_out":
        to.refuse(f"{prefix}.baseline", "verl has the mean of the group, or none")
    else:
        name = (
            WEIGHTED_GROUP if kind in _BY_GROUP and leaves.peek("rl.algorithm.negative_weight") != 1.0 else names[kind]
        )
        to.ours("algorithm.adv_estimator", f"{prefix}.type", name)
        if kind in _BY_GROUP:
            to.fixed("algorithm.norm_adv_by_std_in_grpo", kind == "group", f"needed: {prefix}.type is {kind}")
            for credit in ("is_error_masked", "negative_weight"):
                to.ours(f"trainer.v1.sampler.sampler_kwargs.{credit}", f"rl.algorithm.{credit}")
        if f"{prefix}.delta" in leaves and leaves.peek(f"{prefix}.delta") != _DELTA:
            to.refuse(f"{prefix}.delta", f"verl's is {_DELTA}")
    leaves.take_section(prefix)


def _kl(to: Settings) -> None:
    prefix, leaves = "rl.algorithm.kl", to.leaves
    kind = leaves.peek(f"{prefix}.type")
    if kind == "k1":
        to.refuse(f"{prefix}.type", "verl takes k1 from the reward, ours from each token's advantage")
        leaves.take_section(prefix)
        return
    to.ours(f"{_ACTOR}.use_kl_loss", f"{prefix}.type", kind != "none")
    if kind != "none":
        to.ours(f"{_ACTOR}.kl_loss_type", f"{prefix}.type")
        to.ours(f"{_ACTOR}.kl_loss_coef", f"{prefix}.coefficient")


def _correction(to: Settings) -> None:
    prefix, theirs = "rl.algorithm.correction", "algorithm.rollout_correction"
    kind = to.leaves.peek(f"{prefix}.type")
    to.ours(f"{theirs}.bypass_mode", f"{prefix}.type", kind == "none")
    if kind == "none":
        return
    to.ours(f"{theirs}.rollout_is", f"{prefix}.level")
    if kind == "truncate":
        to.ours(f"{theirs}.rollout_is_threshold", f"{prefix}.max_ratio")
        return
    low, high = (to.leaves.take(f"{prefix}.{name}_ratio") for name in ("min", "max"))
    to.ours(f"{theirs}.rollout_is_threshold", f"{prefix}.max_ratio", f"{low}_{high}")


def _optimizer(to: Settings) -> None:
    prefix, theirs, leaves = "rl.algorithm.optimizer", f"{_ACTOR}.optim", to.leaves
    if leaves.take(f"{prefix}.type") != "adamw":
        to.refuse(f"{prefix}.type", "verl has no Muon")
    for name in ("muon_learning_rate", "muon_momentum"):
        leaves.take(f"{prefix}.{name}")  # read by Muon only, which is refused
    to.ours(f"{theirs}.lr", f"{prefix}.learning_rate")
    to.ours(f"{theirs}.betas", f"{prefix}.betas", list(leaves.peek(f"{prefix}.betas")))
    to.ours(f"{theirs}.override_optimizer_config.eps", f"{prefix}.eps")
    to.ours(f"{theirs}.weight_decay", f"{prefix}.weight_decay")
    to.ours(f"{theirs}.clip_grad", f"{prefix}.max_grad_norm")
    to.ours(f"{_ACTOR}.grad_clip", f"{prefix}.max_grad_norm")
    _schedule(to, prefix, theirs)


def _schedule(to: Settings, prefix: str, theirs: str) -> None:
    """Verl moves the rate once per iteration, however many optimiser steps that has."""
    leaves = to.leaves
    num_episodes = leaves.peek("rl.num_groups_sampled") * leaves.peek("rl.algorithm.group_size")
    is_one_step = leaves.peek("rl.algorithm.batch_size") >= num_episodes and leaves.peek("rl.algorithm.num_epochs") == 1
    if leaves.peek(f"{prefix}.num_warmup_steps") and not is_one_step:
        to.refuse(
            f"{prefix}.num_warmup_steps",
            f"verl counts iterations, and one of {num_episodes} episodes has several optimiser steps here",
        )
    else:
        to.ours(f"{theirs}.lr_warmup_steps", f"{prefix}.num_warmup_steps")
    if leaves.peek(f"{prefix}.schedule") == "linear":
        to.refuse(f"{prefix}.schedule", "verl has 'constant' and 'cosine'")
    else:
        to.ours(f"{theirs}.lr_scheduler_type", f"{prefix}.schedule")
    to.ours(f"{theirs}.min_lr_ratio", f"{prefix}.final_lr_ratio")
