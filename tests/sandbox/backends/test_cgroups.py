"""Control groups: found in what the kernel says, tried by doing, and removed when their owner is gone."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from repairgym.sandbox.backends.cgroups import ControlGroups, Group, Mount, find_mounts, set_limits
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxLimits
from repairgym.sandbox.guest import reaping
from repairgym.sandbox.guest.reaping import Accounting

HYBRID = """\
22 1 0:20 / /proc rw - proc proc rw
30 25 0:26 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 /box /sys/fs/cgroup/pi\\040ds rw - cgroup cgroup rw,pids
33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
"""
MEMBERSHIP = "9:name=systemd:/\n8:pids:/box/mine\n4:memory:/jobs/7\n2:cpu,cpuacct:/\n0::/user.slice/a:b\n"


def test_own_folders_are_found_in_every_hierarchy():
    mounts = {(mount.version, *sorted(mount.controllers)): str(mount.own) for mount in find_mounts(HYBRID, MEMBERSHIP)}
    assert mounts == {
        (1, "memory"): "/sys/fs/cgroup/memory/jobs/7",
        (1, "cpu", "cpuacct"): "/sys/fs/cgroup/cpu,cpuacct",
        (1, "pids"): "/sys/fs/cgroup/pi ds/mine",
        (2, ""): "/sys/fs/cgroup/unified/user.slice/a:b",
    }
    assert find_mounts(HYBRID, MEMBERSHIP.replace("/box/mine", "/elsewhere")) == [
        mount for mount in find_mounts(HYBRID, MEMBERSHIP) if "pids" not in mount.controllers
    ]


def test_folders_without_limits_are_not_control_groups(tmp_path):
    """An ordinary folder lets everything be written and keeps no limit."""
    control_groups = ControlGroups(
        [Mount(1, frozenset({"memory"}), tmp_path), Mount(2, frozenset({""}), tmp_path / "absent")]
    )
    assert (control_groups.kind, control_groups.folders) == ("none", [])
    assert control_groups.create(SandboxLimits()) is None
    assert "memory" in control_groups.reason
    assert list(tmp_path.iterdir()) == []
    assert ControlGroups([]).reason.startswith("no hierarchy")


V2_FILES = {
    "cgroup.procs": "",
    "memory.max": "max\n",
    "memory.swap.max": "max\n",
    "memory.events": "low 0\nhigh 0\nmax 9\noom 2\noom_kill 4\noom_group_kill 0\n",
    "memory.peak": "5242880\n",
    "pids.max": "max\n",
}


def test_a_folder_of_version_2_is_limited_and_read(tmp_path):
    """The files of a kernel whose hierarchy has the controllers; what the kernel does with them is not seen here."""
    for name, text in V2_FILES.items():
        (tmp_path / name).write_text(text)
    limits = SandboxLimits(memory_bytes=100 << 20, disk_bytes=20 << 20, num_processes=9)
    memory = set_limits(tmp_path, Mount(2, frozenset({""}), tmp_path.parent), limits)
    written = {name: (tmp_path / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")}
    assert written == {"memory.max": str(120 << 20), "memory.swap.max": "0", "pids.max": "9"}
    with Group([tmp_path], memory).descriptors() as (roles, fds):
        assert roles == ["join", "events", "reset_peak"]
        accounting = Accounting(roles, fds)
        accounting.begin()
        accounting.enter()
        assert (tmp_path / "cgroup.procs").read_text() == "0"
        # A write sets the peak back (Linux 6.12); a plain file then holds what was written, and the rest of what was.
        assert (tmp_path / "memory.peak").read_text().startswith("0")
        (tmp_path / "memory.peak").write_text("7340032\n")
        (tmp_path / "memory.events").write_text(V2_FILES["memory.events"].replace("oom_kill 4", "oom_kill 5"))
        usage = accounting.end()
    assert (usage.peak_memory_bytes, usage.is_out_of_memory) == (7340032, True)


def test_a_process_joins_a_group_of_version_1_by_its_file_for_threads(tmp_path):
    for name in ("tasks", "cgroup.procs"):
        (tmp_path / name).write_text("")
    with Group([tmp_path], None).descriptors() as (roles, fds):
        Accounting(roles, fds).enter()
    assert ((tmp_path / "tasks").read_text(), (tmp_path / "cgroup.procs").read_text()) == ("0", "")


def test_without_a_memory_controller_only_processes_are_bounded(tmp_path):
    (tmp_path / "pids.max").write_text("max\n")
    assert set_limits(tmp_path, Mount(2, frozenset({""}), tmp_path.parent), SandboxLimits(num_processes=9)) is None
    assert (tmp_path / "pids.max").read_text() == "9"


@pytest.fixture
def own_v2():
    """A fresh group in this machine's version 2 hierarchy, and a controller that groups below may get."""
    text, membership = Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    own = next((mount.own for mount in find_mounts(text, membership) if mount.version == 2), None)
    if own is None:
        pytest.skip("no hierarchy of version 2 is mounted here")
    control = own / "cgroup.subtree_control"
    controllers = (own / "cgroup.controllers").read_text().split()
    before = control.read_text().split()
    folder = own / f"repairgym-test-{os.getpid()}"
    try:
        folder.mkdir()
        new = [name for name in controllers[:1] if name not in before]
        if new:
            control.write_text(f"+{new[0]}")
    except OSError as error:
        reaping.remove_group(str(folder))
        pytest.skip(f"the version 2 hierarchy cannot be written here: {error}")
    if not controllers:
        folder.rmdir()
        pytest.skip("the version 2 hierarchy has no controller here")
    yield folder, controllers[0]
    reaping.remove_group(str(folder))
    if new:
        control.write_text(f"-{new[0]}")


_MOVES = """
import os, sys
from pathlib import Path
from repairgym.sandbox.backends.cgroups import ControlGroups, Mount, enable
folder, controller = Path(sys.argv[1]), sys.argv[2]
(folder / "cgroup.procs").write_text("0")
for _ in range(2):
    enable(folder, controller)
print((folder / "cgroup.subtree_control").read_text().split())
print((folder / "cgroup.procs").read_text().split())
print(Path("/proc/self/cgroup").read_text().rpartition("0::")[2].split("-")[-1].strip())
"""


def test_a_process_of_its_own_moves_to_a_leaf(own_v2):
    """The kernel denies controllers to groups below one that has processes."""
    folder, controller = own_v2
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    command = [sys.executable, "-c", _MOVES, str(folder), controller]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [str([controller]), "[]", "host"], done.stderr


def test_a_group_of_version_2_is_ended_and_removed(own_v2):
    group = own_v2[0] / "1"
    group.mkdir()
    process = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 905 & sleep 905"])
    (group / "cgroup.procs").write_text(str(process.pid))
    assert Group([group], None).remove()
    assert process.wait(timeout=30) == -signal.SIGKILL
    assert not group.exists()


@pytest.fixture
def writable():
    made = ControlGroups()
    if made.kind == "none":
        pytest.skip(f"no control group can be written here: {made.reason}")
    yield made
    made.close()


def test_a_group_is_bounded_and_removed_with_its_processes(writable):
    group = writable.create(SandboxLimits(num_processes=7))
    assert any((folder / "pids.max").read_text() == "7\n" for folder in group.folders if (folder / "pids.max").exists())
    process = subprocess.Popen(["sleep", "905"])
    with group.descriptors() as (roles, fds):
        assert roles.count("join") == len(group.folders)
        for folder in group.folders:
            (folder / "cgroup.procs").write_text(str(process.pid))
        assert len(fds) >= len(group.folders)
    assert group.remove()
    assert process.wait(timeout=30) == -signal.SIGKILL
    assert not any(folder.exists() for folder in group.folders)


def test_groups_are_made_again_where_their_parents_were_removed(writable):
    writable.create(SandboxLimits())
    for folder in writable.folders:
        assert reaping.remove_group(folder)
    group = writable.create(SandboxLimits(num_processes=7))
    assert any((folder / "pids.max").read_text() == "7\n" for folder in group.folders if (folder / "pids.max").exists())


def test_groups_of_killed_owners_are_removed_and_of_live_owners_kept(writable):
    kept = writable.create(SandboxLimits())
    program = "import os, signal\nfrom repairgym.sandbox.backends.cgroups import ControlGroups, SandboxLimits\n"
    program += "made = ControlGroups(); made.create(SandboxLimits())\nprint(*made.folders, flush=True)\n"
    program += "os.kill(os.getpid(), signal.SIGKILL)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    left = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    folders = [Path(word) for word in left.stdout.split()]
    assert folders
    assert all(folder.exists() for folder in folders)
    ControlGroups().close()
    assert not any(folder.exists() for folder in folders)
    assert all(folder.exists() for folder in kept.folders)


_HOST = """
import asyncio, sys
from pathlib import Path
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.backends.namespace import NamespaceBackend
async def main():
    backend = NamespaceBackend()
    sandbox = await backend.create(SandboxSpec(environment=Path(sys.argv[1]), tree=Path(sys.argv[2])))
    print(*backend.control_group_folders, flush=True)
    await sandbox.exec(("sh", "-c", "trap '' TERM; setsid sleep 904 & sleep 904"), timeout_s=600)
asyncio.run(main())
"""


@pytest.mark.asyncio
@pytest.mark.usefixtures("writable")
async def test_a_killed_host_leaves_no_group(bare_spec):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    arguments = ["-c", _HOST, str(bare_spec.environment), str(bare_spec.tree)]
    host = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environment, stdout=asyncio.subprocess.PIPE
    )
    folders = [Path(word.decode()) for word in (await host.stdout.readline()).split()]
    assert folders
    for _ in range(300):
        if all(reaping.group_processes(f"{folder}/1") for folder in folders):
            break
        await asyncio.sleep(0.1)
    host.kill()
    await host.wait()
    for _ in range(300):
        if not any(folder.exists() for folder in folders):
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"left behind: {folders}")


_HOG = "import os, time; os.fork(); os.fork(); x = b'x' * (100 << 20); time.sleep(4)"


@pytest.mark.asyncio
@pytest.mark.usefixtures("writable")
async def test_processes_share_one_memory_bound(bare_spec):
    limits = SandboxLimits(memory_bytes=200 << 20, disk_bytes=16 << 20)
    backend = NamespaceBackend()
    sandbox = await backend.create(bare_spec.model_copy(update={"limits": limits}))
    result = await sandbox.exec(("python", "-c", _HOG), timeout_s=60)
    assert result.is_out_of_memory
    assert result.peak_memory_bytes >= 150 << 20
    reserved = "import mmap; mmap.mmap(-1, 4 << 30); print('fine')"
    result = await sandbox.exec(("python", "-c", reserved), timeout_s=60)
    assert (result.stdout, result.is_out_of_memory) == (b"fine\n", False)
    await backend.close()
    assert backend.control_group_folders == ()
