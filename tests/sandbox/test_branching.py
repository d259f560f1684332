"""Life of snapshots: what keeps them alive, what they may keep, and what is left when they are gone."""

import asyncio

import pytest

from repairgym.errors import InputError, SandboxContentError, SandboxError, SandboxLostError
from repairgym.sandbox.backends.degraded import DegradedBackend
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxLimits
from repairgym.sandbox.branching import KeptSnapshot, Quota, check_snapshot
from repairgym.sandbox.conformance import make_tree
from repairgym.sandbox.guest.isolation import Lineage, mount_options


@pytest.fixture
def spec(bare_spec):
    return bare_spec


def test_a_child_uses_all_frozen_layers():
    line = Lineage(has_files=True).freeze().freeze()
    assert (line.upper, line.layers) == ("0/u2", ("0/u1", "0/u0"))
    child = line.fork()
    assert (child.upper, child.layers, child.tmp) == ("1/u0", ("0/u1", "0/u0"), "0/t1")
    grandchild = child.freeze().fork()
    assert (grandchild.upper, grandchild.layers) == ("2/u0", ("1/u0", "0/u1", "0/u0"))
    assert Lineage.parse(grandchild._asdict()) == grandchild


@pytest.mark.asyncio
async def test_chains_of_sixty(spec):
    backend = NamespaceBackend()
    current = await backend.create(spec)
    for generation in range(60):
        await current.write_file("generation", str(generation).encode())
        await current.write_file(f"chain/{generation}", b"x")
        (child,) = await current.fork()
        await current.close()
        current = child
    result = await current.exec(("sh", "-c", "ls chain | wc -l; cat generation run.sh | head -c 4"), timeout_s=60)
    assert result.stdout == b"60\n59#!"
    assert len(await current.changed_files()) == 61
    await backend.close()


def test_too_long_a_chain_for_a_mount_is_rejected():
    assert len(mount_options(Lineage(layers=("1/u0",) * 500))) < 4000
    with pytest.raises(OSError, match="too long for one mount"):
        mount_options(Lineage(layers=("1/u0",) * 1000))


@pytest.mark.asyncio
async def test_children_end_at_every_stage_of_their_making(spec, children):
    backend = NamespaceBackend()
    sandbox = await backend.create(spec)
    await sandbox.write_file("n", b"x")
    first, second, third = await sandbox.fork(3)
    (spawner,) = children()
    await first.close()
    with pytest.raises(SandboxLostError):
        await first.read_file("n")
    assert await second.read_file("n") == b"x"
    waiting = asyncio.ensure_future(third.exec(("sleep", "900"), timeout_s=600))
    (fourth,) = await second.fork()
    spawner.children()[0].kill()
    with pytest.raises(SandboxLostError):
        await waiting
    for _ in range(2):
        with pytest.raises(SandboxLostError):
            await fourth.read_file("n")
    await fourth.close()
    again = await backend.create(spec)
    (fifth,) = await again.fork()
    await backend.close()
    with pytest.raises(SandboxLostError):
        await fifth.read_file("n")
    assert backend.control_group_folders == ()


@pytest.mark.asyncio
async def test_snapshots_are_bounded(spec):
    backend = NamespaceBackend(max_snapshot_bytes=1 << 20)
    sandbox = await backend.create(spec)
    await sandbox.write_file("large", b"x" * (2 << 20))
    snapshot = await sandbox.snapshot()
    assert 2 << 20 <= snapshot.num_bytes < 3 << 20
    with pytest.raises(SandboxError, match="close some"):
        await sandbox.snapshot()
    await snapshot.close()
    again = await sandbox.snapshot()
    assert again.num_bytes < 1 << 20
    await backend.close()


@pytest.mark.asyncio
async def test_a_snapshot_without_room_changes_nothing(spec):
    backend = NamespaceBackend()
    sandbox = await backend.create(spec.model_copy(update={"limits": SandboxLimits(disk_bytes=4 << 20)}))
    await sandbox.exec(("sh", "-c", "head -c 3000000 /dev/zero > /tmp/half"), timeout_s=60)
    with pytest.raises(SandboxContentError, match="No space left"):
        await sandbox.snapshot()
    result = await sandbox.exec(("sh", "-c", "rm /tmp/half; echo x > here; cat here"), timeout_s=60)
    assert result.stdout == b"x\n"
    await (await sandbox.snapshot()).close()
    assert await sandbox.changed_files() == {"here": b"x\n"}
    await backend.close()


@pytest.mark.asyncio
async def test_commands_wait_for_a_snapshot(spec):
    backend = NamespaceBackend()
    sandbox = await backend.create(spec)
    session = await sandbox.open_session()
    command = "for i in 1 2 3 4 5; do echo $i >> log; sleep 0.05; done; A=5"
    running = asyncio.ensure_future(session.run(command, timeout_s=60))
    await asyncio.sleep(0.05)
    (child,) = await sandbox.fork()
    await running
    assert (await (await child.open_session()).run("echo $A", timeout_s=60)).stdout == b"5\n"
    assert await child.read_file("log") == await sandbox.read_file("log") == b"1\n2\n3\n4\n5\n"
    await backend.close()


@pytest.mark.asyncio
async def test_a_live_snapshot_keeps_its_zygote_alive(spec, tmp_path):
    backend = NamespaceBackend(max_zygotes=1)
    sandbox = await backend.create(spec)
    await sandbox.write_file("kept", b"x")
    snapshot = await sandbox.snapshot()
    await sandbox.close()
    other = spec.model_copy(update={"tree": make_tree(tmp_path / "other")})
    await (await backend.create(other)).close()
    child = await backend.create(spec, snapshot=snapshot)
    assert await child.read_file("kept") == b"x"
    with pytest.raises(InputError, match="another environment"):
        await backend.create(other, snapshot=snapshot)
    degraded = DegradedBackend()
    with pytest.raises(InputError, match="of the back end"):
        await degraded.create(spec, snapshot=snapshot)
    await backend.close()
    with pytest.raises(SandboxLostError, match="closed"):
        await backend.create(spec, snapshot=snapshot)


@pytest.mark.asyncio
async def test_zygotes_release_everything_of_closed_sandboxes(spec, children):
    backend = NamespaceBackend()
    sandbox = await backend.create(spec)
    (spawner,) = children()
    zygote = spawner.children(recursive=True)[1]
    before = zygote.num_fds()
    for _ in range(5):
        for child in await sandbox.fork(2):
            await child.close()
    await (await backend.create(spec)).close()
    assert zygote.num_fds() <= before + 1
    await backend.close()


@pytest.mark.asyncio
async def test_a_snapshot_belongs_to_its_links_and_mounts(spec, tmp_path):
    """A sandbox from it would silently lack them, or have others."""

    async def drop():
        pass

    kept = KeptSnapshot("namespace", spec, None, {}, 0, Quota(1), drop)
    assert check_snapshot("namespace", spec.model_copy(update={"limits": SandboxLimits(memory_bytes=1 << 28)}), kept)
    for update in ({"links": {"/a": "/b"}}, {"mounts": {"/a": tmp_path}}, {"files": {"a": "b"}}):
        with pytest.raises(InputError, match="only the limits may differ"):
            check_snapshot("namespace", spec.model_copy(update=update), kept)
