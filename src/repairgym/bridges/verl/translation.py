"""Our RL configuration as settings of verl's. Imports no verl.

Guarantees: each of our values is translated (`setting_table`), carried out by our own code inside the episodes, or
rejected by name when it is not neutral, also one that is added to our configuration later; none is silently ignored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from repairgym.bridges.verl.setting_table import (
    BY_GROUP,
    DENOMINATORS,
    FIXED,
    TABLE,
    FlatConfig,
    is_whole_groups,
    num_groups_per_batch,
)
from repairgym.config.algorithms import TURN_ADVANTAGES
from repairgym.config.cluster import VerlConfig
from repairgym.config.models import EngineConfig
from repairgym.config.recipes import RlConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError

_NO_CRITIC = "our value head shares the model, verl's critic is another model"
_DELTA = 1e-6
"""verl's GRPO adds it to the deviation; it cannot be set."""
_CARRIED_OUT = (
    "rl.algorithm.preset",  # `loss` and `advantage` follow from it
    "rollout.pipeline",
    "rollout.grading",
    "rollout.sandbox",
    "rollout.layers",
    "rollout.max_in_flight",
    "rollout.max_sandboxes",
    "rollout.max_attempts",
    "rollout.max_failures_in_row",
    "rollout.backoff_s",
    "rollout.engine.max_len_tokens",  # of the embedded engine; with vLLM `check_contexts` says that it has no effect
    "rl.reward",
    "rl.select",
    "rl.validation",
    "rl.algorithm.overlong",
    "rl.algorithm.batch_size",
    "rl.algorithm.advantage",
    "rl.algorithm.correction.min_ratio",
    "rl.algorithm.optimizer.type",
    "rl.algorithm.optimizer.muon_learning_rate",
    "rl.algorithm.optimizer.muon_momentum",
    "rl.algorithm.trained.type",
    "verl",
    "seed",
)
"""Our own code carries these out where episodes run, or other rows and rules read them."""

_NEUTRAL: dict[str, tuple[Any, str]] = {
    "rl.sampler.type": ("embedded", "verl starts its own servers, and verl.engine says which"),
    "rl.max_staleness": (0, "under verl an iteration is sampled with the weights that it teaches"),
    "rl.max_sampled_tokens": (None, "verl stops after rl.max_iterations"),
    "rl.spread_share": (1.0, "verl learns from every group that is kept"),
    "rl.source_shares": ({}, "verl draws tasks uniformly"),
    "rl.curriculum": ("uniform", "verl draws tasks uniformly"),
    "rl.tree.type": ("none", "verl samples the members of a group independently"),
    "rl.exploration.type": ("none", "verl rewards each episode alone"),
    "rl.perturbation.type": ("none", "verl keeps the weights"),
    "rl.algorithm.token_budget": (None, "verl has no bound on learned tokens per optimizer step"),
    "rl.algorithm.is_error_masked": (False, "under verl with advantage.type 'group' or 'dr_grpo' only"),
    "rl.algorithm.negative_weight": (1.0, "under verl with advantage.type 'group' or 'dr_grpo' only"),
    "rl.algorithm.demonstration.type": ("none", "verl imitates nothing"),
    "rl.save_every": (1, "verl.save_every says it"),
    "rl.algorithm.compute.is_offloaded": (False, "verl.is_offloaded says it"),
    "rl.algorithm.compute.context_parallel": (1, "verl.sequence_parallel says it"),
    "rl.algorithm.compute.head_chunk_vocab": (65536, "verl cuts logits by positions only"),
    "rl.algorithm.compute.num_threads": (None, "verl's processes have the threads of their environment"),
    "rollout.agent.type": ("pipeline", "external agents learn under our own learner"),
    "rollout.drain_timeout_s": (60.0, "Ctrl-C ends verl's processes at once"),
} | {
    f"rollout.engine.{name}": (field.default, "it is the embedded engine's; verl.engine is 'vllm'")
    for name, field in EngineConfig.model_fields.items()
}
"""Keys without a counterpart: the only value that fits verl, and why."""
_ONE_LINE = (
    "rl.sampler",
    "rl.tree",
    "rl.exploration",
    "rl.perturbation",
    "rollout.agent",
    "rl.algorithm.demonstration",
    "rl.algorithm.loss",
    "rl.algorithm.kl",
)
"""Sections of which only ``type`` is named when it is rejected."""


@dataclass(frozen=True)
class Setting:
    """One value of verl's configuration."""

    key: str
    """Dotted, as in ``ppo_trainer.yaml``."""
    value: Any
    source: str
    """Our key if ``is_ours``, else the reason."""
    is_ours: bool = True


def translate(rl: RlConfig, rollout: RolloutConfig, machine: VerlConfig, seed: int) -> list[Setting]:
    """Return verl's settings for one stage of RL, without paths and names; `ConfigError` names values without any."""
    config = FlatConfig({"rl": rl, "rollout": rollout, "verl": machine, "seed": seed})
    rows = [row for row in TABLE if row.source in config and row.when(config)]
    for row in rows:
        config.take(row.source)
    if problems := _problems(config):
        raise ConfigError(f"verl has no counterpart of: {'; '.join(problems)}. `repairgym train rl` has them all")
    settings = [Setting(row.key, row.map(config[row.source], config), row.source) for row in rows]
    for fixed in FIXED:
        if fixed.when(config):
            value = fixed.value(config) if callable(fixed.value) else fixed.value
            reason = fixed.reason(config) if callable(fixed.reason) else fixed.reason
            settings.append(Setting(fixed.key, value, reason, is_ours=False))
    return settings


def _problems(config: FlatConfig) -> list[str]:
    """Return one line for each value that verl cannot carry out; takes everything else."""
    reasons = [(name, reason) for name, check in _CHECKS if name in config and (reason := check(config[name], config))]
    for name in (*_CARRIED_OUT, *(name for name, _ in reasons)):
        config.take(name)
    for section in _ONE_LINE:
        config.take(section, keep=f"{section}.type")
    for name in sorted(config.left):
        neutral, reason = _NEUTRAL.get(name, (object(), "no counterpart is known"))
        if config[name] != neutral:
            reasons.append((name, reason))
    return [f"{name}={config[name]!r} ({reason})" for name, reason in reasons + _forks(config)]


def _reject(value: Any, reason: str) -> Callable[[Any, FlatConfig], str]:
    return lambda given, _: reason if given == value else ""


def _check_denominator(value: str, config: FlatConfig) -> str:
    if value not in DENOMINATORS and config["rl.algorithm.loss.type"] != "ppo":
        return "verl takes means over tokens, over rows or, by our estimator, over groups"
    is_without_groups = value == "group" and config["rl.algorithm.advantage.type"] not in BY_GROUP
    return f"under verl with advantage.type {' or '.join(map(repr, BY_GROUP))} only" if is_without_groups else ""


def _check_overlong(value: str, config: FlatConfig) -> str:
    name = "rl.algorithm.loss.denominator"
    is_of_rows = config[name] in ("trajectory", "constant", "group") and config["rl.algorithm.loss.type"] != "ppo"
    is_rejected = is_of_rows and value == "baseline_only"
    return f"verl counts rows without a learned token in {name}={config[name]!r}" if is_rejected else ""


def _check_batch_size(_: int, config: FlatConfig) -> str:
    if is_whole_groups(config) or config["verl.batch_rounding"] == "nearest":
        return ""
    size = config["rl.algorithm.group_size"]
    rounded = num_groups_per_batch(config) * size
    return f"verl counts in whole groups of {size}; set {rounded}, or verl.batch_rounding='nearest'"


def _check_warmup(value: int, config: FlatConfig) -> str:
    """Reject warm-up over several optimizer steps per iteration: verl moves the rate once per iteration."""
    num_episodes = config["rl.num_groups_sampled"] * config["rl.algorithm.group_size"]
    is_one_step = config["rl.algorithm.batch_size"] >= num_episodes and config["rl.algorithm.num_epochs"] == 1
    if not value or is_one_step:
        return ""
    return f"verl counts iterations, and one of {num_episodes} episodes has several optimizer steps here"


def _check_micro_batch(value: int, config: FlatConfig) -> str:
    name = "rollout.pipeline.max_len_tokens"
    return f"verl packs whole sequences, of up to {name}={config[name]}" if value < config[name] else ""


def _check_engine(value: int, config: FlatConfig) -> str:
    name = "rollout.pipeline.max_len_tokens"
    is_rejected = config["verl.engine"] == "embedded" and value < config[name]
    return f"the embedded engine keeps no more, and episodes have {name}={config[name]}" if is_rejected else ""


def _check_trained(value: str, config: FlatConfig) -> str:
    is_rejected = value != "full" and config["verl.engine"] == "embedded"
    return "the embedded engine takes whole weights under verl" if is_rejected else ""


_CHECKS: tuple[tuple[str, Callable[[Any, FlatConfig], str]], ...] = (
    ("rl.algorithm.batch_size", _check_batch_size),
    ("rl.algorithm.loss.type", _reject("ppo", _NO_CRITIC)),
    ("rl.algorithm.loss.type", _reject("degrpo", "verl has no mean of its own for the first tokens of turns")),
    ("rl.algorithm.loss.denominator", _check_denominator),
    ("rl.algorithm.overlong", _check_overlong),
    ("rl.algorithm.advantage.type", _reject("gae", _NO_CRITIC)),
    *(
        ("rl.algorithm.advantage.type", _reject(type_, "verl has one advantage per episode"))
        for type_ in (*TURN_ADVANTAGES, "self_distillation")
    ),
    ("rl.algorithm.advantage.baseline", _reject("leave_one_out", "verl has the mean of the group, or none")),
    ("rl.algorithm.advantage.delta", lambda value, _: "" if value == _DELTA else f"verl's is {_DELTA}"),
    ("rl.algorithm.kl.type", _reject("k1", "verl takes k1 from the reward, ours from each token's advantage")),
    ("rl.algorithm.optimizer.type", _reject("muon", "verl has no Muon")),
    ("rl.algorithm.optimizer.num_warmup_steps", _check_warmup),
    ("rl.algorithm.optimizer.schedule", _reject("linear", "verl has 'constant' and 'cosine'")),
    ("rl.algorithm.compute.micro_batch_tokens", _check_micro_batch),
    ("rl.algorithm.trained.type", _check_trained),
    ("rollout.engine.max_len_tokens", _check_engine),
    ("rl.reward.type", _reject("drop_moment", "verl wants an episode's reward before it knows the rest of the group")),
    ("rl.reward.mode", _reject("raw_filtered", "verl wants an episode's reward before it knows the rest of the group")),
)
"""Our key, and the reason to reject its value; empty where there is none."""


def _forks(config: FlatConfig) -> list[tuple[str, str]]:
    """Reject histories that fork unless verl counts their rows as one episode: its GRPO with a mean over tokens."""
    names = {
        "rl.algorithm.advantage.type": config["rl.algorithm.advantage.type"] not in BY_GROUP,
        "rl.algorithm.negative_weight": config["rl.algorithm.negative_weight"] != 1.0,
        "rl.algorithm.loss.denominator": config["rl.algorithm.loss.denominator"] != "token",
    }
    counting = next((f"{name}={config[name]!r}" for name, is_counting in names.items() if is_counting), "")
    if not counting:
        return []
    forking = {
        "rollout.pipeline.context.type": config["rollout.pipeline.context.type"] != "full",
        "rollout.pipeline.thinking": config["rollout.pipeline.thinking"] == "dropped",
        "rollout.pipeline.type": config["rollout.pipeline.type"] == "full",
    }
    reason = f"an episode whose history forks would count several times with {counting}"
    return [(name, reason) for name, is_forking in forking.items() if is_forking]
