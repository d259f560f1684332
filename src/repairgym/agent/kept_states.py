"""States of an episode between two turns, so that others can begin there without executing its actions again.

Reads and changes a `ToolContext`. Guarantees: a state that was kept never changes; an episode that begins with kept
states has the files, the shell, the open place, the undo stack and the knowledge of the tests that the first one had
between the same turns (conversation, ledger, limits and outer loop follow from the recorded turns, as in a replay);
what cannot be kept (a back end without snapshots, more changes than can be read) is replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from repairgym.agent.tools.base import ToolContext, UndoStep
from repairgym.agent.tools.window import FileView, Window
from repairgym.agent.tools.workspace import WorkspaceState
from repairgym.errors import SandboxError


@dataclass(frozen=True)
class KeptState:
    """State of an episode behind one of its turns."""

    workspace: WorkspaceState
    window: Window | None
    view: FileView | None
    undo_stack: tuple[UndoStep, ...]
    tested_files: str

    @classmethod
    async def of(cls, context: ToolContext) -> KeptState:
        """Keep the present state; `SandboxError` if the sandbox cannot be frozen."""
        workspace = await context.workspace.freeze()
        return cls(workspace, context.window, context.view, tuple(context.undo_stack), context.tested_files)

    def restore(self, context: ToolContext) -> None:
        """Bring ``context``, which has no sandbox, here; a sandbox that it needs later is a fork."""
        context.workspace.restore(self.workspace)
        context.window, context.view = self.window, self.view
        context.undo_stack[:] = self.undo_stack
        context.tested_files = self.tested_files


class StateKeeper:
    """The kept states of one episode: those that it begins with, and those that it leaves."""

    def __init__(self, begun_with: Sequence[KeptState] = (), kept: list[KeptState] | None = None) -> None:
        """``begun_with``: states behind the first turns; ``kept`` takes one behind each turn; None keeps nothing."""
        self._ahead = deque(begun_with)
        self._kept = kept
        self.is_forked = bool(begun_with)
        """It begins with kept states."""

    def restore_next(self, context: ToolContext) -> bool:
        """Go to the state behind the present turn; False where none was kept, and the action has to be executed."""
        if not self._ahead:
            return False
        state = self._ahead.popleft()
        state.restore(context)
        if self._kept is not None:
            self._kept.append(state)
        return True

    async def keep(self, context: ToolContext) -> None:
        """Keep the present state; where that fails, no later state is kept, either."""
        if self._kept is None:
            return
        try:
            self._kept.append(await KeptState.of(context))
        except SandboxError:
            self._kept = None
