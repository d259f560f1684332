"""The workspace: one state for tools and commands, whoever changed it."""

from __future__ import annotations

import pytest

from repairgym.agent.tools.workspace import Workspace
from repairgym.records import TestRun
from repairgym.sandbox.base import ExecResult
from repairgym.testing.scripted import ScriptedSandbox, ScriptedSession


class Shell(ScriptedSession):
    """Runs ``write PATH TEXT`` and ``rm PATH``."""

    def __init__(self, sandbox):
        super().__init__("main")
        self.sandbox = sandbox

    async def run(self, command, *, timeout_s, stdin=b""):
        name, path, *text = command.split(" ", 2)
        self.sandbox.files[path] = text[0] if name == "write" else None
        return ExecResult(exit_status=0)


class Box(ScriptedSandbox):
    """Its shell changes its files; ``rm`` is all that is executed."""

    def __init__(self, files):
        super().__init__(files, lambda _, request: TestRun(results={}, exit_status=0))

    async def open_session(self, name="main", env=None):
        return Shell(self)

    async def exec(self, argv, **_):
        self.files[argv[-1]] = None
        return ExecResult(exit_status=0)


@pytest.fixture
def boxes():
    return []


@pytest.fixture
def workspace(tmp_path, boxes):
    (tmp_path / "folder").mkdir()
    (tmp_path / "tree.py").write_text("tree\n")

    async def create(files):
        boxes.append(Box({"tree.py": "tree\n", **files}))
        return boxes[-1]

    return Workspace(tmp_path, {"base.py": "base\n"}, create)


@pytest.mark.asyncio
async def test_tools_and_commands_see_each_others_changes(workspace, boxes):
    await workspace.write("early.py", "1\n")
    await workspace.write("base.py", "changed\n")
    await workspace.run_command("write by_shell.py 2", timeout_s=1)
    assert boxes[0].files["early.py"] == "1\n", "what was changed before the start is there"
    await workspace.refresh()
    assert workspace.read("by_shell.py") == "2"
    await workspace.write("late.py", "3\n")
    assert boxes[0].files["late.py"] == "3\n"
    await workspace.run_command("write base.py base\n", timeout_s=1)
    await workspace.run_command("rm tree.py", timeout_s=1)
    await workspace.run_command("rm early.py", timeout_s=1)
    await workspace.refresh()
    assert workspace.changes == {"by_shell.py": "2", "late.py": "3\n", "tree.py": None}
    assert len(boxes) == 1


@pytest.mark.asyncio
async def test_a_reverted_state_starts_a_new_shell(workspace, boxes):
    await workspace.write("kept.py", "1\n")
    kept = dict(workspace.changes)
    await workspace.run_command("write gone.py 2", timeout_s=1)
    await workspace.refresh()
    await workspace.revert(kept)
    assert (workspace.changes, workspace.cwd, boxes[0].is_closed) == (kept, "/testbed", True)
    await workspace.run_command("write new.py 3", timeout_s=1)
    await workspace.refresh()
    assert workspace.changes == {"kept.py": "1\n", "new.py": "3"}


@pytest.mark.asyncio
async def test_preparation_sees_the_tree_before_the_agent(tmp_path):
    seen = []

    async def create(files):
        return Box(files)

    async def prepare(sandbox):
        seen.append(dict(sandbox.files))

    workspace = Workspace(tmp_path, {"base.py": "base\n"}, create, prepare)
    await workspace.write("base.py", "changed\n")
    await workspace.write("new.py", "1\n")
    await workspace.run_command("write shell.py 2", timeout_s=1)
    await workspace.refresh()
    assert seen == [{"base.py": "base\n"}]
    assert workspace.changes == {"base.py": "changed\n", "new.py": "1\n", "shell.py": "2"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("../out.py", PermissionError),
        ("/etc/out.py", PermissionError),
        ("nul\0.py", PermissionError),
        ("base.py/below.py", NotADirectoryError),
        ("folder", IsADirectoryError),
    ],
)
async def test_unwritable_paths_are_rejected_before_a_sandbox_starts(workspace, boxes, path, error):
    with pytest.raises(error):
        await workspace.write(path, "x")
    assert (workspace.changes, boxes) == ({}, [])


@pytest.mark.asyncio
async def test_an_archive_that_decodes_is_in_no_change(workspace, boxes):
    """Grading would reject the whole submission for it, as for any binary file."""
    await workspace.run_command("write data.tar a.txt\0\0ustar", timeout_s=1)
    await workspace.run_command("write kept.py 1", timeout_s=1)
    await workspace.refresh()
    assert workspace.changes == {"kept.py": "1"}
