"""The processes that work on a run folder: the lock, a record of each call, and the log.

Reads and makes ``.lock``, ``calls.jsonl`` and ``run.log`` in a run folder. Guarantees: one process at a time holds the
lock, which goes with it however it ends; a call is recorded before it works, without credentials of its addresses; the
log ends with the reason why the last call ended, unless it was killed.
"""

import fcntl
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil
from pydantic import ValidationError

from repairgym import __version__
from repairgym.errors import InputError, disk_full_as_repairgym_error
from repairgym.records import Record
from repairgym.rollout.connection import now
from repairgym.tasks.layers.atomic_write import append_line

LOCK_FILE = ".lock"
CALLS_FILE = "calls.jsonl"
LOG_FILE = "run.log"
_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "vllm", "ray", "verl", "trl")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_GIT_TIMEOUT_S = 5.0
_NUM_TRIES, _PAUSE_S = 3, 0.05


class Call(Record):
    """One call that worked on a run."""

    time: str
    command: str
    version: str
    """Of RepairGym."""
    commit: str = ""
    """Of the checkout that RepairGym ran from; empty for an installed package."""
    is_dirty: bool = False
    """The checkout differed from the commit."""
    python: str = ""
    platform: str = ""
    num_cpus: int = 0
    memory_bytes: int = 0
    packages: dict[str, str] = {}
    """Name -> version of installed packages on which numbers can depend."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run folder for this process, and record its call; the lock goes with the process, however it ends.

    Raises:
        InputError: another process holds it.
    """
    with (folder / LOCK_FILE).open("w") as file:
        for num_left in reversed(range(_NUM_TRIES)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not num_left:
                    raise InputError(f"another process works on {folder}; wait for it or stop it first") from None
                time.sleep(_PAUSE_S)  # `is_locked` holds the lock for a moment
        call = this_call()
        path = folder / CALLS_FILE
        with disk_full_as_repairgym_error(path), path.open("ab+") as stream:
            append_line(stream.fileno(), call.model_dump_json())
        append_log(folder, f"begun: {call.command}")
        try:
            yield
        except BaseException as error:
            append_log(folder, f"stopped: {type(error).__name__}{f': {error}' if str(error) else ''}")
            raise
        append_log(folder, "ended")


def is_locked(folder: Path) -> bool:
    """Return True while a process works on the run in ``folder``."""
    try:
        with (folder / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def append_log(folder: Path, text: str) -> None:
    """Add a line to the log of the run, in UTC as all its pages; a full disk loses the line and nothing else."""
    with suppress(OSError), (folder / LOG_FILE).open("a", encoding="utf-8", errors="replace") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())} {' '.join(text.split())}\n")


def read_calls(folder: Path) -> list[Call]:
    """Return the recorded calls, oldest first; lines of another version are left out."""
    try:
        lines = (folder / CALLS_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    calls = []
    for line in lines:
        with suppress(ValidationError):
            calls.append(Call.model_validate_json(line))
    return calls


def this_call() -> Call:
    """Return the record of the present process."""
    commit, is_dirty = _checkout()
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python"
    return Call(
        time=now(),
        command=_CREDENTIALS.sub("***@", shlex.join([program, *sys.argv[1:]])),
        version=__version__,
        commit=commit,
        is_dirty=is_dirty,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        num_cpus=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        packages=_versions(),
    )


@cache
def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


@cache
def _checkout() -> tuple[str, bool]:
    """Return the commit of the checkout that this file is tracked in, and True if the checkout differs from it."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True).stdout

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD").strip(), bool(git("status", "--porcelain", "--", "..").strip())
    except (OSError, subprocess.SubprocessError):
        return "", False
