"""Configuration of sandboxes: which back end, which bounds.

Reads nothing, makes :class:`SandboxConfig`. Invariants: the degraded back end is never chosen unless it is allowed, and
for an evaluation only when that is allowed too; no setting here gives a sandbox a network.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from repairgym.records import Record


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


class ContainerConfig(Record):
    """Which container engine makes the containers of the ``container`` back end."""

    engine: Literal["auto", "podman", "docker"] = "auto"
    """``auto``: the first one that answers, podman before docker."""
    runtime: str = ""
    """OCI runtime that the engine uses, e.g. ``runc``; empty: the engine's own choice."""
    start_timeout_s: float = Field(default=60.0, gt=0)
    """Bound on one command of the engine and on the start of one container."""


class SandboxConfig(Record):
    """Which back end makes sandboxes, and how large they may get."""

    backend: Literal["namespace", "bubblewrap", "container", "degraded", "auto"] = "auto"
    """``auto``: the first one in this order that works on this machine."""
    is_degraded_allowed: bool = False
    """Allow the back end that has no namespaces, to build tasks and to train."""
    is_degraded_evaluation_allowed: bool = False
    """Allow it for evaluation too; its results do not compare with those of other machines."""
    limits: SandboxLimits = SandboxLimits()
    max_snapshot_bytes: PositiveInt | None = None
    """What all snapshots of one back end may keep together (``namespace``: in memory, ``degraded``: on disk); not set:
    4 GiB. The other back ends have no snapshots, and refuse it."""
    max_zygotes: int = Field(default=16, ge=1)
    """Resident interpreters, one per (environment, tree); the longest idle one goes first."""
    bubblewrap: str = "bwrap"
    """Name or path of the program that the ``bubblewrap`` back end runs."""
    container: ContainerConfig = ContainerConfig()


class LayersConfig(Record):
    """Bounds and the network policy of the store of sdists, trees and environments."""

    max_bytes: PositiveInt = 20 << 30
    """Bytes of all layers together; above it the longest unused ones go, when a layer was built and when told
    (`repairgym doctor --collect-layers`)."""
    min_idle_s: NonNegativeFloat = 86_400.0
    """Layers used within this time stay, whatever the store holds; those in use by a live process always do."""
    is_index_allowed: bool = True
    """Building a layer may use the configured package index. False: only what this machine has already."""
