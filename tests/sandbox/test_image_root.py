"""Container images as roots: what is seen, what changes reach, and attacks on the trusted processes."""

import os
import stat
import sys
import sysconfig
from pathlib import Path

import pytest
import pytest_asyncio

from repairgym.errors import InputError, SandboxError, SandboxUnavailableError
from repairgym.records import TestOutcome, TestRequest
from repairgym.sandbox.backends.images import image_files, variables_of
from repairgym.sandbox.base import ImageRoot, SandboxSpec
from repairgym.sandbox.conformance import make_tree
from repairgym.sandbox.conformance.host_image import ENVIRONMENT
from repairgym.sandbox.guest_sandbox import reject_root

TOTAL, WRONG = (f"tests/test_prices.py::test_{name}" for name in ("total", "wrong"))
EXPECTED = {TOTAL: TestOutcome.PASSED, WRONG: TestOutcome.FAILED}
# Written where a supervisor's process would write records, if it ran this.
FORGE = """
import json, os
for phase in ('setup', 'call', 'teardown'):
    try: os.write(3, json.dumps({'id': '%s', 'phase': phase, 'outcome': 'passed', 'message': '',
                                 'duration_s': 0.0, 'longrepr': ''}).encode() + b'\\n')
    except OSError: pass
""".lstrip() % WRONG  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(require_backend):
    made = require_backend("namespace")()
    yield made
    await made.close()


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return make_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture
def spec(host_image, tree):
    return SandboxSpec(environment=ENVIRONMENT, tree=tree, root=host_image)


def layered(spec, folder, variables=None):
    """`spec` with one more layer, the folder ``folder``."""
    image = spec.root
    root = ImageRoot(layers=(*image.layers, folder), variables={**image.variables, **(variables or {})})
    return spec.model_copy(update={"root": root})


async def shell(sandbox, script):
    done = await sandbox.exec(("bash", "-c", script), timeout_s=60)
    return done.stdout.decode() + done.stderr.decode()


async def outcomes(sandbox):
    run = await sandbox.run_tests(TestRequest(test_ids=(TOTAL, WRONG)))
    return {name: run.outcome(name) for name in (TOTAL, WRONG)}


@pytest.mark.asyncio(loop_scope="module")
async def test_whiteouts_and_opaque_folders_hide_lower_layers(backend, spec, tmp_path):
    lower, upper = tmp_path / "lower", tmp_path / "upper"
    for name in ("gone", "kept", "replaced/old"):
        (lower / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (lower / "data" / name).write_text(name)
    (upper / "data/replaced").mkdir(parents=True)
    (upper / "data/replaced/new").write_text("new")
    os.mknod(upper / "data/gone", stat.S_IFCHR | 0o600, 0)
    os.setxattr(upper / "data/replaced", "user.overlay.opaque", b"y")
    sandbox = await backend.create(layered(layered(spec, lower), upper))
    assert await shell(sandbox, "cd /data && find . -type f | sort") == "./kept\n./replaced/new\n"
    assert await shell(sandbox, "echo more >> /data/kept && chmod 700 /data/kept && cat /data/kept") == "keptmore\n"
    assert (lower / "data/kept").read_text() == "kept"


@pytest.mark.asyncio(loop_scope="module")
async def test_changes_of_the_root_follow_snapshots_and_forks_and_nothing_else(backend, spec):
    first, other = await backend.create(spec), await backend.create(spec)
    assert await shell(first, "echo 1 > /etc/state; rm /usr/bin/yes; mkdir /srv; echo s > /srv/s") == ""
    snapshot = await first.snapshot()
    assert await shell(first, "echo 2 > /etc/state; rm -r /srv") == ""
    (fork,) = await first.fork(1)
    restored = await backend.create(spec, snapshot=snapshot)
    script = "cat /etc/state; ls /srv/* /usr/bin/yes 2>/dev/null; true"
    texts = [await shell(sandbox, script) for sandbox in (first, fork, restored, other)]
    assert texts[:3] == ["2\n", "2\n", "1\n/srv/s\n"]
    assert texts[3].startswith("/usr/bin/yes\n")
    assert await outcomes(restored) == EXPECTED
    await snapshot.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_root_shares_the_bound_on_the_disk(backend, spec):
    sandbox = await backend.create(
        spec.model_copy(update={"limits": spec.limits.model_copy(update={"disk_bytes": 8 << 20})})
    )
    assert "No space left" in await shell(sandbox, "for i in 1 2 3 4; do head -c 3000000 /dev/zero > /usr/fill$i; done")
    assert await shell(sandbox, "rm /usr/fill*; echo fine > /testbed/x; cat /testbed/x") == "fine\n"


@pytest.mark.asyncio(loop_scope="module")
async def test_commands_cannot_change_what_the_trusted_process_or_tests_import(backend, spec):
    sandbox = await backend.create(spec)
    library, packages = (
        sysconfig.get_path("stdlib"),
        f"{ENVIRONMENT}/lib/python{sys.version[:4].rstrip('.')}/site-packages",
    )
    script = f"""
for name in json/decoder os shutil stat linecache encodings/utf_8 encodings/idna traceback; do
    rm -f {library}/$name.py; echo 'raise SystemExit(0)' > {library}/$name.py; done
for path in {library}/sitecustomize.py {packages}/sitecustomize.py {packages}/_pytest/runner.py; do
    printf '%s' "$FORGE" > $path; done
mkdir -p /.repairgym/repairgym_guest && printf '%s' "$FORGE" > /.repairgym/repairgym_guest/__init__.py
rm /usr/bin/env; ln -sf /bin/true {ENVIRONMENT}/bin/python3"""
    done = await sandbox.exec(("bash", "-c", script), timeout_s=60, env={"FORGE": FORGE})
    assert (done.exit_status, done.stderr) == (0, b"")
    assert await sandbox.read_file("run.sh") == b"#!/bin/sh\necho ran\n"
    assert await sandbox.changed_files() == {}
    assert await outcomes(sandbox) == EXPECTED
    assert (await sandbox.run_python("import json; print(json.dumps([1]))", timeout_s=60)).stdout == b"[1]\n"
    with pytest.raises(PermissionError):
        await sandbox.read_file("../etc/passwd")


@pytest.mark.asyncio(loop_scope="module")
async def test_the_tree_cannot_reach_the_supervisor_through_the_image(backend, spec, tmp_path):
    """The image looks for modules and programs in /testbed, as images of tasks do; the tree uses that."""
    packages = (
        tmp_path / str(ENVIRONMENT)[1:] / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    )
    packages.mkdir(parents=True)
    (packages / "editable.pth").write_text("/testbed\n")
    variables = {"PYTHONPATH": "/testbed", "PATH": "/testbed/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": "/testbed",
                 "PYTHONSTARTUP": "/testbed/json.py"}  # fmt: skip
    names = ("sitecustomize.py", "usercustomize.py", "json.py", "glob.py", "select.py", "_pytest/__init__.py")
    image = layered(spec, tmp_path, variables)
    sandbox = await backend.create(image.model_copy(update={"files": dict.fromkeys(names, FORGE)}))
    script = "mkdir bin && printf '#!/bin/sh\\nexec cat' > bin/python3 && chmod +x bin/python3; which python3"
    assert await shell(sandbox, script) == f"{ENVIRONMENT}/bin/python3\n"
    got = await outcomes(sandbox)
    assert got[WRONG] is not TestOutcome.PASSED, got


@pytest.mark.asyncio(loop_scope="module")
async def test_no_path_leads_out_of_the_image(backend, spec):
    sandbox = await backend.create(spec)
    script = """
for path in /image /opt/repairgym /proc/1/root /proc/1/cwd /.repairgym/scratch ../../../image /proc/self/root/image; do
    ls $path/ >/dev/null 2>&1 && echo reached $path; done
grep -v -e ' / ' -e '/dev' -e '/proc' -e '/tmp' -e '/testbed' /proc/self/mountinfo; true"""
    assert await shell(sandbox, script) == ""
    assert await shell(sandbox, "readlink /proc/self/root; id -un; hostname; cat /etc/hostname; pwd") == (
        "/\nuser\nsandbox\nsandbox\n/testbed\n"
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_an_image_without_python_runs_commands_and_no_signed_runner(backend, spec):
    image = ImageRoot(layers=spec.root.layers[:1])
    sandbox = await backend.create(spec.model_copy(update={"root": image, "environment": Path("/")}))
    session = await sandbox.open_session()
    assert (await session.run("cd /usr && x=1", timeout_s=20)).exit_status == 0
    assert (await session.run("echo $PWD $x", timeout_s=20)).stdout == b"/usr 1\n"
    with pytest.raises(SandboxError, match="no python3 on the PATH of the image"):
        await sandbox.run_tests(TestRequest(test_ids=(TOTAL,)))


@pytest.mark.asyncio(loop_scope="module")
async def test_pytest_is_missing_in_one_sentence(backend, spec):
    image = ImageRoot(layers=spec.root.layers[:2])
    environment = Path(sys.executable).resolve().parents[1]
    sandbox = await backend.create(spec.model_copy(update={"root": image, "environment": environment}))
    with pytest.raises(SandboxError, match="has no pytest"):
        await sandbox.run_tests(TestRequest(test_ids=(TOTAL,)))


def test_the_files_of_an_image_are_read_without_links(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "etc").mkdir(parents=True)
    (first / "etc/passwd").write_text("postgres:x:99:99::/:/bin/sh")
    root = ImageRoot(layers=(first,))
    passwd = image_files(root)["etc/passwd"].splitlines()
    assert passwd == ["postgres:x:99:99::/:/bin/sh", "user:x:1000:1000:user:/tmp:/bin/sh"]
    second.mkdir()
    (second / "etc").symlink_to("/etc")
    (first / "etc/group").symlink_to("/etc/group")
    for layers in ((first, second), (first,)):
        assert image_files(ImageRoot(layers=layers))["etc/group"] == "root:x:0:\nuser:x:1000:\n"
    with pytest.raises(InputError, match="is not there; pull the image again"):
        image_files(ImageRoot(layers=(first, tmp_path / "absent")))


def test_variables_of_commands(spec):
    root = ImageRoot(layers=spec.root.layers, variables={"PATH": "/conda/bin", "HOME": "/root"})
    variables = variables_of(spec.model_copy(update={"root": root}))
    assert (variables["PATH"], variables["HOME"], variables["PIP_NO_INDEX"]) == (
        "/opt/venv/bin:/conda/bin",
        "/root",
        "1",
    )
    assert variables_of(spec.model_copy(update={"root": None})) == {}


@pytest.mark.parametrize("name", ["bubblewrap", "container", "degraded"])
def test_other_back_ends_reject_an_image(name, spec):
    with pytest.raises(
        SandboxUnavailableError, match=f"{name} cannot have a container image as its root: use namespace"
    ):
        reject_root(name, spec)
    reject_root(name, spec.model_copy(update={"root": None}))
