"""Containers of the engine that works here: their life, their death, and what the next start sweeps."""

import asyncio
import io
import os
import shutil
import signal
import sys
import tarfile
from pathlib import Path

import pytest

from repairgym.config.sandbox import ContainerConfig
from repairgym.errors import InputError, SandboxContentError, SandboxLostError
from repairgym.sandbox.backends import container, engine
from repairgym.sandbox.backends.container import ContainerBackend
from repairgym.sandbox.backends.stale_cleanup import Owner
from repairgym.sandbox.base import SandboxLimits
from repairgym.sandbox.system_view import SystemPaths

_HOST = """
import asyncio, sys
from pathlib import Path
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.backends.container import ContainerBackend
async def main():
    spec = SandboxSpec(environment=Path(sys.argv[1]), tree=Path(sys.argv[2]))
    sandbox = await ContainerBackend().create(spec)
    print("running", flush=True)
    await sandbox.exec(("sleep", "600"), timeout_s=600)
asyncio.run(main())
"""


@pytest.fixture
def working_engine(require_backend):
    require_backend("container")
    return asyncio.run(engine.find_engine(ContainerConfig()))


async def names(chosen):
    return sorted(await chosen.owners())


@pytest.mark.container
@pytest.mark.asyncio
async def test_closing_removes_the_container_and_its_folder(working_engine, bare_spec, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = await names(working_engine)
    backend = ContainerBackend()
    sandbox = await backend.create(bare_spec.model_copy(update={"files": {"new": "x", "run.sh": None}}))
    assert len(await names(working_engine)) == len(before) + 1
    assert len(list(tmp_path.glob("repairgym-container-*"))) == 1
    await backend.close()
    await backend.close()
    with pytest.raises(SandboxLostError):
        await sandbox.exec(("true",), timeout_s=60)
    assert await names(working_engine) == before
    assert not list(tmp_path.glob("repairgym-container-*"))
    assert (bare_spec.tree / "run.sh").exists()


@pytest.mark.container
@pytest.mark.asyncio
async def test_a_killed_host_leaves_no_container_and_the_next_start_removes_its_folder(
    working_engine, bare_spec, tmp_path, monkeypatch
):
    before = await names(working_engine)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", _HOST, str(bare_spec.environment), str(bare_spec.tree)]
    host = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    assert await host.stdout.readline() == b"running\n"
    host.send_signal(signal.SIGKILL)
    await host.wait()
    for _ in range(120):
        if await names(working_engine) == before:
            break
        await asyncio.sleep(0.5)
    assert await names(working_engine) == before
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert len(list(tmp_path.glob("repairgym-container-*"))) == 1
    backend = ContainerBackend()
    await (await backend.create(bare_spec)).close()
    assert not list(tmp_path.glob("repairgym-container-*"))


@pytest.mark.container
@pytest.mark.asyncio
async def test_containers_of_dead_owners_are_removed(working_engine):
    image = await working_engine.image(engine.root_archive(SystemPaths().view()))
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    own = Owner.of_this_process()
    for name, owner in (("repairgym-test-live", own), ("repairgym-test-dead", own._replace(pid=ended.pid))):
        await working_engine.run("create", "--name", name, "--label", f"{engine.OWNER_LABEL}={owner}", image, "true")
    try:
        assert await working_engine.sweep() == ["repairgym-test-dead"]
        assert await working_engine.sweep() == []
        assert "repairgym-test-live" in " ".join(await names(working_engine))
    finally:
        await working_engine.remove("repairgym-test-live")
        await working_engine.remove("repairgym-test-live")


def spec_with(bare_spec, files):
    return bare_spec.model_copy(update={"files": files})


def test_the_tree_at_the_start_shares_files_with_the_layer_and_never_writes_into_it(bare_spec, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    files = {"run.sh": "#!/bin/sh\nnew\n", "shop/old": None, "link.txt": "no link\n", "deep/er": "x"}
    before = container.make_before(spec_with(bare_spec, files), folder)
    tree = bare_spec.tree
    assert (before / "setup.cfg").samefile(tree / "setup.cfg")
    assert (before / "run.sh").read_text() == "#!/bin/sh\nnew\n"
    assert os.access(before / "run.sh", os.X_OK)
    assert not (before / "shop" / "old").exists()
    assert (before / "link.txt").read_text() == "no link\n"
    assert (before / "deep" / "er").read_text() == "x"
    assert (tree / "run.sh").read_text() == "#!/bin/sh\necho ran\n"
    assert (tree / "shop" / "old" / "a.txt").read_text() == "a\n"


@pytest.mark.parametrize("path", ["../out", "outside/x"])
def test_no_file_is_written_outside_of_the_tree(bare_spec, tmp_path, path):
    (bare_spec.tree / "outside").symlink_to(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(InputError, match="below the repository"):
        container.make_before(spec_with(bare_spec, {path: "x"}), folder)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("path", ["run.sh/below", "n" * 300])
def test_a_file_that_cannot_be_placed_is_the_fault_of_the_files(bare_spec, tmp_path, path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(SandboxContentError, match="no file can be made"):
        container.make_before(spec_with(bare_spec, {path: "x"}), folder)


def test_the_root_is_the_same_every_time():
    view = SystemPaths().view(("/opt/tools/python",))
    archive = engine.root_archive(view)
    assert archive == engine.root_archive(view)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert {"testbed", "proc", "etc/passwd", "opt/env", "usr"} <= set(tar.getnames())
        assert "shadow" not in " ".join(tar.getnames())


@pytest.mark.asyncio
async def test_options_of_the_command_line(tmp_path, monkeypatch):
    log = tmp_path / "log"
    for name in ("podman", "docker"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\ncat > /dev/null\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert shutil.which("podman") == str(tmp_path / "podman")
    for name in ("podman", "docker"):
        chosen = engine.Engine(name, ContainerConfig(runtime="runc"))
        await chosen.start("repairgym-x", SandboxLimits(), {"/opt/env": "/env"}, ["true"], b"")
    lines = [line for line in log.read_text().splitlines() if " run " in line]
    for line in lines:
        for option in (
            "--network none",
            "--cap-drop ALL",
            "--read-only",
            "--volume /env:/opt/env:ro",
            "--pids-limit 129",
        ):
            assert option in line
        assert "no-new-privileges" in line
        assert f"{engine.OWNER_LABEL}={Owner.of_this_process()}" in line
    assert lines[0].startswith("podman --runtime runc run")
    assert "--runtime runc" in lines[1]
    assert "map 0:" in lines[0] or "keep-id" in lines[0]
