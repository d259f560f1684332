"""Fixtures of several back ends."""

import psutil
import pytest

from repairgym.config.sandbox import SandboxConfig
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.conformance import make_environment, make_tree
from repairgym.sandbox.conformance.host_image import make_image
from repairgym.sandbox.probe import BACKENDS, probe_backend


@pytest.fixture
def bare_environment(tmp_path):
    """An environment that has an interpreter and nothing else."""
    return make_environment(tmp_path / "bare")


@pytest.fixture
def bare_spec(bare_environment, tmp_path):
    return SandboxSpec(environment=bare_environment, tree=make_tree(tmp_path / "tree"))


@pytest.fixture(scope="session")
def require_backend():
    """A function that gives the maker of a back end, or skips with the reason why it does not start here."""
    probes = {}

    def require(name):
        probe = probes.get(name) or probes.setdefault(name, probe_backend(name))
        if not probe.is_available:
            pytest.skip(f"{name} does not work here: {probe.reason}")
        return lambda: BACKENDS[name](SandboxConfig())

    return require


@pytest.fixture
def children():
    """Lists the child processes that this test has started."""
    others = set(psutil.Process().children())  # such as the resource tracker of multiprocessing

    def started():
        return [process for process in psutil.Process().children() if process not in others]

    return started


@pytest.fixture(scope="session")
def host_image(tmp_path_factory, small_environment):
    """A container image with programs of this machine; do not write into its layers."""
    return make_image(tmp_path_factory.mktemp("image"), small_environment)
