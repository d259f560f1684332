"""Files: the tree, files written over it, changes, and paths out of reach; lists and diffs, also of hostile trees."""

import asyncio
import shutil
import subprocess
import tempfile
from pathlib import Path

from repairgym.errors import SandboxContentError
from repairgym.sandbox.base import Sandbox
from repairgym.sandbox.conformance.runs import python, require, require_output, require_raises, shell
from repairgym.sandbox.conformance.site import Files, Site, on_sandbox, on_site

_START: Files = {
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
for name in ('d' * 200,) * 60 + ('d',) * 1100:  # longer than a path may be, deeper than recursion goes
    os.mkdir(name); os.chdir(name)
open('bottom', 'w').write('x')
os.fchdir(top); os.mkdir('flat'); os.chdir('flat')
for _ in range(1100):
    os.mkdir('d'); os.chdir('d')
"""


@on_sandbox(
    {"shop/prices.py": "new\r\n", "shop/old/b.txt": None, "added/deep/x.txt": "Grüße\n", "run.sh": "#!/bin/sh\n"}
)
async def tree_and_files(sandbox: Sandbox) -> None:
    """The sandbox is the tree with the files written over it, byte by byte; modes stay."""
    require(await sandbox.read_file("shop/prices.py") == b"new\r\n", "the replaced text", "other")
    require(await sandbox.read_file("added/deep/x.txt") == "Grüße\n".encode(), "the added text", "other")
    require(await sandbox.read_file("shop/old/a.txt") == b"a\n", "the tree's text", "other")
    await require_raises(FileNotFoundError, sandbox.read_file("shop/old/b.txt"))
    require((await shell(sandbox, "./run.sh")).exit_status == 0, "an executable run.sh", "not executable")
    require(await sandbox.changed_files() == {}, "no change at the start", await sandbox.changed_files())


@on_sandbox()
async def read_and_write(sandbox: Sandbox) -> None:
    """Programs see the host's files, and the host sees theirs."""
    await sandbox.write_file("new/folder/data.bin", bytes(range(256)))
    await sandbox.write_file("empty", b"")
    result = await shell(sandbox, "wc -c new/folder/data.bin empty; printf '\\377' > made")
    require(b"256 new/folder/data.bin" in result.stdout, "256 bytes", result)
    require(await sandbox.read_file("made") == b"\xff", "one byte", "other")
    require(await sandbox.read_file("link.txt") == b"a\n", "the text behind a link inside", "other")


@on_sandbox()
async def escapes(sandbox: Sandbox) -> None:
    """No path leads the trusted side out of the testbed."""
    links = "ln -s /etc/passwd evil; ln -s /etc outside; ln -s ../.. up; ln -s /proc/self/environ env"
    await shell(sandbox, f"{links}; mkfifo pipe")
    for path in ("../etc/passwd", "/etc/passwd", "outside/passwd", "evil", "env", "up/etc/passwd", "shop/../../x"):
        await require_raises(PermissionError, sandbox.read_file(path))
        await require_raises(PermissionError, sandbox.write_file(path, b"x"))
    await require_raises(FileNotFoundError, sandbox.read_file("pipe"))
    await require_raises(FileNotFoundError, sandbox.read_file("no/such/file"))


@on_sandbox({"start": "s\n", "same": "same\n"})
async def changed_files(sandbox: Sandbox) -> None:
    """Changed, new and deleted files are reported against the start, caches and unchanged files are not."""
    script = (
        "echo c > shop/old/a.txt; rm shop/old/b.txt; mkdir n; echo n > 'n/two words'; touch run.sh; "
        "mkdir shop/__pycache__; echo x > shop/__pycache__/y.pyc; rm start; "
        "cp shop/prices.py t; cat t > shop/prices.py; rm t; echo changed > same; ln -s run.sh alias"
    )
    result = await shell(sandbox, script)
    require(result.exit_status == 0, "success", result)
    expected = {"shop/old/a.txt": b"c\n", "shop/old/b.txt": None, "n/two words": b"n\n", "start": None}
    expected["same"] = b"changed\n"
    got = await sandbox.changed_files()
    require(got == expected, f"{expected}", got)


@on_sandbox()
async def replaced_folders(sandbox: Sandbox) -> None:
    """A folder that is removed, made again or replaced by a file loses its files."""
    script = "rm -r shop/old && mkdir shop/old && echo z > shop/old/z.txt; rm -r tests && echo flat > tests"
    result = await shell(sandbox, script)
    require(result.exit_status == 0, "success", result)
    got = await sandbox.changed_files()
    present = {path: content for path, content in got.items() if content is not None}
    require(present == {"shop/old/z.txt": b"z\n", "tests": b"flat\n"}, "two new files", present)
    gone = {"shop/old/a.txt", "shop/old/b.txt", "tests/test_prices.py"}
    require(gone <= {path for path, content in got.items() if content is None}, f"{gone} deleted", got)


@on_site()
async def write_isolation(site: Site) -> None:
    """Two sandboxes of one tree do not see each other's writes, and the tree stays as it was."""
    async with site.sandbox() as first, site.sandbox() as second:
        await shell(first, "echo one > shop/old/a.txt; echo one > /tmp/mark-of-one; rm run.sh")
        require(await second.read_file("shop/old/a.txt") == b"a\n", "the tree's text", "the other's")
        require(await second.changed_files() == {}, "no change", "the other's change")
    require((site.tree / "run.sh").exists(), "the tree as it was", "a deleted file")
    require((site.tree / "shop/old/a.txt").read_text() == "a\n", "the tree as it was", "a changed file")


@on_sandbox(disk_bytes=8 << 20)
async def more_than_comes_out(sandbox: Sandbox) -> None:
    """Changes beyond the bound, a lack of room and a file in the way are errors of the content, not of the sandbox."""
    # Holes need no room, so more can be there than the bound.
    await shell(sandbox, "for i in 1 2 3; do truncate -s 5000000 hole$i; done")
    await require_raises(SandboxContentError, sandbox.changed_files())
    await shell(sandbox, "truncate -s 9000000 hole1")
    await require_raises(SandboxContentError, sandbox.read_file("hole1"))
    await shell(sandbox, "rm hole*; rm run.sh; mkdir run.sh; rm -r shop; echo x > shop")
    await require_raises(IsADirectoryError, sandbox.write_file("run.sh", b"x"))
    await require_raises(NotADirectoryError, sandbox.write_file("shop/prices.py", b"x"))
    require("shop" in await sandbox.changed_files(), "a sandbox that continues", "none")


# --- lists and diffs -----------------------------------------------------------------------------------------------


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


def _apply(tree: Path, target: Path, files: Files, patch: bytes) -> bytes:
    shutil.copytree(tree, target, symlinks=True)
    for path, text in files.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes((text or "").encode())
    done = subprocess.run(["git", "apply", "-"], cwd=target, input=patch, capture_output=True, check=False)
    return done.stderr if done.returncode else b""


@on_site()
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


@on_sandbox()
async def diff_of_hostile_trees(sandbox: Sandbox) -> None:
    """Pipes, sockets, huge files, loops and links out of the tree are reported, not read; the sandbox stays usable."""
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
    await require_output(sandbox, "echo fine", b"fine\n")


@on_sandbox()
async def lists(sandbox: Sandbox) -> None:
    """Folders are listed with kinds, modes and sizes; links are not followed and no path leads out."""
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
