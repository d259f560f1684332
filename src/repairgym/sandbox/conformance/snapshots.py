"""Snapshots and forks: independence, content, chains, bounds."""

from __future__ import annotations

from repairgym.errors import InputError, SandboxError
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.conformance.site import TIMEOUT_S, Site, checks, require, require_raises, shell

_CHAIN = 12


async def snapshot_independence(site: Site) -> None:
    """A snapshot keeps its state whatever its sandbox does afterwards, its close included."""
    async with site.sandbox({"start.txt": "start\n"}) as sandbox:
        await shell(
            sandbox, "echo one > one; rm run.sh; mv shop/old shop/older; echo tmp > /tmp/kept 2>/dev/null; true"
        )
        snapshot = await sandbox.snapshot()
        try:
            await shell(sandbox, "echo two > one; echo x > after; rm -r shop; rm start.txt")
            spec = SandboxSpec(
                environment=site.environment, tree=site.tree, files={"start.txt": "start\n"}, limits=site.limits
            )
            first = await site.backend.create(spec, snapshot=snapshot)
            await sandbox.close()
            await shell(first, "echo first > one; rm shop/older/a.txt")
            second = await site.backend.create(spec, snapshot=snapshot)
            result = await shell(second, "cat one start.txt shop/older/a.txt; ls after run.sh shop/old 2>/dev/null")
            require(result.stdout == b"one\nstart\na\n", "the state of the snapshot", result)
            changed = await second.changed_files()
            require(changed["one"] == b"one\n" and changed["run.sh"] is None, "changes against the start", changed)
            await first.close()
            await second.close()
        finally:
            await snapshot.close()
            await snapshot.close()
        await require_raises(InputError, site.backend.create(spec, snapshot=snapshot))


async def snapshots_are_of_one_tree(site: Site) -> None:
    """A snapshot cannot become a sandbox of other files."""
    async with site.sandbox() as sandbox:
        snapshot = await sandbox.snapshot()
        spec = SandboxSpec(environment=site.environment, tree=site.tree, files={"other": "x"}, limits=site.limits)
        await require_raises(InputError, site.backend.create(spec, snapshot=snapshot))
        await snapshot.close()


async def forks(site: Site) -> None:
    """Forks start from one state, sessions included, and do not see each other; the parent continues."""
    async with site.sandbox() as sandbox:
        session = await sandbox.open_session()
        await session.run("cd shop; A=5; f() { echo f$A; }; echo 1 > n; echo t > $HOME/note", timeout_s=TIMEOUT_S)
        children = await sandbox.fork(3)
        for index, child in enumerate(children):
            inner = await child.open_session()
            result = await inner.run(f"cat n $HOME/note; f; echo {index} > n; A={index}", timeout_s=TIMEOUT_S)
            require(result.stdout == b"1\nt\nf5\n", "the parent's state", result)
        for index, child in enumerate(children):
            result = await (await child.open_session()).run("cat n; f; echo x > ../run.sh", timeout_s=TIMEOUT_S)
            require(result.stdout == f"{index}\nf{index}\n".encode(), "its own state", result)
            await child.close()
        result = await session.run("cat n; f; head -c 2 ../run.sh", timeout_s=TIMEOUT_S)
        require(result.stdout == b"1\nf5\n#!", "the parent's own state", result)
        require((await sandbox.diff()).changes[0].path == "shop/n", "a diff across the freeze", await sandbox.diff())


async def chains(site: Site) -> None:
    """Snapshots of snapshots accumulate: every generation sees the changes of all before it, deletions too."""
    async with site.sandbox() as sandbox:
        current = sandbox
        for generation in range(_CHAIN):
            await current.write_file(f"chain/{generation}", b"x")
            if generation:
                await shell(current, f"rm chain/{generation - 1}; echo {generation} >> log")
            if generation % 2:
                await (await current.snapshot()).close()
            (child,) = await current.fork()
            if current is not sandbox:
                await current.close()
            current = child
        result = await shell(current, "ls chain; tail -n 1 log; wc -l < log; ls run.sh")
        expected = f"{_CHAIN - 1}\n{_CHAIN - 1}\n{_CHAIN - 1}\nrun.sh\n".encode()
        require(result.stdout == expected, repr(expected), result)
        changed = set(await current.changed_files())
        require(changed == {f"chain/{_CHAIN - 1}", "log"}, "two changes", changed)
        await current.close()


async def snapshot_of_a_closed_sandbox(site: Site) -> None:
    """A closed sandbox has no snapshots."""
    async with site.sandbox() as sandbox:
        await sandbox.close()
        await require_raises(SandboxError, sandbox.snapshot())
        await require_raises(SandboxError, sandbox.fork(2))


CHECKS = checks(
    snapshot_independence,
    snapshots_are_of_one_tree,
    forks,
    chains,
    snapshot_of_a_closed_sandbox,
    needs_snapshots=True,
)
