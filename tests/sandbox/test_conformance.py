"""Every back end passes the conformance suite; one that cannot start here is skipped with the probe's reason."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from mendwright.config.sandbox import SandboxConfig
from mendwright.sandbox.conformance import CHECKS, Site, make_tree
from mendwright.sandbox.probe import BACKENDS, ISOLATING_BACKENDS, probe_backend

pytestmark = pytest.mark.asyncio(loop_scope="module")


def cases() -> Iterator[object]:
    for name in BACKENDS:
        marks = [pytest.mark.container] if name == "container" else []
        for check in CHECKS:
            if name in ISOLATING_BACKENDS or not check.is_isolating_only:
                yield pytest.param(name, check, id=f"{name}-{check.name}", marks=marks)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return make_tree(tmp_path_factory.mktemp("tree"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sites(tree):
    """Gives the site of a back end; made, and probed, when the first check of it runs."""
    made = {}

    def site(name):
        if name not in made:
            probe = probe_backend(name)
            backend = BACKENDS[name](SandboxConfig()) if probe.is_available else None
            made[name] = (probe, backend and Site(backend=backend, environment=Path(sys.prefix), tree=tree))
        probe, found = made[name]
        if found is None:
            pytest.skip(f"{name} does not work here: {probe.reason}")
        return found

    yield site
    for _, found in made.values():
        if found is not None:
            await found.backend.close()


@pytest.mark.parametrize(("name", "check"), list(cases()))
async def test_conformance(name, check, sites):
    await check.run(sites(name))
