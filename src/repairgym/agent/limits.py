"""The limits of an episode, and loops.

Reads what an episode has used so far; says which limit it has reached. Invariant: limits are looked at between turns,
in the order below, so equal episodes end for equal reasons (the time limit apart).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from repairgym.agent.conversation import Answer
from repairgym.config.pipeline import PipelineConfig
from repairgym.records import StopReason, Turn


@dataclass
class Usage:
    """What an episode has used."""

    num_turns: int = 0
    num_tool_calls: int = 0
    num_output_tokens: int = 0
    cost_usd: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def add_turn(self, answer: Answer, *, is_tool_call: bool) -> None:
        """Count one turn."""
        self.num_turns += 1
        self.num_tool_calls += is_tool_call
        self.num_output_tokens += answer.num_tokens
        self.cost_usd += answer.cost_usd


def reached_limit(config: PipelineConfig, usage: Usage, num_context_tokens: int) -> StopReason | None:
    """The limit that leaves no other turn, if any."""
    if usage.num_turns >= config.max_turns:
        return StopReason.TURN_LIMIT
    if config.max_tool_calls is not None and usage.num_tool_calls >= config.max_tool_calls:
        return StopReason.TOOL_CALL_LIMIT
    if num_context_tokens >= config.max_len_tokens:
        return StopReason.TOKEN_LIMIT
    if config.max_output_tokens is not None and usage.num_output_tokens >= config.max_output_tokens:
        return StopReason.OUTPUT_TOKEN_LIMIT
    if config.max_cost_usd is not None and usage.cost_usd >= config.max_cost_usd:
        return StopReason.COST_LIMIT
    if time.monotonic() - usage.started > config.time_limit_s:
        return StopReason.TIME_LIMIT
    return None


def max_new_tokens(config: PipelineConfig, usage: Usage, num_context_tokens: int) -> int:
    """The most tokens that the next answer can have."""
    room = config.max_len_tokens - num_context_tokens
    if config.max_output_tokens is not None:
        room = min(room, config.max_output_tokens - usage.num_output_tokens)
    return min(room, config.max_action_tokens)


def is_loop(turns: list[Turn], action: str, observation: str, num_repeats: int) -> bool:
    """Whether this turn is at least the ``num_repeats``-th equal one in a row; ``turns`` are those before it."""
    latest = turns[len(turns) - num_repeats + 1 :] if num_repeats > 1 else []
    if len(latest) < num_repeats - 1:
        return False
    return all((turn.action, turn.observation) == (action, observation) for turn in latest)
