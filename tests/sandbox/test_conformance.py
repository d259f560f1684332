"""Every back end passes the conformance suite."""

import sys
from pathlib import Path

import pytest
import pytest_asyncio

from mendwright.sandbox.conformance import CHECKS, Site, make_tree
from mendwright.sandbox.degraded import DegradedBackend
from mendwright.sandbox.namespace import NamespaceBackend

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
