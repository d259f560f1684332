"""Infrastructure that fails at random: sandboxes that start late or never, hang, vanish, or find no room on the host.

Reads a `FaultPlan`; makes a back end with the interface of the real ones. Sandboxes sleep instead of computing.
Guarantees: every operation but the end can fail; a fault is a `SandboxError`, as the contract of back ends says, or a
clock that lies; a lost sandbox answers nothing any more; an attempt of an episode draws the same faults in every run
with an equal seed, whichever process runs it (whom a storm hits depends on the time). `scripts/inject_faults.py` runs
the control plane over it.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repairgym.diffs.make import Diff
from repairgym.errors import SandboxError, SandboxLostError
from repairgym.records import Record, TestRequest, TestRun
from repairgym.sandbox.base import ExecResult, FileEntry, SandboxSpec, Snapshot
from repairgym.testing.scripted import (
    Answer,
    Files,
    ScriptedBackend,
    ScriptedSandbox,
    ScriptedSession,
    ScriptedSnapshot,
    scripted_answer,
)

_SKEW_S = 1e7


class FaultPlan(Record):
    """Chances of each fault, and the seconds that things take."""

    storm: float = 0.002
    """Of a sandbox start: it fails, and so do all others of its process within ``storm_s``."""
    storm_s: float = 1.0
    slow_start: float = 0.01
    """Of a start: it takes ``hang_s`` and succeeds."""
    hang: float = 0.003
    """Of a request to a sandbox: no answer for ``hang_s``, then the sandbox is gone."""
    lost: float = 0.003
    """Of a request: the sandbox is gone at once."""
    no_space: float = 0.002
    """Of a request: the host's disk is full."""
    skew: float = 0.1
    """Of a test run: its clock was set, forwards or back."""
    server_down: float = 0.002
    """Of an action: the model's server answers 503 in all attempts of its client."""
    log_full: float = 0.0
    """Of a record of the turn log: the run's disk is full, which ends the run until somebody makes room."""
    killed: float = 0.0
    """Of an action: its worker process is killed."""
    work_s: float = 0.002
    """Sleep of each request and each action."""
    hang_s: float = 0.5
    max_idle: int = 24
    """Longest detour of an episode, in pairs of a change and a test; most are short."""
    seed: int = 0


_draws: ContextVar[random.Random | None] = ContextVar("draws", default=None)


class Faults:
    """The draws of one process: a stream for each attempt of an episode, and one for what belongs to none."""

    def __init__(self, plan: FaultPlan, folder: Path | None = None) -> None:
        """Count attempts in ``folder``, a file per episode, where other processes continue them."""
        self.plan = plan
        self._random = random.Random(plan.seed)
        self._folder = folder
        self._num_attempts = Counter[str]()
        self._stormy_until_s = 0.0

    def begin(self, episode_id: str) -> None:
        """Begin the stream of the next attempt of an episode, for what is drawn in this context from now on."""
        self._num_attempts[episode_id] += 1
        attempt = self._num_attempts[episode_id]
        if self._folder is not None:
            with (self._folder / episode_id.replace("/", ".")).open("ab") as file:
                file.write(b".")
                attempt = file.tell()
        _draws.set(random.Random(f"{self.plan.seed}:{episode_id}:{attempt}"))

    def hits(self, chance: float) -> bool:
        """Draw once."""
        return (_draws.get() or self._random).random() < chance

    async def start(self) -> None:
        """Take the time of a sandbox's start; `SandboxError` in a storm."""
        plan = self.plan
        is_first = self.hits(plan.storm)
        if is_first:
            self._stormy_until_s = time.monotonic() + plan.storm_s
        await asyncio.sleep(plan.hang_s if self.hits(plan.slow_start) else plan.work_s)
        if is_first or time.monotonic() < self._stormy_until_s:
            raise SandboxError("the spawner did not answer: too many starts")

    async def request(self) -> None:
        """Take the time of a request; `SandboxError` where the sandbox or its host fails."""
        plan = self.plan
        await asyncio.sleep(plan.work_s)
        if self.hits(plan.hang):
            await asyncio.sleep(plan.hang_s)
            raise SandboxLostError(f"no answer in {plan.hang_s:g} s")
        if self.hits(plan.lost):
            raise SandboxLostError("connection lost")
        if self.hits(plan.no_space):
            raise SandboxError("no space left on the host")

    def skewed(self, seconds: float) -> float:
        """Return ``seconds``, sometimes by a clock that was set meanwhile."""
        if not self.hits(self.plan.skew):
            return seconds
        return seconds + (_SKEW_S if self.hits(0.5) else -_SKEW_S)


@dataclass
class FaultySession(ScriptedSession):
    """A session of a sandbox that can fail."""

    request: Callable[[], Awaitable[None]] = field(kw_only=True)

    async def run(self, command: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        """Fail, or do as a scripted one."""
        await self.request()
        return await super().run(command, timeout_s=timeout_s, stdin=stdin)


class FaultySandbox(ScriptedSandbox):
    """A scripted sandbox that can hang, vanish, or run out of its host's disk; one that is gone stays gone."""

    def __init__(self, files: Files, answer: Answer, faults: Faults, base: Files | None = None) -> None:
        super().__init__(files, answer, base)
        self._faults = faults
        self._is_lost = False

    async def exec(self, argv: tuple[str, ...], **options: Any) -> ExecResult:
        """Fail, or do as a scripted one."""
        await self._request()
        return await super().exec(argv, **options)

    async def run_python(self, text: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        """Fail, or do as a scripted one."""
        await self._request()
        return await super().run_python(text, timeout_s=timeout_s, stdin=stdin)

    async def run_tests(self, request: TestRequest) -> TestRun:
        """Fail, or do as a scripted one, with seconds of any clock."""
        await self._request()
        run = await super().run_tests(request)
        return run.model_copy(update={"duration_s": self._faults.skewed(run.duration_s)})

    async def read_file(self, path: str) -> bytes:
        """Fail, or do as a scripted one."""
        await self._request()
        return await super().read_file(path)

    async def write_file(self, path: str, content: bytes) -> None:
        """Fail, or do as a scripted one."""
        await self._request()
        await super().write_file(path, content)

    async def changed_files(self) -> dict[str, bytes | None]:
        """Fail, or do as a scripted one."""
        await self._request()
        return await super().changed_files()

    async def open_session(self, name: str = "main", env: dict[str, str] | None = None) -> ScriptedSession:
        """Fail, or return a session that can fail."""
        await self._request()
        return FaultySession(name, request=self._request)

    async def list_files(self, path: str = "", *, is_recursive: bool = True) -> tuple[FileEntry, ...]:
        """Fail, or do as a scripted one."""
        await self._request()
        return await super().list_files(path, is_recursive=is_recursive)

    async def diff(self) -> Diff:
        """Fail, or do as a scripted one."""
        await self._request()
        return await super().diff()

    async def listen(self, port: int) -> socket.socket:
        """Fail, or do as a scripted one."""
        await self._request()
        return await super().listen(port)

    async def snapshot(self) -> ScriptedSnapshot:
        """Fail, or do as a scripted one."""
        await self._request()
        return await super().snapshot()

    async def fork(self, count: int = 1) -> tuple[ScriptedSandbox, ...]:
        """Fail, or make sandboxes that can fail."""
        await self._request()
        return tuple(FaultySandbox(self.files, self._answer, self._faults, self._base) for _ in range(count))

    async def _request(self) -> None:
        if self._is_lost:
            raise SandboxLostError("the sandbox is gone")
        try:
            await self._faults.request()
        except SandboxLostError:
            self._is_lost = True
            raise


class FaultyBackend(ScriptedBackend):
    """A maker of faulty sandboxes."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(scripted_answer())
        self._faults = faults

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> ScriptedSandbox:
        """Fail, or make a sandbox as `ScriptedBackend` does."""
        await self._faults.start()
        made = await super().create(spec, snapshot=snapshot)
        self.sandboxes.clear()
        return FaultySandbox(made.files, scripted_answer(), self._faults, base=spec.files)
