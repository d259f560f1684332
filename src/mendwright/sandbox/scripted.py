"""A sandbox back end for tests: files in memory, test runs from a function, failures on demand.

Isolates nothing and runs nothing, so it is not among the back ends that a config can name.
"""

from __future__ import annotations

from collections.abc import Callable

from mendwright.errors import SandboxError
from mendwright.records import TestRequest, TestRun
from mendwright.sandbox.base import ExecResult, SandboxSpec

Files = dict[str, str | None]
Answer = Callable[[Files, TestRequest], TestRun]


class ScriptedSandbox:
    """Holds the files of its spec and what was written since."""

    backend = "scripted"

    def __init__(self, files: Files, answer: Answer) -> None:
        self.files = dict(files)
        self._base = dict(files)
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
        """Succeeds, unless the command is ``false``."""
        return ExecResult(exit_status=int(argv[:1] == ("false",)))

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

    async def create(self, spec: SandboxSpec) -> ScriptedSandbox:
        """A sandbox over the files of ``spec``.

        Raises:
            SandboxError: as often as it was told to.
        """
        if self.num_failures > 0:
            self.num_failures -= 1
            raise SandboxError("told to fail")
        self.sandboxes.append(ScriptedSandbox(spec.files, self._answer))
        return self.sandboxes[-1]

    async def close(self) -> None:
        """Close every sandbox."""
        for sandbox in self.sandboxes:
            await sandbox.close()
