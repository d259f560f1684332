import asyncio
import os
from pathlib import Path

import pytest

from repairgym.errors import InputError, SandboxError
from repairgym.sandbox.backends.guest_process import ServingProcess, find_interpreter_folders


def test_interpreter_folders(tmp_path):
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    with pytest.raises(InputError, match="bin/python"):
        find_interpreter_folders(environment)
    python = environment / "bin" / "python"
    python.symlink_to("/bin/sh")
    assert find_interpreter_folders(environment) == ()
    python.unlink()
    real = tmp_path / "opt" / "python" / "bin"
    real.mkdir(parents=True)
    (real / "python3").touch()
    python.symlink_to(os.path.relpath(real / "python3", python.parent))
    if str(tmp_path).startswith("/tmp/"):
        with pytest.raises(SandboxError, match="installed elsewhere"):
            find_interpreter_folders(environment)
    else:
        assert find_interpreter_folders(environment) == (str(tmp_path / "opt" / "python"),)


def num_of_this_process():
    """Descriptors and children of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return len(os.listdir("/proc/self/fd")), len(children)


@pytest.mark.asyncio
async def test_a_cancelled_start_leaves_no_process_and_no_descriptor():
    before = num_of_this_process()
    start = asyncio.create_task(ServingProcess.start(lambda number: ["sleep", "60"]))
    await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await asyncio.sleep(0.01)
    assert num_of_this_process() == before
