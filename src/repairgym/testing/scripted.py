"""Fakes for tests: a task without a repository, a sandbox back end in memory, a text model with scripted replies.

The sandbox holds files in memory, takes test runs from a function and fails on demand. It isolates nothing and runs
nothing, so no configuration can name it. In the task, ``f`` in ``m.py`` compares with ``<`` where ``<=`` is right;
`scripted_answer` judges it by its text, without running it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from repairgym.diffs.make import Diff, FileVersion, make_diff
from repairgym.errors import InputError, RepairGymError, SandboxError, SandboxUnavailableError
from repairgym.records import (
    Certificate,
    Environment,
    Location,
    Provenance,
    Task,
    TestOutcome,
    TestRequest,
    TestResult,
    TestRun,
)
from repairgym.sandbox.base import ExecResult, FileEntry, SandboxSpec, Snapshot

Files = dict[str, str | None]
Answer = Callable[[Files, TestRequest], TestRun]


def scripted_task(task_id: str = "tiny-1", **changes: Any) -> Task:
    """Make a training task whose repair is one token; ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "source": "mutations",
        "provenance": Provenance(package="tiny", version="1", sdist_sha256=""),
        "issue": "f in m.py is wrong: assert False",
        "base_tree": "",
        "base_files": {"m.py": "def f(a, b):\n    return a < b\n"},
        "environment": Environment(lock="", python="3.11", digest=""),
        "visible_tests": ("test_m.py::test_f",),
        "fail_to_pass": ("test_m.py::test_f",),
        "pass_to_pass": (),
        "test_paths": ("test_m.py",),
        "gold_files": {"m.py": "def f(a, b):\n    return a <= b\n"},
        "gold_patch": "",
        "location": Location(path="m.py", name="f", first_line=1, last_line=2),
        "split": "train",
        "certificate": Certificate(num_empty_runs=3, num_empty_failed=3, num_gold_runs=3, num_gold_passed=3),
    }
    return Task(id=task_id, **(fields | changes))


def scripted_answer(message: str = "") -> Answer:
    """Return an answer: every test passes when ``m.py`` has the right comparison, else fails with ``message``."""

    def answer(files: Files, request: TestRequest) -> TestRun:
        outcome = TestOutcome.PASSED if "<=" in (files.get("m.py") or "") else TestOutcome.FAILED
        results = {name: TestResult(outcome=outcome, message=message) for name in request.test_ids}
        return TestRun(results=results, exit_status=0)

    return answer


@dataclass
class ScriptedSession:
    """A session that runs nothing."""

    name: str
    cwd: str = "/testbed"

    async def run(self, command: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        """Succeed, unless the command is ``false``."""
        return ExecResult(exit_status=int(command.strip() == "false"))


@dataclass
class ScriptedSnapshot:
    """The files at the time of the snapshot."""

    files: Files
    base: Files
    backend: str = "scripted"
    num_bytes: int = 0

    async def close(self) -> None:
        """Do nothing."""


class ScriptedSandbox:
    """The files of a spec and their later changes."""

    backend = "scripted"

    def __init__(self, files: Files, answer: Answer, base: Files | None = None) -> None:
        """``base``: the files at the start, when they differ from ``files``."""
        self.files = dict(files)
        self._base = dict(files if base is None else base)
        self._answer = answer
        self.is_closed = False

    async def exec(
        self,
        argv: tuple[str, ...],
        *,
        timeout_s: float,
        cwd: str = "/testbed",
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Succeed, unless the command is ``false``, which prints its arguments."""
        is_false = argv[:1] == ("false",)
        return ExecResult(exit_status=int(is_false), stdout=" ".join(argv[1:]).encode() if is_false else b"")

    async def run_python(self, text: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        """Succeed."""
        return ExecResult(exit_status=0)

    async def run_tests(self, request: TestRequest) -> TestRun:
        """Return the answer function's run of the files."""
        return self._answer(self.files, request)

    async def read_file(self, path: str) -> bytes:
        """Return the content of a known file."""
        text = self.files.get(path)
        if text is None:
            raise FileNotFoundError(path)
        return text.encode()

    async def write_file(self, path: str, content: bytes) -> None:
        """Store a file."""
        self.files[path] = content.decode()

    async def changed_files(self) -> dict[str, bytes | None]:
        """Return the files that differ from the spec's."""
        changed = {path: text for path, text in self.files.items() if self._base.get(path) != text}
        return {path: None if text is None else text.encode() for path, text in changed.items()}

    async def open_session(self, name: str = "main", env: dict[str, str] | None = None) -> ScriptedSession:
        """Return a session that runs nothing."""
        return ScriptedSession(name)

    async def list_files(self, path: str = "", *, is_recursive: bool = True) -> tuple[FileEntry, ...]:
        """List the known files below ``path``, without folders."""
        prefix = f"{path}/" if path else ""
        below = {name: text for name, text in self.files.items() if text is not None and name.startswith(prefix)}
        return tuple(
            FileEntry(name, "file", 0o644, len(text.encode()))
            for name, text in sorted(below.items())
            if is_recursive or "/" not in name[len(prefix) :]
        )

    async def diff(self) -> Diff:
        """Return the differences from the spec's files."""

        def version(text: str | None) -> FileVersion:
            content = None if text is None else text.encode()
            return FileVersion("") if content is None else FileVersion("file", 0o644, len(content), content)

        changed = sorted(path for path, text in self.files.items() if self._base.get(path) != text)
        return make_diff([(path, version(self._base.get(path)), version(self.files[path])) for path in changed])

    async def listen(self, port: int) -> socket.socket:
        """Raise: nothing runs in this sandbox."""
        raise SandboxUnavailableError("a scripted sandbox has no network")

    async def snapshot(self) -> ScriptedSnapshot:
        """Copy the current files."""
        return ScriptedSnapshot(dict(self.files), dict(self._base))

    async def fork(self, count: int = 1) -> tuple[ScriptedSandbox, ...]:
        """Make sandboxes with the same files."""
        return tuple(ScriptedSandbox(self.files, self._answer, self._base) for _ in range(count))

    async def close(self) -> None:
        """Mark as closed."""
        self.is_closed = True


class ScriptedBackend:
    """A maker of `ScriptedSandbox` objects; the first ``num_failures`` attempts fail."""

    name = "scripted"

    def __init__(self, answer: Answer, num_failures: int = 0) -> None:
        self._answer = answer
        self.num_failures = num_failures
        self.sandboxes: list[ScriptedSandbox] = []

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> ScriptedSandbox:
        """Make a sandbox over the files of ``spec`` or ``snapshot``.

        Raises:
            InputError: the snapshot is another back end's.
            SandboxError: ``num_failures`` times.
        """
        if self.num_failures > 0:
            self.num_failures -= 1
            raise SandboxError("told to fail")
        if snapshot is None:
            self.sandboxes.append(ScriptedSandbox(spec.files, self._answer))
        elif isinstance(snapshot, ScriptedSnapshot):
            self.sandboxes.append(ScriptedSandbox(snapshot.files, self._answer, snapshot.base))
        else:
            raise InputError(f"got a snapshot of the back end {snapshot.backend!r}, expected a scripted one")
        return self.sandboxes[-1]

    async def close(self) -> None:
        """Close every sandbox."""
        for sandbox in self.sandboxes:
            await sandbox.close()


class ScriptedTextModel:
    """A text model with replies from a list, the last one repeated; an error is raised, None never returns."""

    id = "scripted"

    def __init__(self, replies: Sequence[str | RepairGymError | None]) -> None:
        """Take the replies; ``{code}`` stands for the word that the question requires at the start of the answer."""
        self._replies = list(replies)
        self.questions: list[str] = []

    async def reply(self, question: str, *, max_tokens: int, seed: int) -> str:
        """Return the next reply."""
        reply = self._replies[min(len(self.questions), len(self._replies) - 1)]
        self.questions.append(question)
        if reply is None:
            await asyncio.Event().wait()
        if isinstance(reply, RepairGymError):
            raise reply
        code = question.rpartition("ANSWER-")[2].partition(" ")[0]
        return str(reply).replace("{code}", f"ANSWER-{code}")
