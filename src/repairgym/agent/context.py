"""Context management: a growing history is cut, or left as it is.

Reads the conversation and the turns so far, before each completion. Guarantee: every cut forks the token ledger, so
training sees each completion behind exactly the tokens that it was sampled from.
"""

from collections.abc import Sequence
from dataclasses import replace

from repairgym.agent.conversation import Conversation, InitialPrompt
from repairgym.agent.tools.base import ToolContext
from repairgym.config.pipeline import ElisionConfig, PipelineConfig, SummaryConfig
from repairgym.diffs.make import unified_diff
from repairgym.records import Turn

_MAX_ACTION_CHARS = 200
_MAX_DIFF_CHARS = 8000


async def cut_history(
    config: PipelineConfig,
    conversation: Conversation,
    prompt: InitialPrompt,
    turns: Sequence[Turn],
    context: ToolContext,
) -> None:
    """Cut the history as ``config.context`` says; ``turns`` are those of this attempt.

    Elision shortens old observations to one line each, every few turns. A summary restarts a nearly full history with
    the initial prompt, the changes so far and the latest actions; an initial prompt of that length stays alone.
    """
    choice = config.context
    if isinstance(choice, ElisionConfig):
        if conversation.num_observations >= choice.num_kept + choice.every_turns:
            conversation.elide(choice.num_kept)
    elif isinstance(choice, SummaryConfig):
        max_tokens = int(choice.full_share * config.max_len_tokens)
        if turns and conversation.num_tokens >= max_tokens and conversation.num_observations > 1:
            await context.workspace.refresh()
            summary = summarize(turns[-choice.num_actions :], context)
            conversation.begin(replace(prompt, text=f"{prompt.text}\n\n{summary}"))


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
