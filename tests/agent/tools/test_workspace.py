"""The workspace: one state for tools and commands, whoever changed it."""

from __future__ import annotations

import json

import pytest

from repairgym.agent.tools.base import ToolContext, ToolServices, UsageError
from repairgym.agent.tools.registry import TOOLS
from repairgym.agent.tools.workspace import Workspace, base_content, base_text
from repairgym.config.pipeline import PaperBConfig
from repairgym.errors import SandboxError
from repairgym.grading.permitted import check_applicable
from repairgym.records import TestRun
from repairgym.sandbox.base import ExecResult
from repairgym.sandbox.cache import ExecutionCache
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
async def test_a_removed_file_is_removed_for_commands_too(workspace, boxes):
    await workspace.write("new.py", "1\n")
    await workspace.run_command("write other.py 2", timeout_s=1)
    await workspace.refresh()
    await workspace.remove("./new.py")
    await workspace.remove("tree.py")
    assert (boxes[0].files["new.py"], boxes[0].files["tree.py"]) == (None, None)
    assert workspace.changes == {"other.py": "2", "tree.py": None}


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


GOLD = "repaired = 1  # six\n"
BROKEN = "broken = 1  # requests\n"
BASE = {"pkg/requirements.txt": BROKEN, "tests/test_hidden.py": None}
SPELLINGS = [
    "pkg/requirements.txt",
    "./pkg/requirements.txt",
    "././pkg/requirements.txt",
    "pkg//requirements.txt",
    "pkg/./requirements.txt",
    "pkg/requirements.txt/",
    ".//pkg/.//requirements.txt/.",
    "link.txt",
    "./second//link.txt",
    "alias/requirements.txt",
    "alias/sub/requirements.txt",
    "pkg/inner/requirements.txt",
    "deep/up.txt",
]
HIDDEN = ["tests/test_hidden.py", "tests/./test_hidden.py", "hidden.py", "checks//test_hidden.py"]
OUTSIDE = ["../x.txt", "pkg/../pkg/requirements.txt", "/testbed/pkg/requirements.txt", "//pkg/requirements.txt",
           "passwd", "root/etc/passwd", "loop", "", ".", "./"]  # fmt: skip


@pytest.fixture
def linked_tree(tmp_path):
    """The pinned tree: it holds the answer, and links of every kind to it."""
    tree = tmp_path / "tree"
    for folder in ("pkg", "tests", "deep", "second"):
        (tree / folder).mkdir(parents=True)
    (tree / "pkg" / "requirements.txt").write_text(GOLD)
    (tree / "tests" / "test_hidden.py").write_text(GOLD)
    links = {
        "link.txt": "pkg/requirements.txt",
        "second/link.txt": "../link.txt",
        "alias": "pkg",
        "pkg/sub": ".",
        "pkg/inner": "../alias",
        "deep/up.txt": "../alias/../pkg/requirements.txt",
        "hidden.py": "tests/test_hidden.py",
        "checks": "tests",
        "passwd": "/etc/passwd",
        "root": "/",
        "loop": "loop",
    }
    for link, target in links.items():
        (tree / link).symlink_to(target)
    return tree


@pytest.fixture
def linked(linked_tree):
    async def no_sandbox(files):
        raise SandboxError("no sandbox in this test")

    return Workspace(linked_tree, BASE, no_sandbox)


@pytest.mark.parametrize("path", SPELLINGS)
def test_every_spelling_reads_the_task_not_the_answer(linked, linked_tree, path):
    assert linked.read(path) == linked.base_text(path) == BROKEN
    assert base_text(linked_tree, BASE, path) == BROKEN
    assert base_content(linked_tree, BASE, path) == BROKEN.encode()


@pytest.mark.parametrize("path", [*HIDDEN, *OUTSIDE])
def test_no_spelling_reads_what_is_hidden_or_outside(linked, linked_tree, path):
    assert (linked.read(path), base_content(linked_tree, BASE, path)) == (None, None)


@pytest.mark.asyncio
@pytest.mark.parametrize("path", SPELLINGS)
async def test_every_spelling_writes_one_change_that_grading_takes(linked, path):
    await linked.write(path, "1\n")
    assert linked.changes == {"pkg/requirements.txt": "1\n"}
    assert not check_applicable(linked.changes)
    assert {linked.read(other) for other in SPELLINGS} == {"1\n"}
    await linked.write("pkg//requirements.txt", BROKEN)
    assert linked.changes == {}, "back to the base"


@pytest.mark.asyncio
@pytest.mark.parametrize("path", OUTSIDE[:-3])
async def test_no_link_writes_outside(linked, path):
    with pytest.raises(PermissionError, match="outside"):
        await linked.write(path, "1\n")
    assert linked.changes == {}


def test_a_file_of_the_task_behind_a_link_hides_the_pinned_one(linked_tree):
    """A sandbox writes it at the real path, so that only this text is there."""
    base = {"alias/requirements.txt": BROKEN, "checks/test_hidden.py": None}
    assert {base_text(linked_tree, base, path) for path in SPELLINGS} == {BROKEN}
    assert {base_text(linked_tree, base, path) for path in HIDDEN} == {None}


def test_links_to_absent_files_are_not_listed(linked):
    assert linked.paths("*.py") == []
    assert linked.paths("*.txt") == ["deep/up.txt", "link.txt", "pkg/requirements.txt", "second/link.txt"]


@pytest.mark.asyncio
async def test_a_live_sandbox_is_written_at_the_real_path(linked_tree):
    box = Box({})

    async def create(files):
        return box

    workspace = Workspace(linked_tree, BASE, create)
    await workspace.run_command("write new.py 2", timeout_s=1)
    await workspace.refresh()
    await workspace.write("./alias//new.txt", "1\n")
    assert box.files["pkg/new.txt"] == "1\n"
    assert workspace.changes == {"new.py": "2", "pkg/new.txt": "1\n"}


@pytest.mark.asyncio
async def test_a_link_that_a_command_replaced_by_a_file_is_that_file(linked_tree):
    async def create(files):
        return Box(dict(files))

    workspace = Workspace(linked_tree, BASE, create)
    await workspace.run_command("write link.txt mine", timeout_s=1)
    await workspace.refresh()
    assert (workspace.read("./link.txt"), workspace.read("pkg/requirements.txt")) == ("mine", BROKEN)


_READERS = {
    "view": "{path}",
    "read_file": "{path}",
    "find_files_with_text": "= 1 {path}",
    "open": "{path}",
    "search_file": "1 {path}",
}
_WRITERS = {
    "write": "{path} " + json.dumps("x = 1\n"),
    "write_file": "{path} " + json.dumps("x = 1\n"),
    "edit_range": "--file {path} 1:1 y",
    "dependency_upgrade": "requests >=2 {path}",
    "remove_dependency": "requests {path}",
}


def _tool(key):
    return TOOLS[key](ToolServices(PaperBConfig(), ExecutionCache()))


async def _call(context, key, path):
    tool = _tool(key)
    try:
        return (await tool.run(context, tool.read((_READERS | _WRITERS)[key].format(path=path)))).text
    except (OSError, UsageError) as error:  # as the episode does
        return str(error)


@pytest.mark.asyncio
@pytest.mark.parametrize("path", [path for path in (*SPELLINGS, *HIDDEN, *OUTSIDE) if path])
@pytest.mark.parametrize("key", [*_READERS, *_WRITERS])
async def test_no_tool_shows_the_answer_or_makes_a_second_name(task, linked, key, path):
    context = ToolContext(task=task, workspace=linked)
    shown = await _call(context, key, path)
    for later in ("view", "find_files_with_text", "open"):
        shown += await _call(context, later, path)
    assert "repaired" not in shown
    assert "six" not in shown
    assert not check_applicable(linked.changes)
    real = {"tests/test_hidden.py"} if path in HIDDEN else {"pkg/requirements.txt"}
    assert linked.changes.keys() <= real


def test_every_tool_with_a_path_is_tried():
    """A new tool with a path belongs above: this fails until it is there."""
    names = {"path", "file", "argument"}
    without_path = {"line", "insert", "delete", "edit", "search", "shell"}
    known = {key for key, tool in TOOLS.items() if names & set(tool.arguments_type.model_fields)} - without_path
    assert known - {*_READERS, *_WRITERS} == {"create"}, "create opens nothing that is there"
