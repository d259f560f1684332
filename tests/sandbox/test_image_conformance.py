"""The conformance suite over a container image made from programs of this machine."""

import pytest
import pytest_asyncio

from repairgym.sandbox.conformance import CHECKS, NOT_HELD, Site, make_tree
from repairgym.sandbox.conformance.host_image import ENVIRONMENT

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory, require_backend, host_image):
    backend = require_backend("namespace")()
    yield Site(backend, ENVIRONMENT, make_tree(tmp_path_factory.mktemp("tree")), host_image)
    await backend.close()


@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
async def test_conformance_over_an_image(check, site):
    if ("image", check.name) in NOT_HELD:
        pytest.skip(NOT_HELD["image", check.name])
    await check.run(site)
