"""Every back end passes the conformance suite."""

import asyncio
import sys
from pathlib import Path

import pytest
import pytest_asyncio

from mendwright.sandbox.base import ExecResult
from mendwright.sandbox.conformance import CHECKS, Site, make_tree
from mendwright.sandbox.degraded import DegradedBackend
from mendwright.sandbox.namespace import NamespaceBackend
from mendwright.sandbox.scripted import ScriptedBackend, ScriptedSandbox

DEGRADED_CHECKS = [check for check in CHECKS if not check.is_isolating_only]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return make_tree(tmp_path_factory.mktemp("tree"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def namespace_site(tree):
    backend = NamespaceBackend()
    yield Site(backend=backend, environment=Path(sys.prefix), tree=tree)
    await backend.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def degraded_site(tree):
    backend = DegradedBackend()
    yield Site(backend=backend, environment=Path(sys.prefix), tree=tree)
    await backend.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_namespace(check, namespace_site):
    await check.run(namespace_site)


@pytest.mark.parametrize("check", DEGRADED_CHECKS, ids=lambda check: check.name)
async def test_degraded(check, degraded_site):
    await check.run(degraded_site)


class BareSandbox(ScriptedSandbox):
    """Runs commands as they are: what the checks have to notice."""

    async def exec(self, argv, *, timeout_s, cwd="/testbed", env=None, stdin=b""):
        program = sys.executable if argv[0] == "python" else argv[0]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(program, *argv[1:], stdout=pipe, stderr=pipe)
        stdout, stderr = await asyncio.wait_for(process.communicate(), timeout_s)
        return ExecResult(exit_status=process.returncode, stdout=stdout, stderr=stderr)


class BareBackend(ScriptedBackend):
    async def create(self, spec, *, snapshot=None):
        return BareSandbox({}, self._answer)


# Only attacks that leave no mark on a host they succeed on.
@pytest.mark.parametrize("name", ["no_network", "host_sockets", "host_processes_and_kernel"])
async def test_attacks_are_noticed_where_there_are_no_walls(name, tree):
    (check,) = [check for check in CHECKS if check.name == name]
    site = Site(backend=BareBackend(lambda files, request: None), environment=Path(sys.prefix), tree=tree)
    with pytest.raises(AssertionError, match="expected no"):
        await check.run(site)


async def test_there_are_enough_checks():
    assert len(CHECKS) >= 60
    assert len({check.name for check in CHECKS}) == len(CHECKS)
