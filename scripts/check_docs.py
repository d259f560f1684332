"""Checks the documentation: relative links resolve, and every `repairgym ...` command line parses.

Usage: python scripts/check_docs.py [FILE.md ...] (default: the files at the top of the project and all of docs/).
A command line is checked without running it: its sub-commands and options must exist, and where the command has
``--dry-run``, its ``a.b=value`` overrides and presets have to resolve. Paths are not looked at.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from repairgym.cli import main as command_line
from repairgym.cli.main import LazyCommand

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INLINE_COMMAND = re.compile(r"`(repairgym [^`]+)`")
FENCED = re.compile(r"^```(?:sh|bash|console|)\n(.*?)^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def problems_of(file: Path) -> Iterator[str]:
    """Problems of one page."""
    text = file.read_text(encoding="utf-8")
    for target in LINK.findall(text):
        if not _resolves(file, target):
            yield f"{file.relative_to(ROOT)}: the link {target} leads nowhere"
    for line in _command_lines(text):
        if problem := _problem_of_command(line):
            yield f"{file.relative_to(ROOT)}: `{line}`: {problem}"


def _resolves(file: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):
        return True
    path, _, anchor = target.partition("#")
    page = (file.parent / path).resolve() if path else file
    if not page.exists():
        return False
    return not anchor or anchor in {_anchor(title) for title in HEADING.findall(page.read_text(encoding="utf-8"))}


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _command_lines(text: str) -> Iterator[str]:
    yield from INLINE_COMMAND.findall(FENCED.sub("", text))
    for block in FENCED.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.strip().removeprefix("$ ").partition(" #")[0]
            if command.startswith("repairgym "):
                yield command


def _problem_of_command(line: str) -> str:
    command: Any = typer.main.get_command(command_line.create_app())
    for word in shlex.split(line.partition(" -- ")[0])[1:]:
        if word.startswith("-"):
            if word.partition("=")[0] not in _options(command):
                return f"no option {word}"
        elif hasattr(command, "commands") and word not in ("...", "COMMAND"):
            # "sft/rft/rl" documents several sub-commands at once.
            commands = [_find(command, name) for name in word.split("/")]
            if None in commands:
                return f"no command {word}"
            command = commands[0]
    return _problem_of_overrides(line) if "--dry-run" in _options(command) and "..." not in line else ""


def _problem_of_overrides(line: str) -> str:
    """The error about a key or a preset that a dry run of ``line`` ends with; paths of the example need not exist."""
    words = [os.path.expandvars(word) for word in shlex.split(line)[1:] if not re.fullmatch(r"\$\w*SIZES", word)]
    while "--config" in words:
        at = words.index("--config")
        del words[at : at + 2]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), contextlib.suppress(SystemExit):
        command_line.main([*words, "--dry-run"])
    problem = re.search(r"[^\n]*(?:unknown key|no preset|no such option)[^\n]*", output.getvalue(), re.IGNORECASE)
    return problem.group(0).strip() if problem else ""


def _find(group: Any, name: str) -> Any:
    command = group.get_command(None, name)
    return command.load() if isinstance(command, LazyCommand) else command


def _options(command: Any) -> set[str]:
    return {"--help", "-h"} | {
        name for parameter in command.params for name in parameter.opts + parameter.secondary_opts
    }


def main() -> int:
    """Check the pages named on the command line; the exit status is 1 when something is wrong."""
    files = [Path(name).resolve() for name in sys.argv[1:]] or [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    problems = [problem for file in sorted(files) for problem in problems_of(file)]
    print("\n".join(problems) if problems else f"{len(files)} pages: links resolve, commands exist")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
