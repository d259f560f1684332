"""Snapshots and forks of sandboxes, whatever a back end makes them from.

Reads a sandbox, makes :class:`~repairgym.sandbox.base.Snapshot` objects and more sandboxes. Invariants: a snapshot is
taken while nothing runs; the bytes that all snapshots of a back end keep are bounded; what is closed can be made into
nothing any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from repairgym.errors import InputError, SandboxError
from repairgym.sandbox.base import Sandbox, SandboxBackend, SandboxSpec, Snapshot
from repairgym.sandbox.channel import Channel
from repairgym.sandbox.session import SessionState

DEFAULT_BYTES = 4 << 30
"""What the snapshots of one back end may keep, unless the configuration says otherwise."""
SessionStates = Callable[[], Mapping[str, SessionState]]


class Brancher(Protocol):
    """How a back end takes snapshots of one sandbox and makes sandboxes from them."""

    async def snapshot(self, channel: Channel, sessions: SessionStates) -> Snapshot:
        """Freeze the sandbox behind ``channel``; ``sessions`` is asked while nothing else can run."""
        ...

    async def restore(self, snapshot: Snapshot, count: int) -> tuple[Sandbox, ...]:
        """``count`` new sandboxes like the one that ``snapshot`` was taken from; all or none."""
        ...


class Quota:
    """The bytes that snapshots keep together."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0

    def check(self) -> None:
        """Refuse when there is no room for another one.

        Raises:
            SandboxError: the snapshots that exist keep all there is.
        """
        if self.num_bytes >= self._max_bytes:
            raise SandboxError(
                f"snapshots keep {self.num_bytes} bytes, at most {self._max_bytes} are allowed; close some of them"
            )


class KeptSnapshot:
    """Implements :class:`~repairgym.sandbox.base.Snapshot`.

    Attributes:
        spec: What the first sandbox of the line was made from.
        state: What the back end makes sandboxes from.
        sessions: The shell sessions as they were.
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
        """``drop`` is awaited once, when the snapshot is closed."""
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
    """``snapshot`` when a sandbox of ``spec`` can be made from it.

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


def refuse_snapshot(backend: str, snapshot: Snapshot | None) -> None:
    """For back ends without snapshots.

    Raises:
        SandboxError: a snapshot was given.
    """
    if snapshot is not None:
        raise SandboxError(f"the back end {backend!r} has no snapshots; make a new sandbox and apply a diff")


async def create_all(backend: SandboxBackend, spec: SandboxSpec, snapshot: Snapshot, count: int) -> tuple[Sandbox, ...]:
    """``count`` sandboxes from ``snapshot``, made at once; all or none."""
    calls = (backend.create(spec, snapshot=snapshot) for _ in range(count))
    made = await asyncio.gather(*calls, return_exceptions=True)
    errors = [result for result in made if isinstance(result, BaseException)]
    children = [result for result in made if not isinstance(result, BaseException)]
    if errors:
        await asyncio.gather(*(child.close() for child in children))
        raise errors[0]
    return tuple(children)
