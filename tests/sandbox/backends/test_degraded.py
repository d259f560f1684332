"""Walls of the fallback that need no namespace."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from repairgym.sandbox.backends.degraded import DegradedBackend
from repairgym.sandbox.backends.stale_cleanup import OWNER_FILE, Owner
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.conformance import make_tree
from repairgym.sandbox.guest import syscalls

has_landlock = pytest.mark.skipif(syscalls.landlock_version() < 2, reason="this kernel has no Landlock 2")
has_scopes = pytest.mark.skipif(syscalls.landlock_version() < 6, reason="this kernel has no Landlock 6")

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(tmp_path_factory, small_environment):
    tree = make_tree(tmp_path_factory.mktemp("tree"))
    backend = DegradedBackend()
    spec = SandboxSpec(environment=small_environment, tree=tree, files={"hidden.txt": None})
    yield await backend.create(spec)
    await backend.close()


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    path = tmp_path_factory.mktemp("secret") / "secret"
    path.write_text("secret")
    return path


@has_landlock
async def test_files_of_the_host_are_out_of_reach(sandbox, secret):
    script = (
        f"cat {secret}; cat ../before/run.sh; ls / /tmp /dev/shm; "
        f"echo x > {secret.parent}/new; echo x > /tmp/x-$$; true"
    )
    result = await sandbox.exec(("sh", "-c", script), timeout_s=60)
    assert result.stdout == b""
    assert result.stderr.count(b"ermission denied") >= 6
    assert os.listdir(secret.parent) == ["secret"]


async def test_no_sockets_but_pairs(sandbox):
    program = (
        "import socket, sys\n"
        "socket.socketpair()\n"
        "for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):\n"
        "    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n"
        "        try: socket.socket(family, kind)\n"
        "        except PermissionError: continue\n"
        "        print('made', family, kind)"
    )
    result = await sandbox.exec(("python", "-c", program), timeout_s=60)
    assert (result.exit_status, result.stdout) == (0, b""), result


@has_scopes
async def test_processes_of_the_host_cannot_be_signaled(sandbox):
    program = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "child.kill()\n"
        "for pid in (int(sys.argv[1]), os.getppid()):\n"
        "    try: os.kill(pid, 0)\n"
        "    except PermissionError: continue\n"
        "    print('signalled', pid)\n"
        "try: open(f'/proc/{sys.argv[1]}/environ')\n"
        "except PermissionError: pass\n"
        "else: print('read the environment')"
    )
    result = await sandbox.exec(("python", "-c", program, str(os.getpid())), timeout_s=60)
    assert (result.exit_status, result.stdout) == (0, b""), result


async def test_folders_move_and_programs_run(sandbox):
    script = (
        "mkdir a b && echo x > a/f && mv a/f b/g && cat b/g && cp /bin/true t && ./t && "
        "python -c 'import pytest' && rm -r a b t"
    )
    result = await sandbox.exec(("sh", "-c", script), timeout_s=60)
    assert (result.exit_status, result.stdout) == (0, b"x\n"), result


def own_folders():
    """Folders of sandboxes that name this process as their owner."""
    owner, found = str(Owner.of_this_process()), set()
    for folder in Path(tempfile.gettempdir()).glob("repairgym-degraded-*"):
        with suppress(OSError):  # of another process
            found |= {folder} if (folder / OWNER_FILE).read_text() == owner else set()
    return found


async def test_a_sandbox_that_does_not_start_leaves_no_folder(tmp_path):
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("no program")
    python.chmod(0o644)
    folders = own_folders()
    with pytest.raises(PermissionError):
        await DegradedBackend().create(
            SandboxSpec(environment=tmp_path / "environment", tree=make_tree(tmp_path / "t"))
        )
    assert own_folders() == folders
