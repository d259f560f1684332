"""The protocol of sandboxes that every back end implements and every caller relies on.

A back end makes disposable copies of a pinned tree in which untrusted code runs. A failure of the sandbox itself is a
:class:`~repairgym.errors.SandboxError`; a failure of the code inside (crash, timeout, odd output) is a result.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

from repairgym.config.sandbox import SandboxLimits as SandboxLimits
from repairgym.diffs.make import Diff
from repairgym.records import Record, TestRequest, TestRun

_MAX_NAME_BYTES = 255


def is_encodable(text: str) -> bool:
    """Return True when a file can have ``text`` as its name or content (surrogate escapes: no UTF-8)."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def can_be_path(path: str) -> bool:
    """Return True when ``path`` is relative, stays below its start, and has names that files can have."""
    pure = PurePosixPath(path)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in path or not is_encodable(path):
        return False
    return all(len(part.encode("utf-8", "surrogateescape")) <= _MAX_NAME_BYTES for part in pure.parts)


class ImageRoot(Record):
    """A container image as the root in which commands run: layers that overlayfs takes as they are."""

    layers: tuple[Path, ...]
    """Folders, the lowest layer first."""
    variables: dict[str, str] = {}
    """Environment variables that the image sets."""


class SandboxSpec(Record):
    """The inputs of a sandbox."""

    environment: Path
    """Virtual environment layer, mounted read-only; its ``bin/python`` runs the tests. With ``root`` a folder of the
    image, whose ``bin`` comes first on the PATH (``/``: the image's own PATH)."""
    tree: Path
    """Pinned repository tree, the read-only lower layer of ``/testbed``."""
    files: dict[str, str | None] = {}
    """Relative path -> text written over the tree before untrusted code runs (None: deleted)."""
    links: dict[str, str] = {}
    """Absolute path -> target: more symbolic links in the read-only root (back ends with a root of their own)."""
    mounts: dict[str, Path] = {}
    """Absolute path -> folder of this machine that is shown there read-only (`namespace`, without ``root``)."""
    root: ImageRoot | None = None
    """Image in which commands run, in a copy of their own, and tests in the image as it was pulled (`namespace` only);
    None: the view of the host."""
    limits: SandboxLimits = SandboxLimits()


class ExecResult(Record):
    """Outcome of one command."""

    exit_status: int | None
    """As the kernel reports it; None when killed by a signal or by the deadline."""
    signal: int | None = None
    """Number of the signal that ended the command itself (not something it started)."""
    stdout: bytes = b""
    """Head and tail around a note of the dropped bytes when longer than ``limits.output_bytes``."""
    stderr: bytes = b""
    """Like ``stdout``, with its own bound."""
    is_timed_out: bool = False
    is_truncated: bool = False
    """True when bytes of either stream were dropped."""
    is_out_of_memory: bool = False
    """True when the kernel ended a process of the command because the sandbox reached its memory bound. Only where
    control groups can be written; elsewhere an allocation fails inside of the program instead."""
    is_state_restored: bool = False
    """Sessions: the shell ended without saving its state (deadline, signal, ``exec``), so the next command starts with
    the working folder, variables and functions from before this one."""
    num_stdout_bytes: int = 0
    """Bytes written, including dropped ones."""
    num_stderr_bytes: int = 0
    duration_s: float = 0.0
    waited_s: float = 0.0
    """Part of ``duration_s`` in which the longest waiting process was ready but had no processor; a lower bound
    (:mod:`.guest.deadlines`), 0 where the kernel does not count."""
    cpu_s: float = 0.0
    """Processor time of the command and everything it started."""
    peak_memory_bytes: int | None = None
    """Most memory in use at once (control group); without one, that of the largest single process, with the trusted
    process it was forked from as the floor; None when the kernel does not report it."""

    @property
    def num_output_bytes(self) -> int:
        """Bytes written to both streams."""
        return self.num_stdout_bytes + self.num_stderr_bytes


# File names hold any bytes the kernel allows (as surrogate escapes), which validated records reject.
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
    """Target of a link, as written."""


class ShellSession(Protocol):
    """A shell that keeps its state between commands: working folder, variables, functions, aliases, options, ``$?``.

    A command ends with its shell, together with its background processes.
    """

    name: str

    @property
    def cwd(self) -> str:
        """Working folder inside the sandbox, as the shell reports it (untrusted)."""

    async def run(self, command: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        """Run ``command`` (bash) to its end or deadline; the session survives either.

        Commands of one session wait for each other.

        Raises:
            InputError: ``command`` has a NUL character.
            SandboxLostError: the sandbox is gone.
        """


class Snapshot(Protocol):
    """A frozen state of a sandbox: testbed, image, ``/tmp``, ``/dev/shm`` and shell sessions. Not processes.

    Independent of its sandbox, which may continue or be closed. Lives, and holds its bytes, until it or its back end is
    closed.
    """

    backend: str
    num_bytes: int
    """Bytes held beyond the previous snapshot of the same sandbox."""

    async def close(self) -> None:
        """Release its bytes; sandboxes made from it stay alive. Safe to call twice."""


class Sandbox(Protocol):
    """A live, isolated copy of a tree at ``/testbed``. Single use: close it and make another.

    Paths are relative to ``/testbed``. Every operation but `close` raises ``SandboxLostError`` when the sandbox is
    gone, ``PermissionError`` for a path that leads out of ``/testbed``, and ``SandboxContentError`` when what code
    inside wrote exceeds the bound that the operation names.
    """

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
        """Run a command to its end or deadline; the whole process tree dies with it."""

    async def run_python(self, text: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        """Run a program of ours in ``/testbed`` on the environment's interpreter, like a command.

        Where the back end has a loaded interpreter, the program runs in a fork of it, with the modules of pytest; the
        fork is made before ``stdin`` reaches the sandbox. The folder of the tree is not on ``sys.path``.
        """

    async def open_session(self, name: str = "main", env: dict[str, str] | None = None) -> ShellSession:
        """Return the shell session ``name``, made at the first call with the further variables ``env``."""

    async def run_tests(self, request: TestRequest) -> TestRun:
        """Run tests with the runner that ``request`` names."""

    async def read_file(self, path: str) -> bytes:
        """Return the content of ``path``, at most ``limits.disk_bytes``.

        Raises:
            FileNotFoundError: there is no such file.
        """

    async def write_file(self, path: str, content: bytes) -> None:
        """Write ``path`` and make its parent folders, in the room that earlier files leave.

        Raises:
            IsADirectoryError: ``path`` is there and is not a regular file.
            NotADirectoryError: a parent folder is a file.
        """

    async def changed_files(self) -> dict[str, bytes | None]:
        """Return the files that differ from the start (None: deleted), together at most ``limits.disk_bytes``.

        Files with holes can exceed that.
        """

    async def list_files(self, path: str = "", *, is_recursive: bool = True) -> tuple[FileEntry, ...]:
        """List the entries below the folder ``path``, sorted, at most 200 000; links are not followed.

        Raises:
            FileNotFoundError: there is no such folder.
            NotADirectoryError: ``path`` is not a folder.
        """

    async def diff(self) -> Diff:
        """Return the differences from the sandbox's start, as a patch and as records, at most 200 000 paths."""

    async def listen(self, port: int) -> socket.socket:
        """Return a socket that listens on ``port`` of the loopback interface inside.

        What connects to it in the sandbox reaches the process that holds it, and nothing else outside.

        Raises:
            SandboxError: the port is taken, or this back end has no such sockets.
        """

    async def snapshot(self) -> Snapshot:
        """Freeze the current state, in the room that the sandbox has; it continues above the snapshot.

        Raises:
            SandboxError: existing snapshots hold all allowed bytes, or this back end has no snapshots.
        """

    async def fork(self, count: int = 1) -> tuple[Sandbox, ...]:
        """Make ``count`` independent sandboxes that start from the current state, open sessions included.

        Their making may continue after the return: the first request to each waits for it, and raises
        ``SandboxError`` when it failed. Raises what `snapshot` raises.
        """

    async def close(self) -> None:
        """End every process and release every byte; safe to call twice."""


class SandboxBackend(Protocol):
    """A maker of sandboxes, with the resident processes that make it fast."""

    name: str

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """Make a sandbox, from ``snapshot`` when given (``spec`` then differs in its limits at most).

        Raises:
            InputError: no interpreter in the environment, no such tree, or a file outside of it; ``snapshot`` is
                closed, or belongs to another back end, environment, tree or other files.
            SandboxUnavailableError: this machine cannot provide this back end.
            SandboxError: the sandbox could not be made, or this back end has no snapshots.
        """

    async def close(self) -> None:
        """End all sandboxes and resident processes; safe to call twice."""
