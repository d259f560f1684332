"""Tools of the window: what lines they add and remove, which labels stay, what undo brings back. No sandbox starts."""

from __future__ import annotations

import pytest

from repairgym.agent.tools.base import ToolContext, ToolServices
from repairgym.agent.tools.registry import make_tools
from repairgym.agent.tools.window import open_window
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.pipeline import PipelineConfig
from repairgym.errors import SandboxError
from repairgym.sandbox.cache import ExecutionCache

TOOLS = make_tools(ToolServices(PipelineConfig(), ExecutionCache()))
TEXT = 'def f(a):\n    """Doc."""\n    b = a\n\n    return b'


@pytest.fixture
def context(task, tmp_path):
    async def no_sandbox(files):
        raise SandboxError("no sandbox in this test")

    (tmp_path / "f.py").write_text(TEXT)
    workspace = Workspace(tmp_path, task.base_files, no_sandbox)
    return ToolContext(task=task, workspace=workspace, window=open_window("f.py", TEXT, 1))


async def call(context: ToolContext, command: str) -> str:
    name, _, rest = command.partition(" ")
    return (await TOOLS[name].run(context, TOOLS[name].read(rest))).text


@pytest.mark.asyncio
async def test_an_inserted_line_gets_the_next_label_and_the_others_keep_theirs(context):
    assert await call(context, "insert @1    if a is None:") == "@4    if a is None:"
    assert await call(context, "insert @4        return 0") == "@5        return 0"
    assert await call(context, "edit b => b + 1 @3") == "@3    return b + 1"
    text = 'def f(a):\n    if a is None:\n        return 0\n    """Doc."""\n    b = a\n\n    return b + 1'
    assert context.workspace.read("f.py") == text
    assert await call(context, "view") == (
        "@1 def f(a):\n@4    if a is None:\n@5        return 0\n@2    b = a\n@3    return b + 1"
    )


@pytest.mark.asyncio
async def test_a_deleted_line_leaves_a_gap_until_undo(context):
    assert await call(context, "delete @2") == "deleted @2"
    assert context.workspace.read("f.py") == 'def f(a):\n    """Doc."""\n\n    return b'
    assert await call(context, "line @2    b = 1") == "error: no line @2; the window ends at @3"
    assert await call(context, "edit a => c @2") == "error: no line @2; the window ends at @3"
    assert await call(context, "line @3    return 2") == "@3    return 2"
    assert [await call(context, "undo") for _ in range(2)] == ["undone", "undone"]
    assert context.workspace.read("f.py") == TEXT
    assert await call(context, "edit a => c @2") == "@2    b = c"


@pytest.mark.asyncio
async def test_undo_opens_the_window_of_an_edit_that_moved_lines(context):
    await call(context, "insert @3    # end")
    await call(context, "view f.py:3")
    await call(context, "undo")
    assert await call(context, "view") == "@1 def f(a):\n@2    b = a\n@3    return b"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("insert @9 x", "error: no line @9"),
        ("insert x", "error: usage: insert @LABEL TEXT"),
        ("delete @1 x", "error: usage: delete @LABEL"),
        ("delete @0", "error: no line @0"),
        ("line @0 x", "error: no line @0"),
        (f"line @{'1' * 5000} x", "error: usage: line @LABEL"),
        (f"edit a => b @{'1' * 5000}", "error: "),
        (f"edit a => b @1 #{'1' * 5000}", "error: "),
        (f"view f.py:{'1' * 5000}", "error: "),
        (f"write f.py {'[' * 100_000}", "error: usage: write"),
    ],
)
async def test_what_cannot_be_done_is_said(context, command, told):
    assert (await call(context, command)).startswith(told)
    assert context.workspace.read("f.py") == TEXT


@pytest.mark.asyncio
async def test_a_line_above_the_window_and_an_empty_line(context):
    assert await call(context, "insert @0 import math") == "@4 import math"
    assert (await call(context, "insert @4")).strip() == "@5"
    assert (context.workspace.read("f.py") or "").startswith("import math\n\ndef f(a):\n")


@pytest.mark.asyncio
async def test_undo_takes_back_a_new_file_not_the_edit_before_it(context):
    await call(context, "edit b => c @2")
    edited = context.workspace.read("f.py")
    assert await call(context, 'write new.py "x = 1"') == "wrote 1 lines to new.py"
    assert await call(context, "undo") == "undone"
    assert context.workspace.changes.keys() == {"f.py"}
    assert context.workspace.read("f.py") == edited
    await call(context, "undo")
    assert context.workspace.changes == {}


@pytest.mark.asyncio
async def test_undo_of_a_write_that_failed_takes_back_the_edit_before(context):
    await call(context, "edit b => c @2")
    with pytest.raises(NotADirectoryError):
        await call(context, 'write f.py/below.py "x"')
    await call(context, "undo")
    assert context.workspace.read("f.py") == TEXT
