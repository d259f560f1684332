"""What verl cannot do of what we can configure, beside what has no word in it: refused by name.

Reads the values that the translation has left; makes one line per problem. Invariant: a value that nobody takes and
that is not the neutral one is a problem, also one that was added to our configuration after this was written.
"""

from __future__ import annotations

from typing import Any

from repairgym.bridges.verl.flat_config import FlatConfig

_IN_EPISODES = (
    "rollout.pipeline",
    "rollout.grading",
    "rollout.sandbox",
    "rollout.layers",
    "rollout.max_in_flight",
    "rollout.max_sandboxes",
    "rollout.max_attempts",
    "rollout.max_failures_in_row",
    "rl.reward",
    "rl.algorithm.overlong",
    "rl.algorithm.preset",  # `loss` and `advantage` say it all
)
"""Sections that our own code carries out in the processes that run episodes."""

_NEUTRAL: dict[str, tuple[Any, str]] = {
    "rl.sampler.type": ("embedded", "verl starts its own servers, and verl.engine says which"),
    "rl.max_staleness": (0, "under verl an iteration is sampled with the weights that it teaches"),
    "rl.spread_share": (1.0, "verl learns from every group that is kept"),
    "rl.curriculum": ("uniform", "verl draws tasks uniformly"),
    "rl.algorithm.token_budget": (None, "verl has no bound on learned tokens per optimiser step"),
    "rl.algorithm.is_error_masked": (False, "under verl with advantage.type 'group' or 'dr_grpo' only"),
    "rl.algorithm.negative_weight": (1.0, "under verl with advantage.type 'group' or 'dr_grpo' only"),
    "rl.algorithm.demonstration.type": ("none", "verl imitates nothing"),
    "rl.algorithm.compute.context_parallel": (1, "verl.sequence_parallel says it"),
    "rl.algorithm.compute.head_chunk_vocab": (65536, "verl cuts logits by positions only"),
    "rl.algorithm.compute.num_threads": (None, "verl's processes have the threads of their environment"),
    "rollout.drain_timeout_s": (60.0, "Ctrl-C ends verl's processes at once"),
}
"""What verl cannot do: the value that asks for nothing, and why."""
_ONE_LINE = ("rl.sampler", "rl.algorithm.demonstration")
"""Sections whose ``type`` is refused for all of them."""


def problems_of(leaves: FlatConfig) -> list[str]:
    """What verl cannot do of the values that are left, once what our own code carries out is taken, too."""
    for section in _IN_EPISODES:
        leaves.take_section(section)
    return _unmatched(leaves) + _forks(leaves) + _group_rewards(leaves)


def _unmatched(leaves: FlatConfig) -> list[str]:
    """What nobody has taken and is not neutral."""
    for section in _ONE_LINE:
        leaves.take_section(section, keep=f"{section}.type")
    found = []
    for name in sorted(leaves.left):
        neutral, why = _NEUTRAL.get(name, (object(), "no counterpart is known"))
        if leaves.peek(name) != neutral:
            found.append(f"{name}={leaves.peek(name)!r} ({why})")
    return found


def _group_rewards(leaves: FlatConfig) -> list[str]:
    """Rewards that depend on the other members of a group, which run in other processes."""
    name = "rl.reward.mode"
    if name not in leaves or leaves.peek(name) != "raw_filtered":
        return []
    return [f"{name}='raw_filtered' (verl wants an episode's reward before it knows the rest of the group)"]


def _forks(leaves: FlatConfig) -> list[str]:
    """Histories that fork are several rows of one episode, which only verl's GRPO and a mean over tokens count once."""
    estimator = leaves.peek("rl.algorithm.advantage.type")
    denominator = leaves.peek("rl.algorithm.loss.denominator")
    weight = leaves.peek("rl.algorithm.negative_weight")
    if estimator not in ("group", "dr_grpo"):
        counting = f"rl.algorithm.advantage.type={estimator!r}"
    elif weight != 1.0:
        counting = f"rl.algorithm.negative_weight={weight!r}"
    elif denominator != "token":
        counting = f"rl.algorithm.loss.denominator={denominator!r}"
    else:
        return []
    reasons = {
        "rollout.pipeline.context.type": leaves.peek("rollout.pipeline.context.type") != "full",
        "rollout.pipeline.thinking": leaves.peek("rollout.pipeline.thinking") == "dropped",
        "rollout.pipeline.type": leaves.peek("rollout.pipeline.type") == "full",
    }
    why = f"an episode whose history forks would count several times with {counting}"
    return [f"{name}={leaves.peek(name)!r} ({why})" for name, is_forking in reasons.items() if is_forking]
