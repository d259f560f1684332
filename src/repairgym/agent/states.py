"""The state in which a turn starts, as a short digest, so that turns of several episodes can be compared.

Reads an episode's `ToolContext`; makes a digest. Guarantees: episodes of one task with equal digests have equal changed
files, shell folder, open place, knowledge of the tests and opening prompt; only changed files are read, never the tree;
times, observations and the order of actions are no part of it, and neither are variables of the shell.
"""

import hashlib
from contextlib import suppress

from repairgym.agent.tools.base import ToolContext
from repairgym.errors import SandboxContentError

_NUM_HEX = 16
"""64 bits: among the thousand states of a group two collide with a chance below 1e-13."""


async def state_digest(context: ToolContext, prompt: str) -> str:
    """Return the digest of the present state, in an attempt that ``prompt`` opened.

    Changes of shell commands are read back first; where there are too many to read, the last known ones count.
    """
    with suppress(SandboxContentError):
        await context.workspace.refresh()
    files = context.workspace.state_digest()
    window, view = context.window, context.view
    parts = (
        prompt,
        files,
        context.workspace.cwd,
        (window.path, window.line_numbers) if window else None,
        (view.path, view.first_line) if view else None,
        context.tested_files == files,
    )
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()[:_NUM_HEX]
