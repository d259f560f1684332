"""Lists and diffs: agreement with git, and robustness against hostile trees."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from pathlib import Path

from repairgym.sandbox.base import Sandbox
from repairgym.sandbox.conformance.site import Site, checks, python, require, require_raises, shell

_START: dict[str, str | None] = {
    "crlf.txt": "one\r\ntwo\r\nthree\r\n",
    "bare.txt": "no newline",
    "empty.txt": "",
    "two words/grüße 🚲.txt": "x\n" * 30,
    "gone.txt": "gone\n",
}
_CHANGES = r"""
import os, pathlib
p = pathlib.Path
p('crlf.txt').write_bytes(b'one\r\n2\r\nthree\n')
p('bare.txt').write_bytes(b'still no newline')
p('empty.txt').write_bytes(b'no longer\n')
p('two words/gr\u00fc\u00dfe \U0001f6b2.txt').write_bytes(b'x\n' * 15 + b'y\n' + b'x\n' * 14)
p('gone.txt').unlink()
p('made empty').write_bytes(b'')
p('latin').write_bytes(b'caf\xe9\n')
p('new\nline "q" \\b\t').write_bytes(b'odd name\n')
os.rename('shop/old/a.txt', 'shop/a renamed.txt')
os.chmod('shop/prices.py', 0o755)
os.chmod('run.sh', 0o644)
p('deep/er/est').mkdir(parents=True)
p('deep/er/est/file').write_bytes(b'1')
os.unlink('link.txt'); os.symlink('two words/no such', 'link.txt')
os.symlink('deep', 'folder link')
os.unlink('tests/test_slow.py'); os.mkdir('tests/test_slow.py'); p('tests/test_slow.py/x').write_bytes(b'x\n')
p('cache').mkdir(); p('cache/__pycache__').mkdir(); p('cache/__pycache__/x.pyc').write_bytes(b'x')
"""
_HOSTILE = r"""
import os, shutil, socket
os.mkfifo('pipe'); os.mkfifo('shop/pipe')
try: socket.socket(socket.AF_UNIX).bind('socket')
except PermissionError: os.mkfifo('socket')  # a back end may deny sockets
os.unlink('run.sh'); os.mkfifo('run.sh')
open('huge', 'wb').truncate(60 << 20)
open('binary', 'wb').write(b'a\0b')
open('secret', 'w').write('x\n'); os.link('secret', 'hard'); os.chmod('hard', 0)
os.mkdir('closed'); open('closed/inside', 'w').write('x\n'); os.chmod('closed', 0)
os.symlink('/etc/passwd', 'passwd'); os.symlink('loop', 'loop'); os.symlink('/', 'root')
os.symlink('/proc/1/environ', 'environ')
shutil.move('shop/old', 'shop/older'); os.symlink('/etc', 'shop/old')
top = os.open('.', os.O_RDONLY)
for name in ('d' * 200,) * 60 + ('d',) * 1500:
    os.mkdir(name); os.chdir(name)
open('bottom', 'w').write('x')
os.fchdir(top); os.mkdir('flat'); os.chdir('flat')
for _ in range(1500):
    os.mkdir('d'); os.chdir('d')
"""


def _state(folder: Path) -> dict[str, tuple[str, bool, bytes]]:
    state = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            state[name] = ("link", False, str(path.readlink()).encode())
        elif path.is_file() and "__pycache__" not in name:
            state[name] = ("file", bool(path.stat().st_mode & 0o100), path.read_bytes())
    return state


async def _sandbox_state(sandbox: Sandbox) -> dict[str, tuple[str, bool, bytes]]:
    state = {}
    for entry in await sandbox.list_files():
        if entry.kind == "link":
            state[entry.path] = ("link", False, entry.target.encode())
        elif entry.kind == "file" and "__pycache__" not in entry.path:
            state[entry.path] = ("file", bool(entry.mode & 0o100), await sandbox.read_file(entry.path))
    return state


def _apply(tree: Path, target: Path, files: dict[str, str | None], patch: bytes) -> bytes:
    shutil.copytree(tree, target, symlinks=True)
    for path, text in files.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes((text or "").encode())
    done = subprocess.run(["git", "apply", "-"], cwd=target, input=patch, capture_output=True, check=False)
    return done.stderr if done.returncode else b""


async def diff_round_trip(site: Site) -> None:
    """``git apply`` of the patch on the tree gives the sandbox's files: names, bytes, modes, links."""
    async with site.sandbox(_START) as sandbox:
        require((await sandbox.diff()).patch == b"", "no patch at the start", await sandbox.diff())
        result = await python(sandbox, _CHANGES)
        require(result.exit_status == 0, "success", result)
        diff = await sandbox.diff()
        require(diff.is_complete, "a complete patch", diff.changes)
        with tempfile.TemporaryDirectory(prefix="repairgym-conformance-") as folder:
            target = Path(folder, "tree")
            error = await asyncio.to_thread(_apply, site.tree, target, _START, diff.patch)
            require(not error, "a patch that git applies", (error, diff.patch))
            expected, got = await _sandbox_state(sandbox), _state(target)
        differing = {path: (expected.get(path), got.get(path)) for path in expected.keys() | got.keys()}
        differing = {path: pair for path, pair in differing.items() if pair[0] != pair[1]}
        require(not differing, "equal trees", differing)


async def diff_of_hostile_trees(site: Site) -> None:
    """Pipes, sockets, huge files, loops and links out of the tree are reported, not read; the sandbox stays usable."""
    async with site.sandbox() as sandbox:
        result = await python(sandbox, _HOSTILE)
        require(result.exit_status == 0, "success", result)
        diff = await sandbox.diff()
        omissions = {change.path: change.omission for change in diff.changes if change.omission}
        expected = {"pipe", "shop/pipe", "socket", "run.sh", "huge", "binary"}
        require(expected <= set(omissions), f"{expected} left out", omissions)
        require(omissions["huge"] == "large" and omissions["binary"] == "binary", "their reasons", omissions)
        changes = {change.path: change for change in diff.changes}
        require(changes["passwd"].after_mode == 0o120000 and b"root:" not in diff.patch, "links as links", diff.patch)
        require("shop/older/a.txt" in changes and changes["shop/old/a.txt"].kind == "deleted", "both folders", changes)
        changed = await sandbox.changed_files()
        is_seen = changed["secret"] == changed["closed/inside"] == b"x\n"
        require(is_seen and changed["shop/old/a.txt"] is None, "changed files", list(changed)[:9])
        require((await shell(sandbox, "echo fine")).stdout == b"fine\n", "a usable sandbox", "none")


async def lists(site: Site) -> None:
    """Folders are listed with kinds, modes and sizes; links are not followed and no path leads out."""
    async with site.sandbox() as sandbox:
        await shell(sandbox, "ln -s /etc outside; mkfifo pipe; printf 12345 > 'two words'")
        entries = {entry.path: entry for entry in await sandbox.list_files()}
        require(entries["run.sh"].mode & 0o777 == 0o755, "an executable file", entries["run.sh"])
        require(entries["two words"].num_bytes == 5, "5 bytes", entries["two words"])
        require(entries["outside"].target == "/etc" and "outside/passwd" not in entries, "a link", entries)
        require(entries["pipe"].kind == "other" and entries["shop/old"].kind == "folder", "kinds", entries)
        names = [entry.path for entry in await sandbox.list_files("shop", is_recursive=False)]
        require(names == ["shop/__init__.py", "shop/old", "shop/prices.py"], "three entries", names)
        for path in ("outside", "..", "/etc", "shop/../.."):
            await require_raises(PermissionError, sandbox.list_files(path))
        await require_raises(FileNotFoundError, sandbox.list_files("no such"))
        await require_raises(NotADirectoryError, sandbox.list_files("run.sh"))


CHECKS = checks(diff_round_trip, diff_of_hostile_trees, lists)
