"""Life and death of the namespace back end's processes."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest

from repairgym.errors import InputError, SandboxError, SandboxLostError
from repairgym.records import TestRequest
from repairgym.sandbox.backends.cgroups import Group
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.backends.zygotes import Zygote
from repairgym.sandbox.conformance import make_tree

_TEST = "tests/test_prices.py::test_total"


@pytest.fixture
def spec(bare_spec):
    return bare_spec


async def until(is_done):
    for _ in range(600):
        if is_done():
            return
        await asyncio.sleep(0.05)
    pytest.fail("it did not happen within 30 s")


def descendants(pid=None):
    return [p for p in psutil.Process(pid).children(recursive=True) if is_alive(p)]


def num_sleeping(pid=None):
    """Number of descendants that run ``sleep``; one may end while they are counted."""
    number = 0
    for process in descendants(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            number += process.name() == "sleep"
    return number


def is_alive(process):
    """False also for one that ended since it was listed."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.asyncio
async def test_a_signal_that_the_host_blocks_is_not_blocked_inside(spec):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    backend = NamespaceBackend()
    try:
        sandbox = await backend.create(spec)
        done = await sandbox.exec(("cat", "/proc/self/status"), timeout_s=60)
    finally:
        await backend.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert b"SigBlk:\t0000000000000000" in done.stdout


@pytest.mark.asyncio
@pytest.mark.parametrize("is_highest", [False, True])
async def test_out_of_memory_kills_processes_inside_first(spec, is_highest):
    score = Path("/proc/self/oom_score_adj")
    before = int(score.read_text())
    host = 1000 if is_highest else before
    backend = NamespaceBackend()
    try:
        score.write_text(str(host))
        sandbox = await backend.create(spec)
        done = await sandbox.exec(("cat", "/proc/self/oom_score_adj"), timeout_s=60)
    finally:
        score.write_text(str(before))
        await backend.close()
    assert int(done.stdout) == max(host, 800)


@pytest.mark.asyncio
async def test_closing_leaves_no_process(spec):
    others = descendants()  # of other tests, such as the resource tracker of multiprocessing
    backend = NamespaceBackend()
    sandbox = await backend.create(spec)
    running = asyncio.ensure_future(sandbox.exec(("sleep", "900"), timeout_s=600))
    await until(num_sleeping)
    processes = [process for process in descendants() if process not in others]
    await backend.close()
    await backend.close()
    with pytest.raises(SandboxLostError):
        await running
    await until(lambda: not any(process.is_running() and process in descendants() for process in processes))


@pytest.mark.asyncio
async def test_closing_a_sandbox_ends_its_command_only(spec):
    backend = NamespaceBackend()
    first, second = await backend.create(spec), await backend.create(spec)
    running = asyncio.ensure_future(first.exec(("sleep", "901"), timeout_s=600))
    await until(num_sleeping)
    await first.close()
    await first.close()
    await until(lambda: num_sleeping() == 0)
    with pytest.raises(SandboxLostError):
        await running
    assert (await second.exec(("echo", "fine"), timeout_s=60)).stdout == b"fine\n"
    with pytest.raises(SandboxLostError):
        await first.read_file("run.sh")
    await backend.close()


@pytest.mark.asyncio
async def test_a_dead_zygote_is_replaced(spec, children):
    backend = NamespaceBackend()
    sandbox = await backend.create(spec)
    (spawner,) = children()
    zygote = spawner.children()[0]
    processes = [zygote, *zygote.children(recursive=True)]
    zygote.kill()
    # The kernel ends the sandbox after its zygote: until then it still answers.
    await until(lambda: not any(map(is_alive, processes)))
    with pytest.raises(SandboxLostError):
        await sandbox.exec(("true",), timeout_s=60)
    replacement = await backend.create(spec)
    assert (await replacement.exec(("true",), timeout_s=60)).exit_status == 0
    spawner.kill()
    spawner.wait()
    another = await backend.create(spec)
    assert (await another.exec(("true",), timeout_s=60)).exit_status == 0
    await backend.close()


@pytest.mark.asyncio
async def test_a_cancelled_command_ends_the_sandbox(spec):
    backend = NamespaceBackend()
    sandbox = await backend.create(spec)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sandbox.exec(("sleep", "902"), timeout_s=600), 0.2)
    await until(lambda: num_sleeping() == 0)
    with pytest.raises(SandboxLostError):
        await sandbox.exec(("true",), timeout_s=60)
    await backend.close()


@pytest.mark.asyncio
async def test_many_at_once(spec, children):
    backend = NamespaceBackend()

    async def run_in_sandbox(number):
        sandbox = await backend.create(spec)
        await sandbox.write_file("number", str(number).encode())
        result = await sandbox.exec(("cat", "number"), timeout_s=60)
        await sandbox.close()
        return int(result.stdout)

    assert await asyncio.gather(*(run_in_sandbox(number) for number in range(24))) == list(range(24))
    assert len(children()) == 1
    await backend.close()


@pytest.mark.asyncio
async def test_idle_zygotes_make_room(spec, tmp_path, children):
    backend = NamespaceBackend(max_zygotes=1)
    other = spec.model_copy(update={"tree": make_tree(tmp_path / "other")})
    await (await backend.create(spec)).close()
    (spawner,) = children()
    second = await backend.create(other)
    await until(lambda: len(spawner.children()) == 1)
    third = await backend.create(spec)
    assert (await second.exec(("true",), timeout_s=60)).exit_status == 0
    assert (await third.exec(("true",), timeout_s=60)).exit_status == 0
    assert len(spawner.children()) == 2
    await backend.close()


@pytest.mark.asyncio
async def test_environments_that_cannot_run_tests(spec, tmp_path):
    backend = NamespaceBackend()
    sandbox = await backend.create(spec)
    with pytest.raises(SandboxError, match="no pytest"):
        await sandbox.run_tests(TestRequest(test_ids=(_TEST,)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="bin/python"):
        await backend.create(spec.model_copy(update={"environment": tmp_path / "empty"}))
    await backend.close()


@pytest.mark.asyncio
async def test_files_stay_inside(spec):
    backend = NamespaceBackend()
    with pytest.raises(InputError, match="below the repository"):
        await backend.create(spec.model_copy(update={"files": {"../evil": "x"}}))
    assert (await backend.create(spec)).backend == "namespace"
    await backend.close()


_HOST = """
import asyncio, sys
from pathlib import Path
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.backends.{module} import {name}
async def main():
    sandbox = await {name}().create(SandboxSpec(environment=Path(sys.argv[1]), tree=Path(sys.argv[2])))
    await sandbox.exec(("sh", "-c", "setsid sleep 903 & sleep 903"), timeout_s=600)
asyncio.run(main())
"""


@pytest.mark.asyncio
@pytest.mark.parametrize(("module", "name"), [("namespace", "NamespaceBackend"), ("degraded", "DegradedBackend")])
async def test_nothing_outlives_a_killed_host(spec, module, name, tmp_path):
    program = _HOST.format(module=module, name=name)
    arguments = [sys.executable, "-c", program, str(spec.environment), str(spec.tree)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src"), "TMPDIR": str(tmp_path)}
    host = await asyncio.create_subprocess_exec(*arguments, env=environment)
    await until(lambda: num_sleeping(host.pid) == 2)
    processes = descendants(host.pid)
    host.send_signal(signal.SIGKILL)
    await host.wait()
    await until(lambda: not any(process.is_running() for process in processes))
    await until(lambda: not list(tmp_path.glob("repairgym-*")))


class OneLost(Zygote):
    """A zygote whose next start is lost, although it lives."""

    has_lost = False

    async def fork(self, number, group, snapshot=None):
        if not self.has_lost:
            self.has_lost = True
            raise SandboxLostError("one start was lost")
        return await super().fork(number, group, snapshot)


@pytest.mark.asyncio
async def test_a_lost_start_ends_no_other_sandbox(spec):
    backend = NamespaceBackend()
    first = await backend.create(spec)
    zygote = await backend._pool.get(spec, [])
    losing = OneLost(zygote._control, zygote.has_pytest)
    losing.numbers = zygote.numbers
    backend._pool._zygotes = dict.fromkeys(backend._pool._zygotes, losing)
    second = await backend.create(spec)
    assert losing.has_lost
    for sandbox in (first, second):
        assert (await sandbox.exec(("echo", "fine"), timeout_s=60)).stdout == b"fine\n"
    await backend.close()


@pytest.mark.asyncio
async def test_a_zygote_that_another_has_replaced_is_not_forgotten_again(spec):
    backend = NamespaceBackend()
    sandbox = await backend.create(spec)
    pool, current = backend._pool, await backend._pool.get(spec, [])
    theirs, ours = socket.socketpair()
    theirs.close()
    with ours:
        older = Zygote(ours, has_pytest=True)
        assert await older.is_gone()
        assert not await current.is_gone()
        pool.forget(spec, older)
    assert await pool.get(spec, []) is current
    assert (await sandbox.exec(("true",), timeout_s=60)).exit_status == 0
    await backend.close()


@pytest.mark.asyncio
async def test_a_long_layout_ends_no_other_sandbox(spec):
    backend = NamespaceBackend()
    first = await backend.create(spec)
    links = {f"/opt/link-{number}": "/testbed/" + "x" * 100 for number in range(3000)}
    second = await backend.create(spec.model_copy(update={"links": links}))
    for sandbox in (first, second):
        assert (await sandbox.exec(("readlink", "/opt/link-2999"), timeout_s=60)).exit_status == (sandbox is first)
    await backend.close()


@pytest.mark.asyncio
async def test_a_spawner_that_ended_is_replaced_and_so_are_its_groups(spec):
    backend = NamespaceBackend()
    await backend.create(spec)
    ended = backend._pool._spawner
    ended._connection.close()
    await until(lambda: not ended.is_alive)
    sandbox = await backend.create(spec)
    assert (await sandbox.exec(("true",), timeout_s=60)).exit_status == 0
    await backend.close()


class StuckGroup(Group):
    """A group with a process that does not end at once."""

    def __init__(self):
        super().__init__([], None)
        self.num_tries = 0

    def remove(self):
        self.num_tries += 1
        return self.num_tries > 1


@pytest.mark.asyncio
async def test_a_group_that_could_not_be_removed_is_tried_again(spec):
    backend, group = NamespaceBackend(), StuckGroup()
    await backend._remove(group)
    await (await backend.create(spec)).close()
    await until(lambda: group.num_tries == 2)
    await (await backend.create(spec)).close()
    await backend.close()
    assert group.num_tries == 2
