"""What a sandbox is: the protocol that every back end implements and every caller relies on.

A back end makes throw-away copies of a pinned tree in which untrusted code runs. Trouble of the sandbox itself is a
:class:`~repairgym.errors.SandboxError`; whatever the code inside does (crash, time out, print rubbish) is a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from repairgym.config.sandbox import SandboxLimits
from repairgym.diffs.make import Diff
from repairgym.records import Record, TestRequest, TestRun

__all__ = [
    "ExecResult",
    "FileEntry",
    "Sandbox",
    "SandboxBackend",
    "SandboxLimits",
    "SandboxSpec",
    "ShellSession",
    "Snapshot",
]


class SandboxSpec(Record):
    """What a sandbox is made from."""

    environment: Path
    """Virtual environment layer, mounted read-only; its ``bin/python`` runs the tests."""
    tree: Path
    """Pinned repository tree, the read-only lower layer of ``/testbed``."""
    files: dict[str, str | None] = {}
    """Relative path -> text written over the tree before untrusted code runs (None: deleted)."""
    limits: SandboxLimits = SandboxLimits()


class ExecResult(Record):
    """Outcome of one command."""

    exit_status: int | None
    """None when killed by a signal or not ended in time; always as the kernel reports it."""
    signal: int | None = None
    """Number of the signal that ended the command itself (not something it started)."""
    stdout: bytes = b""
    """Head and tail with a note of the missing bytes between them when longer than ``limits.output_bytes``."""
    stderr: bytes = b""
    """Like ``stdout``, with a bound of its own."""
    is_timed_out: bool = False
    is_truncated: bool = False
    """True when bytes of either stream were dropped."""
    is_out_of_memory: bool = False
    """True when the kernel ended a process of the command because the sandbox reached its memory bound. Only where
    control groups can be written; elsewhere an allocation fails inside of the program instead."""
    is_state_restored: bool = False
    """Sessions: the shell ended without leaving its state (deadline, signal, ``exec``), so the next command finds
    working folder, variables and functions as they were before this one."""
    num_stdout_bytes: int = 0
    """Bytes written, kept or not."""
    num_stderr_bytes: int = 0
    duration_s: float = 0.0
    waited_s: float = 0.0
    """Of ``duration_s``: how long the process that waited longest stood ready without a processor; a lower bound
    (:mod:`.guest.deadlines`), 0 where the kernel does not count."""
    cpu_s: float = 0.0
    """Processor time of the command and everything it started."""
    peak_memory_bytes: int | None = None
    """Most memory in use at once (control group), or of the largest single process (where there is none, with the
    trusted process it was forked from as the floor); None when the kernel does not say."""

    @property
    def num_output_bytes(self) -> int:
        """Bytes written to both streams."""
        return self.num_stdout_bytes + self.num_stderr_bytes


# What names files holds any bytes the kernel allows (as surrogate escapes), which validated records refuse.
@dataclass(frozen=True)
class FileEntry:
    """One entry of a folder."""

    path: str
    """Relative to ``/testbed``."""
    kind: Literal["file", "folder", "link", "other"]
    mode: int
    """Permission bits."""
    num_bytes: int
    target: str = ""
    """Where a link points, as it is written."""


class ShellSession(Protocol):
    """A shell that keeps its state between commands: working folder, variables, functions, aliases, options, ``$?``.

    A command is over when its shell has ended; what it left in the background ends with it.
    """

    name: str

    @property
    def cwd(self) -> str:
        """Working folder inside the sandbox, as the shell says (code inside decides what it says)."""
        ...

    async def run(self, command: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        """Run ``command`` (bash) to its end or deadline; the session survives either.

        Commands of one session wait for each other.

        Raises:
            InputError: ``command`` has a NUL character.
            SandboxLostError: the sandbox is gone.
        """
        ...


class Snapshot(Protocol):
    """A frozen state of a sandbox: testbed, ``/tmp`` and shell sessions. Not processes, not ``/dev/shm``.

    Independent of the sandbox it was taken from, which may go on or be closed. Lives until it is closed or its back end
    is; keeps bytes for as long.
    """

    backend: str
    num_bytes: int
    """What it keeps beyond the snapshot of the same sandbox before it."""

    async def close(self) -> None:
        """Give up what it keeps; sandboxes made from it live on. Safe to call twice."""
        ...


class Sandbox(Protocol):
    """A live, isolated copy of a tree at ``/testbed``. Single use: close it and make another."""

    backend: str
    """Name of the back end, stored with each trajectory."""

    async def exec(
        self,
        argv: tuple[str, ...],
        *,
        timeout_s: float,
        cwd: str = "/testbed",
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a command to its end or deadline; the whole process tree dies with it.

        Raises:
            SandboxLostError: the sandbox is gone.
        """
        ...

    async def open_session(self, name: str = "main", env: dict[str, str] | None = None) -> ShellSession:
        """The shell session ``name``; made when it is new (``env``: variables on top of the sandbox's own).

        Raises:
            SandboxLostError: the sandbox is gone.
        """
        ...

    async def run_tests(self, request: TestRequest) -> TestRun:
        """Run tests by the runner that ``request`` names.

        Raises:
            SandboxLostError: the sandbox is gone.
        """
        ...

    async def read_file(self, path: str) -> bytes:
        """Content of ``path`` (relative to ``/testbed``).

        Raises:
            FileNotFoundError: there is no such file.
            PermissionError: the path leads out of ``/testbed``.
            SandboxContentError: it is larger than ``limits.disk_bytes``.
        """
        ...

    async def write_file(self, path: str, content: bytes) -> None:
        """Write ``path`` (relative to ``/testbed``), making parent folders.

        Raises:
            PermissionError: the path leads out of ``/testbed``.
            IsADirectoryError: there is a folder, or nothing that a regular file can replace.
            NotADirectoryError: a parent folder is a file.
            SandboxContentError: what was written before leaves no room.
        """
        ...

    async def changed_files(self) -> dict[str, bytes | None]:
        """Files that differ from the sandbox's start (None: deleted).

        Raises:
            SandboxContentError: they have more than ``limits.disk_bytes`` together (files with holes can).
        """
        ...

    async def list_files(self, path: str = "", *, is_recursive: bool = True) -> tuple[FileEntry, ...]:
        """Entries below the folder ``path`` (relative to ``/testbed``), sorted by path; links are not followed.

        Raises:
            FileNotFoundError: there is no such folder.
            NotADirectoryError: ``path`` is no folder.
            PermissionError: the path leads out of ``/testbed``.
            SandboxContentError: there are more than 200 000.
        """
        ...

    async def diff(self) -> Diff:
        """What differs from the sandbox's start, as a patch and as records.

        Raises:
            SandboxContentError: more than 200 000 paths differ.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """Freeze the state as it is now; the sandbox goes on above it.

        Raises:
            SandboxLostError: the sandbox is gone.
            SandboxContentError: no room in the sandbox.
            SandboxError: the snapshots that exist keep all there is, or this back end has no snapshots.
        """
        ...

    async def fork(self, count: int = 1) -> tuple[Sandbox, ...]:
        """``count`` independent sandboxes that start from the state as it is now, open sessions included.

        They may still be in the making when this returns: the first request to each waits for that, and raises
        ``SandboxError`` when it could not be made.

        Raises:
            SandboxLostError: the sandbox is gone.
            SandboxContentError: no room in the sandbox.
            SandboxError: the snapshots that exist keep all there is, or this back end has no snapshots.
        """
        ...

    async def close(self) -> None:
        """End every process and drop every byte; safe to call twice."""
        ...


class SandboxBackend(Protocol):
    """Makes sandboxes; holds the resident processes that make them fast."""

    name: str

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """A fresh sandbox, from ``snapshot`` when one is given (``spec`` then differs in its limits at most).

        Raises:
            InputError: ``snapshot`` is closed, another back end's, or one of another environment, tree or files.
            SandboxUnavailableError: this machine cannot provide this back end.
            SandboxError: the sandbox could not be made.
        """
        ...

    async def close(self) -> None:
        """End all sandboxes and resident processes; safe to call twice."""
        ...
