"""Life, death and command line of the bubblewrap back end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from repairgym.errors import InputError, SandboxLostError, SandboxUnavailableError
from repairgym.sandbox.backends.bubblewrap import explain, read_version
from repairgym.sandbox.guest.contained import bwrap_arguments

_HOST = """
import asyncio, sys
from pathlib import Path
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.backends.bubblewrap import BubblewrapBackend
async def main():
    spec = SandboxSpec(environment=Path(sys.argv[1]), tree=Path(sys.argv[2]))
    sandbox = await BubblewrapBackend().create(spec)
    running = asyncio.ensure_future(sandbox.exec(("sh", "-c", "setsid sleep 904.25 & sleep 904.25"), timeout_s=600))
    await asyncio.sleep(1)
    print("running", flush=True)
    await running
asyncio.run(main())
"""


@pytest.fixture
def bubblewrap(require_backend):
    """A function that makes back ends."""
    return require_backend("bubblewrap")


def num_processes(text):
    """Processes of this machine whose command line holds ``text``."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += text.encode() in path.read_bytes()
        except OSError:
            continue
    return count


@pytest.mark.asyncio
async def test_closing_ends_a_sandbox_and_its_command(bubblewrap, bare_spec):
    backend = bubblewrap()
    first, second = await backend.create(bare_spec), await backend.create(bare_spec)
    await first.close()
    await first.close()
    with pytest.raises(SandboxLostError):
        await first.exec(("true",), timeout_s=60)
    assert (await second.exec(("echo", "fine"), timeout_s=60)).stdout == b"fine\n"
    await backend.close()
    await backend.close()
    with pytest.raises(SandboxLostError):
        await second.read_file("run.sh")


def test_nothing_outlives_a_killed_host(bubblewrap, bare_spec):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    command = [sys.executable, "-c", _HOST, str(bare_spec.environment), str(bare_spec.tree)]
    host = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert host.stdout.readline() == b"running\n"
    assert num_processes("904.25") >= 2
    host.send_signal(signal.SIGKILL)
    host.communicate()
    for _ in range(600):
        if num_processes("904.25") == 0:
            return
        subprocess.run(["sleep", "0.05"], check=True)
    pytest.fail("processes were left behind")


@pytest.mark.asyncio
async def test_unusable_inputs_are_rejected(bubblewrap, bare_spec, tmp_path):
    backend = bubblewrap()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="bin/python"):
        await backend.create(bare_spec.model_copy(update={"environment": tmp_path / "empty"}))
    with pytest.raises(InputError, match="expected a folder"):
        await backend.create(bare_spec.model_copy(update={"tree": tmp_path / "none"}))
    with pytest.raises(InputError, match="below the repository"):
        await backend.create(bare_spec.model_copy(update={"files": {"../evil": "x"}}))


@pytest.mark.parametrize(
    ("text", "expected"), [("bubblewrap 0.8.0", (0, 8, 0)), ("bubblewrap 0.11", (0, 11, 0)), ("bubblewrap 0.4.1", None)]
)
def test_versions(tmp_path, text, expected):
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\necho {text}\n")
    program.chmod(0o755)
    if expected is not None:
        assert read_version(str(program)) == expected
        return
    with pytest.raises(SandboxUnavailableError, match=r"0\.5 or newer"):
        read_version(str(program))


def test_errors_of_bwrap_are_distinguished_from_a_broken_interpreter():
    refused = explain("bwrap: setting up uid map: Permission denied")
    assert isinstance(refused, SandboxUnavailableError)
    assert "setting up uid map" in str(refused)
    assert not isinstance(explain("python: error while loading shared libraries"), SandboxUnavailableError)


def test_the_command_line_grants_no_privileges():
    arguments = bwrap_arguments("/root-of-it", ["--bind", "/root-of-it/testbed", "/testbed"], "{}")
    for option in ("--clearenv", "--new-session", "--die-with-parent", "--as-pid-1", "--unshare-net", "--unshare-user"):
        assert option in arguments
    assert arguments[arguments.index("--cap-drop") + 1] == "ALL"
    assert "--share-net" not in arguments
    writable = {arguments[i + 2] for i, option in enumerate(arguments) if option in ("--bind", "--dev-bind")}
    assert writable == {"/testbed", "/tmp", "/dev/shm"}
