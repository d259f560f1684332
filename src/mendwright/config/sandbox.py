"""Configuration of sandboxes: which back end, which bounds.

Reads nothing, makes :class:`SandboxConfig`. Invariant: the degraded back end is never chosen unless it is allowed.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from mendwright.records import Record


class SandboxLimits(Record):
    """Bounds of one sandbox."""

    memory_bytes: PositiveInt = 2 << 30
    """Address space of one process (RLIMIT_AS)."""
    num_processes: PositiveInt = 128
    """Processes and threads of one sandbox (RLIMIT_NPROC of its own user namespace)."""
    disk_bytes: PositiveInt = 256 << 20
    """Everything a sandbox writes: the copy-on-write upper, ``/tmp`` and ``/dev/shm`` together; it lies in memory."""
    file_bytes: PositiveInt = 64 << 20
    """Size of one file (RLIMIT_FSIZE)."""
    output_bytes: PositiveInt = 1 << 20
    """Captured bytes of each stream of a command; head and tail are kept."""


class SandboxConfig(Record):
    """Which back end makes sandboxes, and how large they may get."""

    backend: Literal["namespace", "degraded", "auto"] = "auto"
    """``auto``: the first one that works on this machine."""
    is_degraded_allowed: bool = False
    """Allow the back end that does not isolate. Never for evaluation."""
    limits: SandboxLimits = SandboxLimits()
    max_zygotes: int = Field(default=16, ge=1)
    """Resident interpreters, one per (environment, tree); the longest idle one goes first."""
