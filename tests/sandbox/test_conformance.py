"""Every back end passes the conformance suite; one that cannot start here is skipped with the probe's reason."""

import asyncio
import sys
from collections.abc import Iterable, Iterator

import pytest
import pytest_asyncio

from repairgym.errors import SandboxError
from repairgym.sandbox.base import ExecResult, SandboxSpec
from repairgym.sandbox.conformance import CHECKS, NOT_HELD, Site, make_tree
from repairgym.sandbox.probe import BACKENDS, BRANCHING_BACKENDS, ISOLATING_BACKENDS
from repairgym.testing.scripted import ScriptedBackend, ScriptedSandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")


MARKS = {"container": [pytest.mark.container], "bubblewrap": [pytest.mark.slow], "degraded": [pytest.mark.slow]}
"""What CI runs in stages of its own; every test run has the back end that most machines get."""


def named(names: Iterable[str]) -> list[object]:
    return [pytest.param(name, marks=MARKS.get(name, [])) for name in sorted(names)]


def cases() -> Iterator[object]:
    for name in BACKENDS:
        for check in CHECKS:
            if name in ISOLATING_BACKENDS or not check.is_isolating_only:
                yield pytest.param(name, check, id=f"{name}-{check.name}", marks=MARKS.get(name, []))


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return make_tree(tmp_path_factory.mktemp("tree"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sites(tree, require_backend, small_environment):
    """Gives the site of a back end; made, and probed, when the first check of it runs."""
    made = {}

    def site(name):
        if name not in made:
            made[name] = Site(backend=require_backend(name)(), environment=small_environment, tree=tree)
        return made[name]

    yield site
    for opened in made.values():
        await opened.backend.close()


@pytest.mark.parametrize(("name", "check"), list(cases()))
async def test_conformance(name, check, sites):
    if check.needs_snapshots and name not in BRANCHING_BACKENDS:
        pytest.skip(f"{name} has no snapshots")
    if (name, check.name) in NOT_HELD:
        pytest.skip(f"{name}: {NOT_HELD[name, check.name]}")
    await check.run(sites(name))


@pytest.mark.parametrize("name", named(set(BACKENDS) - BRANCHING_BACKENDS))
async def test_back_ends_without_snapshots_raise(name, sites):
    site = sites(name)
    async with site.sandbox() as sandbox:
        for asked in (sandbox.snapshot(), sandbox.fork(2)):
            with pytest.raises(SandboxError, match="has no snapshots"):
                await asked
        assert (await sandbox.exec(("true",), timeout_s=60)).exit_status == 0
    other = await sites("degraded").backend.create(SandboxSpec(environment=site.environment, tree=site.tree))
    snapshot = await other.snapshot()
    with pytest.raises(SandboxError, match="has no snapshots"):
        await site.backend.create(SandboxSpec(environment=site.environment, tree=site.tree), snapshot=snapshot)
    await snapshot.close()
    await other.close()


class BareSandbox(ScriptedSandbox):
    """Runs commands as they are in a folder: what the checks have to notice."""

    def __init__(self, folder):
        super().__init__({}, lambda files, request: None)
        self._folder = folder

    async def exec(self, argv, *, timeout_s, cwd="/testbed", env=None, stdin=b""):
        program = sys.executable if argv[0] == "python" else argv[0]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(program, *argv[1:], stdout=pipe, stderr=pipe, cwd=self._folder)
        stdout, stderr = await asyncio.wait_for(process.communicate(), timeout_s)
        return ExecResult(exit_status=process.returncode, stdout=stdout, stderr=stderr)


class BareBackend(ScriptedBackend):
    def __init__(self, folder):
        super().__init__(lambda files, request: None)
        self._folder = folder

    async def create(self, spec, *, snapshot=None):
        return BareSandbox(self._folder)


# Only attacks that leave no mark on a host they succeed on.
@pytest.mark.parametrize(
    "name",
    [
        "no_network",
        "host_sockets",
        "host_processes_and_kernel",
        "identities",
        "limits_stay",
        "shared_memory",
        "socket_families",
        "tracing",
    ],
)
async def test_checks_of_attacks_fail_without_isolation(name, tree, small_environment, tmp_path):
    """What is reported is something that was reached, not a program that crashed."""
    (check,) = [check for check in CHECKS if check.name == name]
    site = Site(backend=BareBackend(tmp_path), environment=small_environment, tree=tree)
    with pytest.raises(AssertionError, match=r"expected .*, got ExecResult\(exit_status=0, .*stdout=b['\"]\w"):
        await check.run(site)


async def test_there_are_enough_checks():
    assert len(CHECKS) >= 60
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert NOT_HELD.keys() <= {(name, check.name) for name in (*BACKENDS, "image") for check in CHECKS}
