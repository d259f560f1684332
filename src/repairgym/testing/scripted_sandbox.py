"""A sandbox back end for tests: files in memory, test runs from a function, failures on demand.

Isolates nothing and runs nothing, so it is not among the back ends that a config can name.
"""

from __future__ import annotations

from collections.abc import Callable

from repairgym.diffs.make import Diff, FileVersion, make_diff
from repairgym.errors import InputError, SandboxError
from repairgym.records import TestRequest, TestRun
from repairgym.sandbox.base import ExecResult, FileEntry, SandboxSpec, Snapshot

Files = dict[str, str | None]
Answer = Callable[[Files, TestRequest], TestRun]


class ScriptedSession:
    """A session that runs nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cwd = "/testbed"

    async def run(self, command: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        """Succeeds, unless the command is ``false``."""
        return ExecResult(exit_status=int(command.strip() == "false"))


class ScriptedSnapshot:
    """Holds the files as they were."""

    backend = "scripted"
    num_bytes = 0

    def __init__(self, files: Files, base: Files) -> None:
        self.files = dict(files)
        self.base = dict(base)

    async def close(self) -> None:
        """Nothing to give up."""


class ScriptedSandbox:
    """Holds the files of its spec and what was written since."""

    backend = "scripted"

    def __init__(self, files: Files, answer: Answer, base: Files | None = None) -> None:
        """``base``: the files at the start, when they were others."""
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
        """Succeeds, unless the command is ``false``, which prints its arguments."""
        is_false = argv[:1] == ("false",)
        return ExecResult(exit_status=int(is_false), stdout=" ".join(argv[1:]).encode() if is_false else b"")

    async def run_tests(self, request: TestRequest) -> TestRun:
        """What the answer function says about the files."""
        return self._answer(self.files, request)

    async def read_file(self, path: str) -> bytes:
        """Content of a known file."""
        text = self.files.get(path)
        if text is None:
            raise FileNotFoundError(path)
        return text.encode()

    async def write_file(self, path: str, content: bytes) -> None:
        """Remember a file."""
        self.files[path] = content.decode()

    async def changed_files(self) -> dict[str, bytes | None]:
        """Files that differ from the spec's."""
        changed = {path: text for path, text in self.files.items() if self._base.get(path) != text}
        return {path: None if text is None else text.encode() for path, text in changed.items()}

    async def open_session(self, name: str = "main", env: dict[str, str] | None = None) -> ScriptedSession:
        """A session that runs nothing."""
        return ScriptedSession(name)

    async def list_files(self, path: str = "", *, is_recursive: bool = True) -> tuple[FileEntry, ...]:
        """Known files below ``path``; no folders."""
        prefix = f"{path}/" if path else ""
        found = {name: text for name, text in self.files.items() if text is not None and name.startswith(prefix)}
        return tuple(
            FileEntry(name, "file", 0o644, len(text.encode()))
            for name, text in sorted(found.items())
            if is_recursive or "/" not in name[len(prefix) :]
        )

    async def diff(self) -> Diff:
        """What differs from the spec's files."""

        def version(text: str | None) -> FileVersion:
            content = None if text is None else text.encode()
            return FileVersion("") if content is None else FileVersion("file", 0o644, len(content), content)

        changed = sorted(path for path, text in self.files.items() if self._base.get(path) != text)
        return make_diff([(path, version(self._base.get(path)), version(self.files[path])) for path in changed])

    async def snapshot(self) -> ScriptedSnapshot:
        """The files as they are."""
        return ScriptedSnapshot(self.files, self._base)

    async def fork(self, count: int = 1) -> tuple[ScriptedSandbox, ...]:
        """Sandboxes with the same files."""
        return tuple(ScriptedSandbox(self.files, self._answer, self._base) for _ in range(count))

    async def close(self) -> None:
        """Mark as closed."""
        self.is_closed = True


class ScriptedBackend:
    """Makes `ScriptedSandbox` objects; the first ``num_failures`` attempts fail."""

    name = "scripted"

    def __init__(self, answer: Answer, num_failures: int = 0) -> None:
        self._answer = answer
        self.num_failures = num_failures
        self.sandboxes: list[ScriptedSandbox] = []

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> ScriptedSandbox:
        """A sandbox over the files of ``spec`` or ``snapshot``.

        Raises:
            InputError: the snapshot is another back end's.
            SandboxError: as often as it was told to.
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
