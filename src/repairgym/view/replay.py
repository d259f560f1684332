"""The diff by turn: the edits of an episode replayed on text.

Reads a trajectory, its task and the pinned tree; makes the files after each turn. Guarantees: only tools that read and
write text are replayed, in memory, never in a sandbox; a diff is right or absent, because every edit has to give its
recorded answer and the last state has to be the submission.
"""

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from repairgym.agent.tools.base import ToolContext, ToolServices, UsageError
from repairgym.agent.tools.registry import TOOLS
from repairgym.agent.tools.window import open_window
from repairgym.agent.tools.workspace import Files, Workspace
from repairgym.config.pipeline import PipelineConfig
from repairgym.diffs.make import unified_diff
from repairgym.errors import RepairGymError, SandboxError
from repairgym.records import Task, Turn
from repairgym.report.reading import Growth
from repairgym.rollout.rows import Document
from repairgym.sandbox.base import Sandbox
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.layers.store import cache_root
from repairgym.tasks.synthetic import told_place

_CHANGING = frozenset({"edit", "line", "undo", "write", "write_file"})
_REPLAYED = _CHANGING | {"view"}
"""Keys of the tool registry; `view` moves the window that edits refer to."""
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
"""Tools that change no file. Any other may: the effect of a shell is unknown without a sandbox."""


def grow(task: Task, document: Document) -> tuple[Growth, ...] | str:
    """Return the growth of the diff by turn, or the reason why it is unknown."""
    if len(document.attempts) > 1:
        return "this pipeline resets files between its attempts"
    unknown = [turn.tool for turn in document.turns if turn.tool and turn.tool not in _REPLAYED | _HARMLESS]
    if unknown:
        return f"the tool {unknown[0]} can change files in ways that only a sandbox knows"
    tree = cache_root() / "trees" / task.base_tree
    try:
        states = asyncio.run(_states(task, document.turns, tree))
    except (RepairGymError, OSError, ValueError, TypeError, AttributeError) as error:
        return f"the replay of the edits ended in {type(error).__name__}"
    # A trajectory without submission may store no files; then the answers of the edits are the only check.
    if states is None or (document.final_files and states[-1:] != [document.final_files]):
        lacks = "" if tree.is_dir() else "; the package's source is not in the layer store of this machine"
        return f"the replay of the edits does not lead to the submission{lacks}"
    return tuple(_growths(Workspace(tree, task.base_files, _no_sandbox), states))


async def _states(task: Task, turns: tuple[Turn, ...], tree: Path) -> list[Files] | None:
    """Return the changed files after each turn; None when an edit gives another answer than recorded."""
    workspace = Workspace(tree, task.base_files, _no_sandbox)
    context = ToolContext(task=task, workspace=workspace)
    place = told_place(task)
    if place and (text := workspace.read(place.path)) is not None:
        context.window = open_window(place.path, text, place.first_line, place.last_line)
    states: list[Files] = []
    for turn in turns:
        if turn.tool in _REPLAYED and not await _repeats(turn, context):
            return None
        states.append(dict(workspace.changes))
    return states


async def _repeats(turn: Turn, context: ToolContext) -> bool:
    """Replay the turn; return False for an edit with another answer than recorded."""
    tool = TOOLS[turn.tool or ""](ToolServices(PipelineConfig(), ExecutionCache()))
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
