"""Snapshots and forks of sandboxes: the parts that back ends share.

Reads a sandbox, makes :class:`~repairgym.sandbox.base.Snapshot` objects and more sandboxes. Guarantees: a snapshot is
taken while nothing runs; the bytes of all snapshots of a back end are bounded; a closed snapshot makes no sandbox.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from repairgym.errors import InputError, SandboxError
from repairgym.sandbox.base import Sandbox, SandboxBackend, SandboxSpec, Snapshot
from repairgym.sandbox.channel import Channel

DEFAULT_BYTES = 4 << 30
"""Bound on the bytes of one back end's snapshots, unless configured."""


@dataclass(frozen=True)
class SessionState:
    """The state of a shell session between two commands.

    The host holds it, so snapshots and forks carry sessions along. It is only sent back into a sandbox, never
    interpreted.
    """

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
        ...

    async def restore(self, snapshot: Snapshot, count: int) -> tuple[Sandbox, ...]:
        """Make ``count`` sandboxes from ``snapshot``; all or none."""
        ...


class Quota:
    """The bytes of all snapshots of a back end, and their bound."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0

    def check(self) -> None:
        """Check that there is room for another snapshot.

        Raises:
            SandboxError: existing snapshots hold all allowed bytes.
        """
        if self.num_bytes >= self._max_bytes:
            raise SandboxError(
                f"snapshots hold {self.num_bytes} bytes, at most {self._max_bytes} are allowed; close some of them"
            )


class KeptSnapshot:
    """Implements :class:`~repairgym.sandbox.base.Snapshot`.

    Attributes:
        spec: Spec of the first sandbox of the line.
        state: Data from which the back end makes sandboxes.
        sessions: The shell sessions at the time of the snapshot.
    """

    def __init__(
        self,
        backend: str,
        spec: SandboxSpec,
        state: Any,
        sessions: Mapping[str, SessionState],
        num_bytes: int,
        quota: Quota,
        drop: Callable[[], Awaitable[None]],
    ) -> None:
        """Take bytes from ``quota``; ``drop`` is awaited once, at the close."""
        self.backend = backend
        self.spec = spec
        self.state = state
        self.sessions = dict(sessions)
        self.num_bytes = num_bytes
        self._quota = quota
        self._drop = drop
        self.is_closed = False
        quota.num_bytes += num_bytes

    async def close(self) -> None:
        """See :meth:`repairgym.sandbox.base.Snapshot.close`."""
        if not self.is_closed:
            self.is_closed = True
            self._quota.num_bytes -= self.num_bytes
            await self._drop()


def check_snapshot(backend: str, spec: SandboxSpec, snapshot: Snapshot) -> KeptSnapshot:
    """Return ``snapshot`` when a sandbox of ``spec`` can start from it.

    Raises:
        InputError: it cannot.
    """
    if not isinstance(snapshot, KeptSnapshot) or snapshot.backend != backend:
        raise InputError(f"got a snapshot of the back end {snapshot.backend!r}, expected one of {backend!r}")
    if snapshot.is_closed:
        raise InputError("got a snapshot that is closed; take another one")
    kept = snapshot.spec
    if (kept.environment, kept.tree, kept.files) != (spec.environment, spec.tree, spec.files):
        raise InputError("got a snapshot of another environment, tree or files; only the limits may differ")
    return snapshot


def reject_snapshot(backend: str, snapshot: Snapshot | None) -> None:
    """Reject a snapshot, for back ends without snapshots.

    Raises:
        SandboxError: a snapshot was given.
    """
    if snapshot is not None:
        raise SandboxError(f"the back end {backend!r} has no snapshots; make a new sandbox and apply a diff")


async def create_all(backend: SandboxBackend, spec: SandboxSpec, snapshot: Snapshot, count: int) -> tuple[Sandbox, ...]:
    """Make ``count`` sandboxes from ``snapshot`` concurrently; all or none."""
    calls = (backend.create(spec, snapshot=snapshot) for _ in range(count))
    made = await asyncio.gather(*calls, return_exceptions=True)
    errors = [result for result in made if isinstance(result, BaseException)]
    children = [result for result in made if not isinstance(result, BaseException)]
    if errors:
        await asyncio.gather(*(child.close() for child in children))
        raise errors[0]
    return tuple(children)
