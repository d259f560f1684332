"""The diff as it grew: an episode's edits made again, on text alone.

Reads a trajectory, its task and the pinned tree; makes the files after each turn. Invariants: only tools that read and
write text are run again, in memory, never in a sandbox; what comes out is shown only when every edit answers what it
answered then and the last state is the submission, so a diff is right or absent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repairgym.agent.tools.base import ToolContext, ToolServices, UsageError
from repairgym.agent.tools.registry import TOOLS
from repairgym.agent.tools.window import open_window
from repairgym.agent.tools.workspace import Files, Workspace
from repairgym.config.pipeline import PipelineConfig
from repairgym.diffs.make import unified_diff
from repairgym.errors import RepairGymError, SandboxError
from repairgym.records import Task, Turn
from repairgym.rollout.rows import Document
from repairgym.sandbox.base import Sandbox
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.layers.store import cache_root

_CHANGING = frozenset({"edit", "line", "undo", "write", "write_file"})
_REPLAYED = _CHANGING | {"view"}
"""Keys of the tool registry; `view` moves the window that edits point into."""
_HARMLESS = frozenset(
    {
        "ask_for_help",
        "find_files",
        "find_files_with_text",
        "read_file",
        "search",
        "submit",
        "test",
        "validate_and_build",
    }
)
"""Tools that change no file. Any other may: what a shell does is not known without a sandbox."""


@dataclass(frozen=True)
class Growth:
    """What one turn did to the files."""

    step: str
    """Diff against the state before the turn; empty when the turn changed nothing."""
    whole: str
    """Diff against the code that the agent got."""


def grow(task: Task, document: Document) -> tuple[Growth, ...] | str:
    """The growth of the diff by turn, or why it cannot be told."""
    if len(document.attempts) > 1:
        return "between the attempts of this pipeline files are taken back"
    unknown = [turn.tool for turn in document.turns if turn.tool and turn.tool not in _REPLAYED | _HARMLESS]
    if unknown:
        return f"the tool {unknown[0]} can change files in ways that only a sandbox knows"
    tree = cache_root() / "trees" / task.base_tree
    try:
        states = asyncio.run(_states(task, document.turns, tree))
    except (RepairGymError, OSError, ValueError, TypeError, AttributeError) as error:
        return f"making the edits again ended in {type(error).__name__}"
    # What was not submitted may have been kept out of the trajectory; then only the answers can vouch.
    is_told = bool(document.final_files)
    if states is None or (is_told and states[-1:] != [document.final_files]):
        lacks = "" if tree.is_dir() else "; the package's source is not in the layer store of this machine"
        return f"making the edits again does not lead to what was submitted{lacks}"
    return tuple(_growths(Workspace(tree, task.base_files, _no_sandbox), states))


async def _states(task: Task, turns: tuple[Turn, ...], tree: Path) -> list[Files] | None:
    """The changed files after each turn; None when an edit answers something else than it did."""
    workspace = Workspace(tree, task.base_files, _no_sandbox)
    context = ToolContext(task=task, workspace=workspace)
    place = task.location
    if place and (text := workspace.read(place.path)) is not None:
        context.window = open_window(place.path, text, place.first_line, place.last_line)
    states: list[Files] = []
    for turn in turns:
        if turn.tool in _REPLAYED and not await _repeats(turn, context):
            return None
        states.append(dict(workspace.changes))
    return states


async def _repeats(turn: Turn, context: ToolContext) -> bool:
    """Carry out the turn; False when it is an edit that answers something else than it did."""
    tool = TOOLS[turn.tool or ""].create(ToolServices(PipelineConfig(), ExecutionCache()))
    is_text = turn.arguments.keys() == {"argument"}  # of formats of one line
    try:
        arguments = tool.read(str(turn.arguments["argument"])) if is_text else tool.check(turn.arguments)
        answer = await tool.run(context, arguments)
    except (UsageError, OSError):
        return bool(turn.error)
    return turn.tool not in _CHANGING or answer.text == turn.observation


async def _no_sandbox(files: Files) -> Sandbox:
    raise SandboxError("a viewer runs nothing")


def _growths(base: Workspace, states: Sequence[Mapping[str, str | None]]) -> Iterator[Growth]:
    whole = ""
    for before, after in itertools.pairwise([{}, *states]):
        if before == after:
            yield Growth("", whole)
            continue
        paths = before.keys() | after.keys()
        whole = unified_diff({path: base.read(path) for path in after}, after)
        yield Growth(
            unified_diff(
                {path: before[path] if path in before else base.read(path) for path in paths},
                {path: after[path] if path in after else base.read(path) for path in paths},
            ),
            whole,
        )
