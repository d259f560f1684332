"""Snapshots and forks of sandboxes: the parts that back ends share.

Reads a sandbox, makes :class:`~repairgym.sandbox.base.Snapshot` objects and more sandboxes. Guarantees: a snapshot is
taken while nothing runs; the bytes of all snapshots of a back end are bounded; a closed snapshot makes no sandbox.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from repairgym.errors import InputError, SandboxError
from repairgym.sandbox.base import Sandbox, SandboxSpec, Snapshot
from repairgym.sandbox.channel import Channel

DEFAULT_BYTES = 4 << 30
"""Bound on the bytes of one back end's snapshots, unless configured."""


@dataclass(frozen=True)
class SessionState:
    """The state of a shell session between two commands, which snapshots and forks carry along; never interpreted."""

    env: tuple[tuple[str, str], ...] = ()
    """Variables of its first shell."""
    text: bytes = b""
    """Working folder, variables, functions and options as the last shell wrote them."""
    cwd: str = "/testbed"
    last_status: int = 0


SessionStates = Callable[[], Mapping[str, SessionState]]


class Brancher(Protocol):
    """A back end's way to take snapshots of one sandbox and make sandboxes from them."""

    async def snapshot(self, channel: Channel, sessions: SessionStates) -> Snapshot:
        """Freeze the sandbox behind ``channel``; ``sessions`` is called while nothing else can run."""

    async def restore(self, snapshot: Snapshot, count: int) -> tuple[Sandbox, ...]:
        """Make ``count`` sandboxes from ``snapshot``; all or none."""


class Quota:
    """The live snapshots of a back end, and the bound on their bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.snapshots: set[KeptSnapshot] = set()

    def check(self) -> None:
        """Raise ``SandboxError`` when existing snapshots hold all allowed bytes."""
        num_bytes = sum(snapshot.num_bytes for snapshot in self.snapshots)
        if num_bytes >= self._max_bytes:
            raise SandboxError(
                f"snapshots hold {num_bytes} bytes, at most {self._max_bytes} are allowed; close some of them"
            )


@dataclass(eq=False)
class KeptSnapshot:
    """Implements :class:`~repairgym.sandbox.base.Snapshot`; a member of ``quota`` until it is closed."""

    backend: str
    spec: SandboxSpec
    """Spec of the first sandbox of the line."""
    state: Any
    """Data from which the back end makes sandboxes."""
    sessions: Mapping[str, SessionState]
    """The shell sessions at the time of the snapshot."""
    num_bytes: int
    quota: Quota
    drop: Callable[[], Awaitable[None]]
    """Awaited once, at the close."""

    def __post_init__(self) -> None:
        self.quota.snapshots.add(self)

    async def close(self) -> None:
        """See :meth:`repairgym.sandbox.base.Snapshot.close`."""
        if self in self.quota.snapshots:
            self.quota.snapshots.remove(self)
            await self.drop()


def check_snapshot(backend: str, spec: SandboxSpec, snapshot: Snapshot) -> KeptSnapshot:
    """Return ``snapshot``; raise ``InputError`` when no sandbox of ``spec`` can start from it."""
    if not isinstance(snapshot, KeptSnapshot) or snapshot.backend != backend:
        raise InputError(f"got a snapshot of the back end {snapshot.backend!r}, expected one of {backend!r}")
    if snapshot not in snapshot.quota.snapshots:
        raise InputError("got a snapshot that is closed; take another one")
    kept = snapshot.spec
    if kept.model_copy(update={"limits": spec.limits}) != spec:
        raise InputError(
            "got a snapshot of another environment, tree, image, files, links or mounts; only the limits may differ"
        )
    return snapshot


def no_snapshots(backend: str) -> SandboxError:
    """Return the error of a back end without snapshots."""
    return SandboxError(f"the back end {backend!r} has no snapshots; make a new sandbox and apply a diff")
