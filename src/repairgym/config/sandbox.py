"""Sandbox settings: back end, bounds, layer store. No setting gives a sandbox a network."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from repairgym.records import Record


class SandboxLimits(Record):
    """Bounds of one sandbox."""

    memory_bytes: PositiveInt = 2 << 30
    """All memory of the sandbox (control group), and address space of one process of Python's tests (RLIMIT_AS); where
    control groups cannot be written, of every process."""
    num_processes: PositiveInt = 128
    """Processes and threads of one sandbox (RLIMIT_NPROC of its own user namespace)."""
    disk_bytes: PositiveInt = 256 << 20
    """All writes of a sandbox, held in memory: copy-on-write layer, ``/tmp`` and ``/dev/shm`` together."""
    file_bytes: PositiveInt = 64 << 20
    """Size of one file (RLIMIT_FSIZE)."""
    output_bytes: PositiveInt = 1 << 20
    """Captured bytes of each stream of a command; head and tail are kept."""


class ContainerConfig(Record):
    """Container engine of the ``container`` back end."""

    engine: Literal["auto", "podman", "docker"] = "auto"
    """``auto``: the first that answers, podman before docker."""
    runtime: str = ""
    """OCI runtime that the engine uses, e.g. ``runc``; empty: the engine's own choice."""
    start_timeout_s: float = Field(default=60.0, gt=0)
    """Bound on one command of the engine and on the start of one container."""


class SandboxConfig(Record):
    """Back end of sandboxes, and bounds on them."""

    backend: Literal["namespace", "bubblewrap", "container", "degraded", "auto"] = "auto"
    """``auto``: the first in this order that works on this machine."""
    is_degraded_allowed: bool = False
    """Allow the back end without namespaces, for task building and training."""
    is_degraded_evaluation_allowed: bool = False
    """Allow it for evaluation too; its results are not comparable with those of other machines."""
    limits: SandboxLimits = SandboxLimits()
    max_snapshot_bytes: PositiveInt | None = None
    """Total size of all snapshots of one back end (``namespace``: in memory, ``degraded``: on disk); not set: 4 GiB.
    The other back ends have no snapshots and reject this setting."""
    max_zygotes: int = Field(default=16, ge=1)
    """Resident interpreters, one per (environment, tree); the longest idle is evicted first."""
    shown_paths: tuple[str, ...] = ()
    """Absolute paths of this machine that sandboxes show read-only, in addition to programs, libraries and Python's
    standard library. Task agents can read them: name no folder with Python packages."""
    hidden_paths: tuple[str, ...] = ()
    """Absolute paths that sandboxes hide although they are shown otherwise."""
    bubblewrap: str = "bwrap"
    """Name or path of the program that the ``bubblewrap`` back end runs."""
    container: ContainerConfig = ContainerConfig()


class LayersConfig(Record):
    """Bounds and the network policy of the store of sdists, trees and environments."""

    max_bytes: PositiveInt = 20 << 30
    """Bytes of all layers together. Above it the least recently used are deleted, after a layer was built and by
    `repairgym doctor --collect-layers`."""
    min_idle_s: NonNegativeFloat = 86_400.0
    """Layers used within this time always stay, like those in use by a live process."""
    is_index_allowed: bool = True
    """Allow the configured package index for building layers. False: only files already on this machine."""
