"""The command frame: lazy commands, exit codes, one line per error."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from repairgym import errors
from repairgym.cli.main import BUG, COMMANDS, EXIT_CODES, CommandEntry, create_app, find_repairgym_error

ROOT = Path(__file__).parents[2]
OWN_ENTRIES = (
    CommandEntry("single", "commands_of_a_test.single", "One function."),
    CommandEntry("several", "commands_of_a_test.several", "Several commands."),
    CommandEntry("absent", "commands_of_a_test.absent", "Not written yet."),
    CommandEntry("broken", "commands_of_a_test.broken", "Fails when imported."),
)
SINGLE = '''
import asyncio
from repairgym import errors

def single(what: str):
    """Do one thing."""
    if what == "ok":
        print("did it")
    elif what == "interrupt":
        raise KeyboardInterrupt
    elif what == "bug":
        raise ZeroDivisionError("a surprise")
    elif what == "disk":
        raise OSError(28, "No space left on device", "runs/a")
    elif what == "group":
        async def fail():
            raise errors.SandboxError("the spawner is gone")
        async def both():
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        asyncio.run(both())
    else:
        raise getattr(errors, what)("got 1,\\n expected 2")
'''
SEVERAL = """
import typer
app = typer.Typer()

@app.command()
def first(count: int = 1):
    print("first", count)

@app.command()
def second():
    print("second")
"""


@pytest.fixture
def own_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "commands_of_a_test"
    package.mkdir()
    for name, text in {"__init__": "", "single": SINGLE, "several": SEVERAL, "broken": "raise OSError(28)"}.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("commands_of_a_test")]:
        monkeypatch.delitem(sys.modules, name)


def run(*args: str) -> Result:
    return CliRunner().invoke(create_app(OWN_ENTRIES), list(args))


@pytest.mark.usefixtures("own_commands")
class TestLazyCommands:
    def test_a_module_with_a_function_is_a_command(self) -> None:
        result = run("single", "ok")
        assert (result.exit_code, result.stdout) == (0, "did it\n")

    def test_a_module_with_an_app_is_a_group(self) -> None:
        assert run("several", "first", "--count", "3").stdout == "first 3\n"
        assert run("several", "second").stdout == "second\n"
        assert "second" in run("several", "--help").stdout

    def test_help_lists_what_exists_without_importing_it(self) -> None:
        result = run("--help")
        assert result.exit_code == 0
        assert "One function." in result.stdout
        assert "Fails when imported." in result.stdout
        assert "absent" not in result.stdout
        assert "commands_of_a_test.broken" not in sys.modules

    def test_a_command_that_is_not_there_is_a_usage_error(self) -> None:
        result = run("absent")
        assert result.exit_code == 2
        assert "absent" in result.stderr

    def test_an_unknown_option_is_a_usage_error(self) -> None:
        assert run("several", "first", "--counts", "3").exit_code == 2

    @pytest.mark.parametrize(
        ("name", "code"),
        [
            ("RepairGymError", 1),
            ("ConfigError", 2),
            ("ModelFolderError", 3),
            ("PackageNotFoundError", 4),
            ("SandboxLostError", 5),
            ("DiskFullError", 6),
            ("TaskError", 7),
            ("Interrupted", 130),
        ],
    )
    def test_a_deliberate_error_is_one_line_and_its_code(self, name: str, code: int) -> None:
        result = run("single", name)
        assert result.exit_code == code
        assert result.stderr == "error: got 1, expected 2\n"
        assert result.stdout == ""

    def test_an_error_inside_a_task_group_keeps_its_code(self) -> None:
        result = run("single", "group")
        assert (result.exit_code, result.stderr) == (5, "error: the spawner is gone\n")

    def test_a_full_disk_is_told_by_its_errno(self) -> None:
        result = run("single", "disk")
        assert result.exit_code == 6
        assert "runs/a" in result.stderr
        assert "--resume" in result.stderr

    def test_ctrl_c_says_how_to_go_on(self) -> None:
        result = run("single", "interrupt")
        assert result.exit_code == 130
        assert "--resume" in result.stderr
        assert "what a run folder holds is kept" in result.stderr  # other commands may keep nothing
        assert "Traceback" not in result.stderr

    def test_a_bug_shows_its_traceback(self) -> None:
        result = run("single", "bug")
        assert result.exit_code == BUG
        assert "ZeroDivisionError: a surprise" in result.stderr
        assert "please report" in result.stderr

    def test_debug_shows_the_traceback_of_a_deliberate_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "Traceback" in run("--debug", "single", "TaskError").stderr
        monkeypatch.setenv("REPAIRGYM_DEBUG", "1")
        result = run("single", "TaskError")
        assert "Traceback" in result.stderr
        assert result.exit_code == 7


def test_help_imports_neither_torch_nor_a_command() -> None:
    code = (
        "import sys\nfrom repairgym.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in sys.modules if name in ('torch', 'transformers', 'repairgym.cli.doctor')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "doctor" in done.stdout


def start(tmp_path: Path, body: str, **options: Any) -> subprocess.Popen[str]:
    """Start `repairgym act` in a process of its own, where ``act`` runs ``body``."""
    (tmp_path / "actor.py").write_text(f"import time\ndef act():\n    {body}\n")
    code = (
        "from repairgym.cli.main import CommandEntry\nfrom repairgym.cli.main import create_app\n"
        "create_app((CommandEntry('act', 'actor', ''),))(['act'])"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=env, **options)


@pytest.mark.parametrize("num_bytes", [1, 100_000])
def test_a_reader_that_goes_away_is_no_bug(tmp_path: Path, num_bytes: int) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = start(tmp_path, f"print('x' * {num_bytes})", stdout=write_end)
    os.close(write_end)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (141, "")


def test_a_signal_ends_a_command_with_130(tmp_path: Path) -> None:
    process = start(tmp_path, "print('waiting', flush=True); time.sleep(60)", stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "--resume" in stderr


def all_errors(cls: type[errors.RepairGymError] = errors.RepairGymError) -> list[type[errors.RepairGymError]]:
    return [cls, *(error for child in cls.__subclasses__() for error in all_errors(child))]


def test_every_error_has_its_code_in_the_table() -> None:
    codes = [row.code for row in EXIT_CODES]
    assert len(codes) == len(set(codes))
    assert {error.exit_code for error in all_errors() if error.__module__ == errors.__name__} <= set(codes)


def test_the_documented_table_is_the_one_in_the_code() -> None:
    text = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    rows = [f"| {row.code} | {row.word} | {row.meaning} | {row.remedy} |" for row in EXIT_CODES]
    assert [line for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()] == rows


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EISDIR])
def test_a_place_that_cannot_be_used_is_no_bug(number: int) -> None:
    found = find_repairgym_error(OSError(number, "no such luck", "runs/a"))
    assert isinstance(found, errors.InputError)
    assert "cannot use runs/a: no such luck" in str(found)


def test_other_os_errors_are_not_deliberate() -> None:
    assert find_repairgym_error(OSError(errno.EACCES, "no")) is None
    assert find_repairgym_error(ExceptionGroup("two", [ValueError(), KeyError()])) is None


def test_command_names_are_unique() -> None:
    assert len({entry.name for entry in COMMANDS}) == len(COMMANDS)
