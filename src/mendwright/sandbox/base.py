"""What a sandbox is: the protocol that every back end implements and every caller relies on.

A back end makes throw-away copies of a pinned tree in which untrusted code runs. Trouble of the sandbox itself is a
:class:`~mendwright.errors.SandboxError`; whatever the code inside does (crash, time out, print rubbish) is a result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from mendwright.config.sandbox import SandboxLimits
from mendwright.records import Record, TestRequest, TestRun

__all__ = ["ExecResult", "Sandbox", "SandboxBackend", "SandboxLimits", "SandboxSpec"]


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
    """None when killed by a signal or not ended in time."""
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    is_timed_out: bool = False
    is_truncated: bool = False
    num_output_bytes: int = 0
    duration_s: float = 0.0


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

    async def run_tests(self, request: TestRequest) -> TestRun:
        """Run tests by the project's own pytest runner.

        Raises:
            SandboxLostError: the sandbox is gone.
        """
        ...

    async def read_file(self, path: str) -> bytes:
        """Content of ``path`` (relative to ``/testbed``).

        Raises:
            FileNotFoundError: there is no such file.
            PermissionError: the path leads out of ``/testbed``.
        """
        ...

    async def write_file(self, path: str, content: bytes) -> None:
        """Write ``path`` (relative to ``/testbed``), making parent folders.

        Raises:
            PermissionError: the path leads out of ``/testbed``.
        """
        ...

    async def changed_files(self) -> dict[str, bytes | None]:
        """Files that differ from the sandbox's start (None: deleted)."""
        ...

    async def close(self) -> None:
        """End every process and drop every byte; safe to call twice."""
        ...


class SandboxBackend(Protocol):
    """Makes sandboxes; holds the resident processes that make them fast."""

    name: str

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A fresh sandbox.

        Raises:
            SandboxUnavailableError: this machine cannot provide this back end.
            SandboxError: the sandbox could not be made.
        """
        ...

    async def close(self) -> None:
        """End all sandboxes and resident processes; safe to call twice."""
        ...
