"""The files of one episode, as the agent sees them, with a sandbox that starts only when something must run.

Reads the pinned tree and the task's `base_files`; keeps the agent's changes. Guarantees: however a path is written
(`real_path`), it is one file with one change, and the pinned text of a file of `base_files` is never read. `read`
returns the content of the sandbox once `refresh` was awaited after the last command: changes made before the sandbox
starts are written into it, later ones are written through, and changes of commands are read back. Episodes that never
run anything cost no sandbox. Files that commands make and that are no UTF-8 text, or hold a NUL, are in no change.
"""

import asyncio
import hashlib
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from repairgym.sandbox.base import ExecResult, Sandbox, Snapshot, can_be_path, is_encodable

Files = dict[str, str | None]
"""Relative path -> text, None: absent."""
ForkSandbox = Callable[[Files, Snapshot], Awaitable[Sandbox]]
"""Makes a sandbox from a snapshot of one that began with the given files."""


@dataclass(frozen=True)
class WorkspaceState:
    """A workspace at one moment."""

    changes: Files
    first_changes: Files
    """Changes that were written before the sandbox started."""
    cwd: str
    snapshot: Snapshot | None
    """Of the sandbox; None: it had none. Whoever keeps the state closes it."""
    history: str = ""
    """Digest of the commands that ran in the sandbox; empty: none did."""


class Workspace:
    """Text files below the repository root, with the agent's changes on top."""

    def __init__(
        self,
        tree: Path,
        base_files: Files,
        create_sandbox: Callable[[Files], Awaitable[Sandbox]],
        prepare: Callable[[Sandbox], Awaitable[None]] | None = None,
        fork_sandbox: ForkSandbox | None = None,
    ) -> None:
        """Start nothing. ``base_files`` lie over the pinned ``tree``.

        ``create_sandbox`` makes a sandbox of the tree with the given files written over it, ``prepare`` prepares a new
        one before the agent's changes are written. `restore` needs ``fork_sandbox``.
        """
        self._tree = tree
        self._base_files = base_files
        self._base = _placed(tree, base_files)
        self._create_sandbox = create_sandbox
        self._prepare = prepare
        self._fork_sandbox = fork_sandbox
        self._sandbox: Sandbox | None = None
        self._snapshot: Snapshot | None = None
        """The sandbox as it is now, or as it has to start; None: not taken since it last changed."""
        self._starting = asyncio.Lock()
        self._first_changes: Files = {}
        self._is_stale = False
        self._history = ""
        self.changes: Files = {}
        self.cwd = "/testbed"
        """Working folder of the shell."""
        self.wait_s = 0.0
        """Seconds so far in which nothing of the agent ran: sandboxes started, or others had their turn."""

    def read(self, path: str) -> str | None:
        """Return the text of a file; None when it is absent, binary, or outside the repository."""
        real = self._real(path)
        if real is None:
            return None
        return self.changes[real] if real in self.changes else self.base_text(real)

    def base_text(self, path: str) -> str | None:
        """Return the text of a file before the agent changed it; None as for `read`."""
        return _base_text(self._tree, self._base, path)

    def paths(self, pattern: str = "*.py") -> list[str]:
        """Return the files of the repository whose names match ``pattern``, sorted, as the agent sees them."""
        files = [p for p in self._tree.rglob(pattern) if p.is_file()]
        links = {str(p.relative_to(self._tree)) for p in files if p.is_symlink()}
        paths = {str(p.relative_to(self._tree)) for p in files}
        paths -= {link for link in links if not self._leads_to_file(link)}
        layers = (self._base, self.changes)
        for layer in layers:
            paths |= {path for path, text in layer.items() if text is not None and PurePosixPath(path).match(pattern)}
            paths -= {path for path, text in layer.items() if text is None}
        return sorted(path for path in paths if "__pycache__" not in PurePosixPath(path).parts)

    async def write(self, path: str, text: str) -> None:
        """Change a file; a change back to the base leaves no trace.

        Raises:
            OSError: the path leads out of the repository, a parent folder is a file, or there is a folder.
        """
        real = self._writable(path)
        if not is_encodable(text):
            raise PermissionError(f"the text for {path} holds half a character, which no file can hold")
        if self._sandbox is not None or self._snapshot is not None:
            await (await self.sandbox()).write_file(real, text.encode("utf-8", "surrogateescape"))
        self._record(real, text)

    async def remove(self, path: str) -> None:
        """Delete a file; `OSError` as for `write`."""
        real = self._writable(path)
        if self._sandbox is not None or self._snapshot is not None:
            await (await self.sandbox()).exec(("rm", "-f", "--", real), timeout_s=10.0)
        self._record(real, None)

    async def run_command(self, command: str, *, timeout_s: float) -> ExecResult:
        """Run bash in the episode's shell; `refresh` before the next `read`."""
        session = await (await self.sandbox()).open_session()
        result = await self._executed(command, session.run(command, timeout_s=timeout_s))
        self.cwd = session.cwd
        return result

    async def run_program(self, argv: tuple[str, ...], *, env: dict[str, str], timeout_s: float) -> ExecResult:
        """Run a program in the tree, outside of the shell; `refresh` before the next `read`."""
        sandbox = await self.sandbox()
        return await self._executed(repr((argv, sorted(env.items()))), sandbox.exec(argv, timeout_s=timeout_s, env=env))

    async def _executed(self, command: str, run: Awaitable[ExecResult]) -> ExecResult:
        """Return the result of a command that runs in the sandbox, and record both for `execution_digest`."""
        before = (self._history, self.state_digest(), command)
        self._is_stale = True
        # What an interrupted command leaves is like nothing else.
        self._history = uuid.uuid4().hex
        result = await run
        outcome = result.model_copy(update={"duration_s": 0.0, "waited_s": 0.0})
        self._history = hashlib.sha256(repr((before, outcome)).encode("utf-8", "surrogateescape")).hexdigest()
        return result

    async def refresh(self) -> None:
        """Read back the changes of commands, if any ran; `SandboxContentError` if more was changed than can be read."""
        if not self._is_stale or self._sandbox is None:
            return
        changed = await self._sandbox.changed_files()
        self._is_stale = False
        self.changes = {}
        for path, text in self._first_changes.items():
            self._record(path, text)
        for path, content in changed.items():
            if path != ".git" and not path.startswith(".git/"):
                self._record_content(path, content)

    async def revert(self, changes: Files) -> None:
        """Go back to a state that `changes` had. The sandbox and its shell start again when next needed."""
        await self.close()
        self.changes = dict(changes)

    async def freeze(self) -> WorkspaceState:
        """Return the present state; `SandboxError` if a live sandbox cannot be frozen or its changes cannot be read."""
        await self.refresh()
        if self._sandbox is not None and self._snapshot is None:
            self._snapshot = await self._sandbox.snapshot()
        return WorkspaceState(dict(self.changes), self._first_changes, self.cwd, self._snapshot, self._history)

    def restore(self, state: WorkspaceState) -> None:
        """Go to ``state``, in a workspace without a sandbox; the next one is a fork of the state's, if it had one."""
        self.changes, self._first_changes, self.cwd = dict(state.changes), state.first_changes, state.cwd
        self._snapshot, self._history = state.snapshot, state.history

    def state_digest(self) -> str:
        """Return the SHA-256 (hex) of the changes: equal states have equal digests."""
        hasher = hashlib.sha256()
        for path in sorted(self.changes):
            hasher.update(f"{path}\0{self.changes[path]}\0".encode("utf-8", "surrogateescape"))
        return hasher.hexdigest()

    def execution_digest(self) -> str:
        """Return the SHA-256 (hex) of all that decides a run in the sandbox: the changes, and the commands before it.

        A command leaves more there than `changes` hold: binary files, modes, links, files out of the repository,
        processes. Equal commands on equal changes with equal results count as equal.
        """
        return hashlib.sha256(f"{self.state_digest()}\0{self._history}".encode()).hexdigest()

    async def sandbox(self) -> Sandbox:
        """Return the live sandbox, started on first use with all changes so far; SandboxError if that fails."""
        async with self._starting:
            if self._sandbox is None:
                with self.waiting():
                    self._sandbox = await self._start()
        self._snapshot = None
        return self._sandbox

    async def copy(self) -> Sandbox:
        """Return a separate sandbox with the current files, for runs that must leave no traces. Close it."""
        await self.refresh()
        with self.waiting():
            return await self._create_sandbox({**self._base_files, **self.changes})

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the seconds of the body as a wait."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.wait_s += time.monotonic() - started

    async def _start(self) -> Sandbox:
        changes = dict(self.changes)
        if self._snapshot is not None:
            assert self._fork_sandbox is not None
            first = self._first_changes if self._prepare is None else {}
            return await self._fork_sandbox({**self._base_files, **first}, self._snapshot)
        if self._prepare is None:
            sandbox = await self._create_sandbox({**self._base_files, **changes})
            self._first_changes = changes
            return sandbox
        sandbox = await self._create_sandbox(dict(self._base_files))
        try:
            await self._prepare(sandbox)
            for path, text in changes.items():
                if text is None:
                    await sandbox.exec(("rm", "-f", "--", path), timeout_s=10.0)
                else:
                    await sandbox.write_file(path, text.encode("utf-8", "surrogateescape"))
        except BaseException:
            await sandbox.close()
            raise
        self._first_changes = {}
        return sandbox

    @property
    def backend(self) -> str:
        """Name of the sandbox back end; empty when none was needed."""
        return self._sandbox.backend if self._sandbox else ""

    async def close(self) -> None:
        """End the sandbox, if one was started."""
        self._history = ""
        if self._sandbox is not None:
            await self._sandbox.close()
            self._sandbox = None
            self._is_stale = False
            self.cwd = "/testbed"
        if self._snapshot is not None:
            self._snapshot = None
            self.cwd = "/testbed"

    def _record(self, path: str, text: str | None) -> None:
        self.changes[path] = text
        if text == self.base_text(path):
            del self.changes[path]

    def _record_content(self, path: str, content: bytes | None) -> None:
        """Record changed content; content that is no text replaces an earlier change of the path."""
        self.changes.pop(path, None)
        if content is not None and b"\0" in content:
            return  # a by-product such as an archive, although it decodes
        with suppress(UnicodeDecodeError):
            self._record(path, None if content is None else content.decode())

    def _writable(self, path: str) -> str:
        """Return the real path of a file that can be written; `OSError` as for `write`."""
        real = self._real(path)
        if real is None:
            raise PermissionError(f"{path} is outside the repository")
        for parent in PurePosixPath(real).parents:
            if str(parent) != "." and self.read(str(parent)) is not None:
                raise NotADirectoryError(f"{parent} is a file")
        if (self._tree / real).is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        return real

    def _real(self, path: str) -> str | None:
        return real_path(self._tree, path, self.changes, self._base)

    def _leads_to_file(self, link: str) -> bool:
        """Return False for a link of the tree whose file is absent here, or outside."""
        real = self._real(link)
        known = [layer[real] for layer in (self.changes, self._base) if real is not None and real in layer]
        return real is not None and (not known or known[0] is not None)


def real_path(tree: Path, path: str, *layers: Files) -> str | None:
    """Return the one path of the file that ``path`` means in ``tree`` with ``layers`` over it; None: outside.

    Links of the tree are followed, as commands in a sandbox follow them; a path of a layer is no link any more.
    """
    if not can_be_path(path):
        return None
    plain = PurePosixPath(path).as_posix()
    if any(plain in layer for layer in layers):
        return plain
    root = os.path.realpath(tree)
    real = os.path.realpath(os.path.join(root, plain))
    is_below = real.startswith(f"{root}/") and not os.path.islink(real)  # a link in a circle leads nowhere
    return real.removeprefix(f"{root}/") if is_below else None


def base_text(tree: Path, base_files: Files, path: str) -> str | None:
    """Return the text of a file of ``tree`` with ``base_files`` over it; None: absent, binary, or outside."""
    return _base_text(tree, _placed(tree, base_files), path)


def base_content(tree: Path, base_files: Files, path: str) -> bytes | None:
    """Return a file of ``tree`` with ``base_files`` over it; None: absent, or outside."""
    return _base_content(tree, _placed(tree, base_files), path)


def _placed(tree: Path, files: Files) -> Files:
    """Return ``files`` by the paths at which a sandbox puts them: links to their folders are followed."""
    folders = {folder: real_path(tree, folder) or folder for folder in {os.path.dirname(path) for path in files}}
    return {os.path.join(folders[os.path.dirname(path)], os.path.basename(path)): files[path] for path in files}


def _base_content(tree: Path, base: Files, path: str) -> bytes | None:
    real = real_path(tree, path, base)
    if real is None:
        return None
    if real in base:
        text = base[real]
        return None if text is None else text.encode("utf-8", "surrogateescape")
    target = tree / real
    return target.read_bytes() if target.is_file() else None


def _base_text(tree: Path, base: Files, path: str) -> str | None:
    real = real_path(tree, path, base)
    if real in base:
        return base[real]
    content = _base_content(tree, base, path)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None
