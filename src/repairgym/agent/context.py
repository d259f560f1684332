"""Context management: a growing history is cut, or left as it is.

Reads the conversation and the turns so far, before each completion. Guarantee: every cut forks the token ledger, so
training sees each completion behind exactly the tokens that it was sampled from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from repairgym.agent.conversation import Conversation, InitialPrompt
from repairgym.agent.tools.base import ToolContext
from repairgym.config.pipeline import ElisionConfig, PipelineConfig, SummaryConfig
from repairgym.diffs.make import unified_diff
from repairgym.records import Turn

_MAX_ACTION_CHARS = 200
_MAX_DIFF_CHARS = 8000


class ContextCutter(Protocol):
    """One way to cut a history."""

    async def cut(
        self, conversation: Conversation, prompt: InitialPrompt, turns: Sequence[Turn], context: ToolContext
    ) -> None:
        """Cut before the next completion; ``turns`` are those of this attempt."""
        ...


class FullHistory:
    """Cuts nothing."""

    async def cut(
        self, conversation: Conversation, prompt: InitialPrompt, turns: Sequence[Turn], context: ToolContext
    ) -> None:
        """Do nothing."""


class Elision:
    """Every few turns, old observations become one line each."""

    def __init__(self, config: ElisionConfig) -> None:
        self._config = config

    async def cut(
        self, conversation: Conversation, prompt: InitialPrompt, turns: Sequence[Turn], context: ToolContext
    ) -> None:
        """Elide when the history has ``every_turns`` more observations than are kept."""
        if conversation.num_observations >= self._config.num_kept + self._config.every_turns:
            conversation.elide(self._config.num_kept)


class Summary:
    """A nearly full history begins again with the initial prompt, the changes so far and the latest actions."""

    def __init__(self, config: SummaryConfig, max_len_tokens: int) -> None:
        self._config = config
        self._limit = int(config.full_share * max_len_tokens)

    async def cut(
        self, conversation: Conversation, prompt: InitialPrompt, turns: Sequence[Turn], context: ToolContext
    ) -> None:
        """Begin again when the prompt has reached its share; an initial prompt of that length stays."""
        if turns and conversation.num_tokens >= self._limit and conversation.num_observations > 1:
            await context.workspace.refresh()
            summary = summarize(turns[-self._config.num_actions :], context)
            conversation.begin(replace(prompt, text=f"{prompt.text}\n\n{summary}"))


def make_cutter(config: PipelineConfig) -> ContextCutter:
    """Return the way of ``config.context``."""
    choice = config.context
    if isinstance(choice, ElisionConfig):
        return Elision(choice)
    if isinstance(choice, SummaryConfig):
        return Summary(choice, config.max_len_tokens)
    return FullHistory()


def summarize(turns: Sequence[Turn], context: ToolContext) -> str:
    """Summarize the work so far: the changes as a diff, the first lines of actions and observations."""
    workspace = context.workspace
    diff = unified_diff({path: workspace.base_text(path) for path in workspace.changes}, workspace.changes)
    lines = [f"- {_first_line(_call(turn))} -> {_first_line(turn.observation)}" for turn in turns]
    return "\n".join(
        [
            "# WHAT WAS DONE SO FAR",
            "The conversation had grown too long and begins again here. The changes below are in the tree.",
            diff[:_MAX_DIFF_CHARS] or "(no changes)",
            "Latest actions and how each answer began:",
            *lines,
        ]
    )


def _call(turn: Turn) -> str:
    arguments = " ".join(str(value) for value in turn.arguments.values())
    return f"{turn.tool} {arguments}" if turn.tool else "(unreadable action)"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:_MAX_ACTION_CHARS]
