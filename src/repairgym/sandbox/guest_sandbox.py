"""A sandbox on the host's side: each operation is one request to the trusted process inside.

Reads a :class:`~repairgym.sandbox.channel.Channel`, makes the results of :mod:`repairgym.sandbox.base`. Guarantees:
a failure of the sandbox is an exception, a failure of the code inside a result.
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from repairgym.diffs.make import Diff, FileVersion, make_diff
from repairgym.errors import InputError, SandboxError, SandboxLostError, SandboxUnavailableError
from repairgym.records import TestRequest, TestRun
from repairgym.sandbox.base import ExecResult, FileEntry, Sandbox, SandboxSpec, Snapshot
from repairgym.sandbox.branching import Brancher, SessionState, no_snapshots
from repairgym.sandbox.channel import GRACE_S, Channel
from repairgym.sandbox.guest import wire
from repairgym.sandbox.runs import assemble_run, run_by_command

GUEST_FOLDER = Path(__file__).parent / "guest"
"""The package that runs inside."""
_START_TIMEOUT_S = 120.0
_SIGNAL_STATUS = 128
_WALK_TIMEOUT_S = 120.0
"""Code inside decides how many files there are, up to a bound."""


async def start(channel: Channel, header: dict[str, Any], spec: SandboxSpec) -> dict[str, Any]:
    """Ask the trusted process behind ``channel`` to set the sandbox up; return its answer.

    ``spec.files`` raise ``InputError`` outside of the repository, ``SandboxContentError`` without room or place.
    """
    for path in spec.files:
        parts = PurePosixPath(path).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise InputError(f"got the path {path!r} in files, expected one below the repository, without '..'")
    request = {"op": "start", "files": spec.files, "limits": spec.limits.model_dump(), **header}
    try:
        answer, _ = await channel.request(request, timeout_s=_START_TIMEOUT_S)
    except OSError as error:
        raise SandboxError(f"the sandbox could not be set up: {error}") from error
    return answer


class GuestBackend:
    """The part that is the same in back ends whose sandboxes each have a trusted process of their own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._live: set[GuestSandbox] = set()

    async def _open(
        self,
        channel: Channel,
        header: dict[str, Any],
        spec: SandboxSpec,
        end: Callable[[], Awaitable[None]],
        brancher: Brancher | None = None,
        sessions: Mapping[str, SessionState] | None = None,
    ) -> tuple[Sandbox, dict[str, Any]]:
        """Set the sandbox behind ``channel`` up (see :func:`start`); return it with the answer of its trusted process.

        ``end`` is awaited when the sandbox is closed, or when this fails.
        """

        async def release() -> None:
            self._live.discard(sandbox)
            await end()

        try:
            answer = await start(channel, header, spec)
        except BaseException:
            channel.close()
            # Also where the caller is cancelled once more meanwhile.
            await asyncio.shield(asyncio.ensure_future(end()))
            raise
        sandbox = GuestSandbox(self.name, channel, bool(answer["has_pytest"]), release, brancher, sessions)
        self._live.add(sandbox)
        return sandbox, answer

    def _check(self, spec: SandboxSpec, snapshot: Snapshot | None) -> None:
        """Reject a missing tree, and a snapshot in a back end without snapshots."""
        if snapshot is not None:
            raise no_snapshots(self.name)
        if not spec.tree.is_dir():
            raise InputError(f"got the tree {spec.tree}, expected a folder")

    async def close(self) -> None:
        """End all sandboxes; safe to call twice."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)))


def reject_root(backend: str, spec: SandboxSpec) -> None:
    """Reject an image as root, for a back end that cannot mount its layers."""
    if spec.root is not None:
        raise SandboxUnavailableError(
            f"{backend} cannot have a container image as its root: use namespace (see 'repairgym doctor'), "
            "or a task that was built without its image"
        )


def reject_mounts(backend: str, spec: SandboxSpec) -> None:
    """Reject folders of this machine, for a root that they cannot be mounted in."""
    if spec.mounts:
        raise SandboxUnavailableError(
            f"{backend} cannot show {', '.join(spec.mounts)}: use namespace, without an image"
        )


def reject_links(backend: str, spec: SandboxSpec) -> None:
    """Reject links in the root, for a back end whose root is not ours."""
    if spec.links:
        raise SandboxUnavailableError(f"{backend} cannot make links in its root: use namespace or bubblewrap")


class GuestSession:
    """Implements :class:`~repairgym.sandbox.base.ShellSession` over a channel."""

    def __init__(self, name: str, channel: Channel, state: SessionState) -> None:
        self.name = name
        self._channel = channel
        self.state = state
        self._lock = asyncio.Lock()

    @property
    def cwd(self) -> str:
        """See :attr:`repairgym.sandbox.base.ShellSession.cwd`."""
        return self.state.cwd

    async def run(self, command: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        """See :meth:`repairgym.sandbox.base.ShellSession.run`."""
        if "\0" in command:
            raise InputError("got a command with a NUL character, which no shell can read; remove it")
        script = command.encode("utf-8", "surrogateescape")
        async with self._lock:
            state = self.state
            header = {"op": "session", "env": dict(state.env), "last_status": state.last_status}
            answer, (stdout, stderr, text) = await self._channel.run(header, [stdin, script, state.text], timeout_s)
            cwd = str(answer.pop("cwd"))
            result = ExecResult(stdout=stdout, stderr=stderr, **answer)
            status = result.exit_status
            last_status = _SIGNAL_STATUS + (result.signal or 9) if status is None else status
            if result.is_state_restored:
                text, cwd = state.text, state.cwd
            self.state = SessionState(state.env, text, cwd, last_status)
        return result


class GuestSandbox:
    """Implements :class:`~repairgym.sandbox.base.Sandbox` over a channel."""

    def __init__(
        self,
        backend: str,
        channel: Channel,
        has_pytest: bool,
        on_close: Callable[[], Awaitable[None]],
        brancher: Brancher | None = None,
        sessions: Mapping[str, SessionState] | None = None,
        listen: Callable[[int], Awaitable[socket.socket]] | None = None,
    ) -> None:
        """Make a sandbox over ``channel`` that resumes ``sessions``.

        ``on_close`` is awaited once, after the channel was closed; without ``brancher`` there are no snapshots, without
        ``listen`` no sockets.
        """
        self.backend = backend
        self._channel = channel
        self._has_pytest = has_pytest
        self._on_close = on_close
        self._closing: asyncio.Future[None] | None = None
        self._brancher = brancher
        self._listen = listen
        self._sessions = {name: GuestSession(name, channel, state) for name, state in (sessions or {}).items()}

    async def exec(
        self,
        argv: tuple[str, ...],
        *,
        timeout_s: float,
        cwd: str = "/testbed",
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """See :meth:`repairgym.sandbox.base.Sandbox.exec`; exit status 127 and 126 when ``argv`` cannot be run."""
        header = {"op": "exec", "argv": list(argv), "cwd": cwd, "env": env or {}}
        answer, (stdout, stderr) = await self._channel.run(header, [stdin], timeout_s)
        return ExecResult(stdout=stdout, stderr=stderr, **answer)

    async def run_python(self, text: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        """See :meth:`repairgym.sandbox.base.Sandbox.run_python`."""
        answer, (stdout, stderr) = await self._channel.run(
            {"op": "python", "text": text, "num_late": 1}, [stdin], timeout_s
        )
        return ExecResult(stdout=stdout, stderr=stderr, **answer)

    async def open_session(self, name: str = "main", env: dict[str, str] | None = None) -> GuestSession:
        """See :meth:`repairgym.sandbox.base.Sandbox.open_session`."""
        if self._closing is not None:
            raise SandboxLostError("the sandbox is closed; make another one")
        if name not in self._sessions:
            state = SessionState(env=tuple((env or {}).items()))
            self._sessions[name] = GuestSession(name, self._channel, state)
        return self._sessions[name]

    async def run_tests(self, request: TestRequest) -> TestRun:
        """See :meth:`repairgym.sandbox.base.Sandbox.run_tests`.

        A requested id that names a file, a class or a parametrized function stands for all its tests: its result is
        the worst of theirs, and they are listed too. An environment without pytest is a ``SandboxError``.
        """
        if not request.runner.is_signed:
            return await run_by_command(self, request)
        if request.runner.type == "pytest" and not self._has_pytest:
            raise SandboxError("the environment has no pytest; add it to the lock and build the environment again")
        late = [json.dumps(request.stop_ids).encode()] if request.stop_ids else []
        header = {"op": "tests", "is_cold": request.is_cold, "runner": request.runner.type, "num_late": len(late)}
        blobs = [request.model_dump_json(exclude={"stop_ids"}).encode(), *late]
        answer, (output, lines) = await self._channel.run(header, blobs, request.timeout_s)
        return assemble_run(request, answer, output=output, parsed=wire.parse_records(lines))

    async def read_file(self, path: str) -> bytes:
        """See :meth:`repairgym.sandbox.base.Sandbox.read_file`."""
        _, (content,) = await self._channel.request({"op": "read", "path": path}, timeout_s=GRACE_S)
        return content

    async def write_file(self, path: str, content: bytes) -> None:
        """See :meth:`repairgym.sandbox.base.Sandbox.write_file`."""
        await self._channel.request({"op": "write", "path": path}, [content], timeout_s=GRACE_S)

    async def changed_files(self) -> dict[str, bytes | None]:
        """See :meth:`repairgym.sandbox.base.Sandbox.changed_files`; regular files only, no byte-code, no caches."""
        answer, blobs = await self._channel.request({"op": "changed"}, timeout_s=_WALK_TIMEOUT_S)
        changes: dict[str, bytes | None] = dict.fromkeys(answer["deleted"])
        changes.update(zip(answer["present"], blobs, strict=True))
        return dict(sorted(changes.items()))

    async def list_files(self, path: str = "", *, is_recursive: bool = True) -> tuple[FileEntry, ...]:
        """See :meth:`repairgym.sandbox.base.Sandbox.list_files`."""
        header = {"op": "list", "path": path, "is_recursive": is_recursive}
        answer, _ = await self._channel.request(header, timeout_s=_WALK_TIMEOUT_S)
        return tuple(FileEntry(*entry) for entry in answer["entries"])

    async def diff(self) -> Diff:
        """See :meth:`repairgym.sandbox.base.Sandbox.diff`; files of more than 4 MiB are reported and left out."""
        answer, blobs = await self._channel.request({"op": "diff"}, timeout_s=_WALK_TIMEOUT_S)

        def version(kind: str, mode: int, num_bytes: int, index: int | None) -> FileVersion:
            return FileVersion(kind, mode, num_bytes, None if index is None else blobs[index])

        versions = [(path, version(*before), version(*after)) for path, before, after in answer["paths"]]
        # In a thread: the time is bounded, but long enough to hold up an event loop.
        return await asyncio.to_thread(make_diff, versions)

    async def listen(self, port: int) -> socket.socket:
        """See :meth:`repairgym.sandbox.base.Sandbox.listen`."""
        if self._listen is None:
            raise SandboxUnavailableError(f"{self.backend} opens no sockets in its sandboxes: use namespace")
        return await self._listen(port)

    async def snapshot(self) -> Snapshot:
        """See :meth:`repairgym.sandbox.base.Sandbox.snapshot`."""
        if self._brancher is None:
            raise no_snapshots(self.backend)
        sessions = self._sessions
        return await self._brancher.snapshot(self._channel, lambda: {name: s.state for name, s in sessions.items()})

    async def fork(self, count: int = 1) -> tuple[Sandbox, ...]:
        """See :meth:`repairgym.sandbox.base.Sandbox.fork`; all children or none."""
        snapshot = await self.snapshot()
        assert self._brancher is not None
        try:
            return await self._brancher.restore(snapshot, count)
        finally:
            await snapshot.close()

    async def close(self) -> None:
        """See :meth:`repairgym.sandbox.base.Sandbox.close`; the kernel cleans up after this returned.

        A cancelled call does not stop the cleaning up, and another call waits for its end.
        """
        if self._closing is None:
            self._channel.close()
            self._closing = asyncio.ensure_future(self._on_close())
        elif self._closing.done():
            return
        await asyncio.shield(self._closing)
