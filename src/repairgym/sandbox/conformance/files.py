"""Files: the tree, files written over it, changes, and paths out of reach."""

from __future__ import annotations

from repairgym.errors import SandboxContentError
from repairgym.sandbox.conformance.site import Site, checks, require, require_raises, shell


async def tree_and_files(site: Site) -> None:
    """The sandbox is the tree with the files written over it, byte by byte; modes stay."""
    files = {
        "shop/prices.py": "new\r\n",
        "shop/old/b.txt": None,
        "added/deep/x.txt": "Grüße\n",
        "run.sh": "#!/bin/sh\n",
    }
    async with site.sandbox(files) as sandbox:
        require(await sandbox.read_file("shop/prices.py") == b"new\r\n", "the replaced text", "other")
        require(await sandbox.read_file("added/deep/x.txt") == "Grüße\n".encode(), "the added text", "other")
        require(await sandbox.read_file("shop/old/a.txt") == b"a\n", "the tree's text", "other")
        await require_raises(FileNotFoundError, sandbox.read_file("shop/old/b.txt"))
        require((await shell(sandbox, "./run.sh")).exit_status == 0, "an executable run.sh", "not executable")
        require(await sandbox.changed_files() == {}, "no change at the start", await sandbox.changed_files())


async def read_and_write(site: Site) -> None:
    """Programs see the host's files, and the host sees theirs."""
    async with site.sandbox() as sandbox:
        await sandbox.write_file("new/folder/data.bin", bytes(range(256)))
        await sandbox.write_file("empty", b"")
        result = await shell(sandbox, "wc -c new/folder/data.bin empty; printf '\\377' > made")
        require(b"256 new/folder/data.bin" in result.stdout, "256 bytes", result)
        require(await sandbox.read_file("made") == b"\xff", "one byte", "other")
        require(await sandbox.read_file("link.txt") == b"a\n", "the text behind a link inside", "other")


async def escapes(site: Site) -> None:
    """No path leads the trusted side out of the testbed."""
    async with site.sandbox() as sandbox:
        await shell(
            sandbox,
            "ln -s /etc/passwd evil; ln -s /etc outside; ln -s ../.. up; mkfifo pipe; ln -s /proc/self/environ env",
        )
        for path in ("../etc/passwd", "/etc/passwd", "outside/passwd", "evil", "env", "up/etc/passwd", "shop/../../x"):
            await require_raises(PermissionError, sandbox.read_file(path))
            await require_raises(PermissionError, sandbox.write_file(path, b"x"))
        await require_raises(FileNotFoundError, sandbox.read_file("pipe"))
        await require_raises(FileNotFoundError, sandbox.read_file("no/such/file"))


async def changed_files(site: Site) -> None:
    """Changed, new and deleted files are reported against the start, caches and unchanged files are not."""
    script = (
        "echo c > shop/old/a.txt; rm shop/old/b.txt; mkdir n; echo n > 'n/two words'; touch run.sh; "
        "mkdir shop/__pycache__; echo x > shop/__pycache__/y.pyc; rm start; "
        "cp shop/prices.py t; cat t > shop/prices.py; rm t; echo changed > same; ln -s run.sh alias"
    )
    async with site.sandbox({"start": "s\n", "same": "same\n"}) as sandbox:
        result = await shell(sandbox, script)
        require(result.exit_status == 0, "success", result)
        expected = {
            "shop/old/a.txt": b"c\n",
            "shop/old/b.txt": None,
            "n/two words": b"n\n",
            "start": None,
            "same": b"changed\n",
        }
        got = await sandbox.changed_files()
        require(got == expected, f"{expected}", got)


async def replaced_folders(site: Site) -> None:
    """A folder that is removed, made again or replaced by a file loses its files."""
    async with site.sandbox() as sandbox:
        script = "rm -r shop/old && mkdir shop/old && echo z > shop/old/z.txt; rm -r tests && echo flat > tests"
        result = await shell(sandbox, script)
        require(result.exit_status == 0, "success", result)
        got = await sandbox.changed_files()
        present = {path: content for path, content in got.items() if content is not None}
        require(present == {"shop/old/z.txt": b"z\n", "tests": b"flat\n"}, "two new files", present)
        gone = {"shop/old/a.txt", "shop/old/b.txt", "tests/test_prices.py"}
        require(gone <= {path for path, content in got.items() if content is None}, f"{gone} deleted", got)


async def write_isolation(site: Site) -> None:
    """Two sandboxes of one tree do not see each other's writes, and the tree stays as it was."""
    async with site.sandbox() as first, site.sandbox() as second:
        await shell(first, "echo one > shop/old/a.txt; echo one > /tmp/mark-of-one; rm run.sh")
        require(await second.read_file("shop/old/a.txt") == b"a\n", "the tree's text", "the other's")
        require(await second.changed_files() == {}, "no change", "the other's change")
    require((site.tree / "run.sh").exists(), "the tree as it was", "a deleted file")
    require((site.tree / "shop/old/a.txt").read_text() == "a\n", "the tree as it was", "a changed file")


async def more_than_comes_out(site: Site) -> None:
    """Changes beyond the bound, a lack of room and a file in the way are errors of the content, not of the sandbox."""
    limits = site.limits.model_copy(update={"disk_bytes": 8 << 20})
    async with site.sandbox(limits=limits) as sandbox:
        # Holes need no room, so more can be there than the bound.
        await shell(sandbox, "for i in 1 2 3; do truncate -s 5000000 hole$i; done")
        await require_raises(SandboxContentError, sandbox.changed_files())
        await shell(sandbox, "truncate -s 9000000 hole1")
        await require_raises(SandboxContentError, sandbox.read_file("hole1"))
        await shell(sandbox, "rm hole*; rm run.sh; mkdir run.sh; rm -r shop; echo x > shop")
        await require_raises(IsADirectoryError, sandbox.write_file("run.sh", b"x"))
        await require_raises(NotADirectoryError, sandbox.write_file("shop/prices.py", b"x"))
        require("shop" in await sandbox.changed_files(), "a sandbox that continues", "none")


async def full_disk(site: Site) -> None:
    """A write of the host into a full sandbox is an error of the content."""
    limits = site.limits.model_copy(update={"disk_bytes": 8 << 20})
    async with site.sandbox(limits=limits) as sandbox:
        await shell(sandbox, "head -c 9000000 /dev/zero > fill; true")
        await require_raises(SandboxContentError, sandbox.write_file("more", b"x" * 1_000_000))
        await shell(sandbox, "rm fill more; true")
        await sandbox.write_file("more", b"x")


CHECKS = (
    *checks(
        tree_and_files, read_and_write, escapes, changed_files, replaced_folders, write_isolation, more_than_comes_out
    ),
    *checks(full_disk, is_isolating_only=True),
)
