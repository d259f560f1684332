"""The windowed editor: what each command changes, shows and refuses. No sandbox starts."""

from __future__ import annotations

import pytest

from repairgym.agent.pipelines.paper_b import changed_ranges, heredoc, state_line
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.agent.tools.base import ToolContext, ToolServices, UsageError
from repairgym.agent.tools.editor import REVIEW, replace_lines, split_heredoc
from repairgym.agent.tools.registry import make_tools
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.pipeline import PaperBConfig
from repairgym.errors import SandboxError
from repairgym.sandbox.cache import ExecutionCache

TOOLS = make_tools(ToolServices(PaperBConfig(window_lines=5), ExecutionCache()))


@pytest.fixture
def context(task, tmp_path):
    async def no_sandbox(files):
        raise SandboxError("no sandbox in this test")

    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "long.py").write_text("".join(f"line {number}\n" for number in range(1, 21)))
    (tmp_path / "open_end.txt").write_text("a\nb")
    (tmp_path / "windows.txt").write_bytes(b"a\r\nb\r\n")
    (tmp_path / "image.bin").write_bytes(b"\xff\x00")
    return ToolContext(task=task, workspace=Workspace(tmp_path, task.base_files, no_sandbox))


async def call(context: ToolContext, command: str) -> str:
    name, _, rest = command.partition(" ")
    tool = TOOLS[name]
    return (await tool.run(context, tool.read(rest))).text


@pytest.mark.asyncio
async def test_open_shows_a_window_with_its_place(context):
    assert await call(context, "open src/long.py 10") == (
        "[File: src/long.py (20 lines total)]\n(7 more lines above)\n"
        "8:line 8\n9:line 9\n10:line 10\n11:line 11\n12:line 12\n(8 more lines below)"
    )
    assert state_line(context) == "(Current directory: /testbed, current file: /testbed/src/long.py) bash-$"
    assert "1:def f(a, b):" in await call(context, "open /testbed/m.py")
    context.workspace.cwd = "/testbed/src"
    assert "1:line 1" in await call(context, "open long.py")
    assert "1:def f" in await call(context, "open ../m.py")
    assert await call(context, "open") == await call(context, "open /testbed/m.py")


@pytest.mark.asyncio
async def test_goto_and_scrolling_stop_at_the_ends(context):
    await call(context, "open src/long.py")
    assert "18:line 18\n19:line 19\n20:line 20" in await call(context, "goto 20")
    assert "(12 more lines above)" in await call(context, "scroll_up")
    assert "16:line 16" in await call(context, "scroll_down")
    with pytest.raises(UsageError, match="shows the end of"):
        await call(context, "scroll_down")
    with pytest.raises(UsageError, match="lines 1 to 20"):
        await call(context, "goto 21")
    assert "10:line 10" in await call(context, "open 10"), "a number alone is a line of the open file"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("edit 2:2 '    return a <= b'", "def f(a, b):\n    return a <= b\n"),
        ("edit 2 '    return a <= b'", "def f(a, b):\n    return a <= b\n"),
        ("edit 2:2 << 'EOF'\n    # both\n    return a <= b\nEOF", "def f(a, b):\n    # both\n    return a <= b\n"),
        ("edit --file m.py 1:2 << EOF\n\nEOF", "\n"),
        ("edit --file=m.py 1:1", "    return a < b\n"),
        ("edit 1:2 << 'EOF'\nEOF", ""),
        (
            "edit 2:2 << 'END'\n    x = \"it's\"  # << 'EOF'\n\tEOF\nEND\n",
            "def f(a, b):\n    x = \"it's\"  # << 'EOF'\n\tEOF\n",
        ),
        ("replace '<' '<='", "def f(a, b):\n    return a <= b\n"),
        ("replace --replace-all 'a' 'c'", "def f(c, b):\n    return c < b\n"),
        ("replace 'b):\n    return' 'b): return'", "def f(a, b): return a < b\n"),
    ],
)
async def test_edits(context, command, text):
    await call(context, "open m.py")
    shown = await call(context, command)
    assert shown.startswith(REVIEW)
    assert context.workspace.read("m.py") == text


@pytest.mark.asyncio
async def test_the_line_ends_of_a_file_stay(context):
    await call(context, "edit --file open_end.txt 2:2 c")
    await call(context, "edit --file windows.txt 2:2 << 'EOF'\nc\r\nEOF")
    assert context.workspace.changes == {"open_end.txt": "a\nc", "windows.txt": "a\r\nc\r\n"}


@pytest.mark.asyncio
async def test_create_and_fill(context):
    assert "[File: new/a.py (1 lines total)]\n1:" in await call(context, "create new/a.py")
    await call(context, "edit 1:1 << 'EOF'\nx = 1\ny = 2\nEOF")
    assert context.workspace.changes == {"new/a.py": "x = 1\ny = 2\n"}
    assert await call(context, "search_file '= 2'") == "1 lines of new/a.py hold '= 2'\n2:y = 2"
    assert await call(context, "search_file line src/long.py") != ""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("goto 1", "no file is open"),
        ("open", "no file is open"),
        ("open nowhere.py", "nowhere.py is no text file"),
        ("open image.bin", "image.bin is no text file"),
        ("open ../outside.py", "outside the repository"),
        ("open /etc/passwd", "outside the repository"),
        ("create m.py", "m.py exists"),
        ("edit --file m.py 3:3 x", "lines 1 to 2"),
        ("edit --file m.py 2:1 x", "lines 2 to 1"),
        ("edit --file m.py x", "expected START:END"),
        ("edit --file", "--file needs a value"),
        ("edit --file m.py --file n.py 1:1 x", "--file is given twice"),
        ("edit --path m.py 1:1", "no option --path"),
        ("edit --file m.py", "no line range"),
        ("edit --file m.py 1:1 a b", "2 replacement texts"),
        ("edit --file m.py 1:1 << 'EOF'\nx\n", "no line EOF"),
        ("edit --file m.py 1:1 << 'EOF'\nx\nEOF\npython m.py", "something follows"),
        ("edit --file m.py 1:1 'x", "no closing quotation"),
        ("search_file a b c", "got 3 arguments"),
        ("open m.py two", "line_number"),
        ("open \u00b2", "\u00b2 is no text file"),
        (f"open {'1' * 5000}", "is no text file"),
        (f"edit --file m.py {'1' * 5000}:2 x", "expected START:END"),
    ],
)
async def test_impossible_edits_are_errors(context, command, reason):
    with pytest.raises(UsageError, match=reason):
        await call(context, command)
    assert context.workspace.changes == {}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("written", "line"),
    [
        ('"-----"', "-----"),
        ("---", "---"),
        ("'--flag=1'", "--flag=1"),
        ("--file", "--file"),
        ('"y = x << n"', "y = x << n"),
        ('"y = x << n\n  z"', "y = x << n\n  z"),
        ("'y = x << n\nn'", "y = x << n\nn"),
        ('"a \\" << n\nb"', 'a " << n\nb'),
        ("x\\ \\<\\<\\ n", "x << n"),
        ("<< 'E'\n-- a 'quote\n<< n\nE", "-- a 'quote\n<< n"),
        ("<<n\nx\nn", "x"),
    ],
)
async def test_the_new_text_is_neither_option_nor_heredoc(context, written, line):
    await call(context, f"edit --file m.py 2:2 {written}")
    assert context.workspace.read("m.py").split("\n", 1)[1] == f"{line}\n"


@pytest.mark.asyncio
async def test_replace_needs_two_texts_of_the_file(context):
    await call(context, "open m.py")
    with pytest.raises(UsageError, match="is not in"):
        await call(context, "replace 'nothing' 'x'")
    with pytest.raises(UsageError, match="expected two"):
        await call(context, "replace a b c")
    assert "(1 of 2 occurrences replaced)" in await call(context, "replace 'a' 'x'")


@pytest.mark.parametrize("is_opened", [True, False])
def test_the_cached_place_can_be_open_from_the_start(context, is_opened):
    pipeline = make_pipeline(PaperBConfig(is_place_opened=is_opened), ExecutionCache())
    text = pipeline.initial_prompt(context).text
    assert ("current file: /testbed/m.py" in text) is is_opened
    assert text.endswith("2:    return a < b") is is_opened


def test_without_an_editor_the_place_is_open_in_the_window_of_the_compact_tools(context):
    config = PaperBConfig(tools=("edit", "submit"), action_format="compact", opening_prompt="", is_place_opened=True)
    pipeline = make_pipeline(config, ExecutionCache())
    prompt = pipeline.initial_prompt(context)
    assert context.window.path == "m.py"
    assert context.view is None
    assert prompt.text.endswith(context.window.render(context.workspace.read("m.py")))
    assert pipeline.finish(context, "done").endswith("current file: /testbed/m.py) bash-$")


def test_json_arguments_are_checked():
    tool = TOOLS["edit"]
    assert tool.check({"line_range": "1:2"}).file == ""
    with pytest.raises(UsageError, match="line_range: field required"):
        tool.check({})
    with pytest.raises(UsageError, match="path"):
        tool.check({"line_range": "1:2", "path": "m.py"})


@pytest.mark.parametrize(
    ("base", "gold"),
    [
        ("a\nb\nc\n", "a\nx\nc\n"),
        ("a\nb\nc\n", "a\nc\n"),
        ("a\nc\n", "a\nb\nc\n"),
        ("b\n", "a\nb\n"),
        ("a\n", "a\nb\n\n"),
        ("a\nb\n", ""),
        ("", "a\nEOF\n"),
        ("a\n\n\nb\n" * 9, "z\na\n\nb\n" * 8 + "EOF\n"),
        ("a\nb", "a\nc"),
    ],
)
def test_the_oracle_edits_from_the_end_to_the_start(base, gold):
    text = base
    for first, last, replacement in changed_ranges(base, gold):
        _, body = split_heredoc(heredoc("1:1", replacement))
        text = replace_lines(text, first, last, body or "")
    assert text == gold
