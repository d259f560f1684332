"""What several tests of back ends need."""

import sys
from pathlib import Path

import pytest

from mendwright.sandbox.base import SandboxSpec
from mendwright.sandbox.conformance import make_tree


@pytest.fixture
def bare_environment(tmp_path):
    """An environment that has an interpreter and nothing else."""
    binaries = tmp_path / "bare" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(Path(sys.executable).resolve())
    return binaries.parent


@pytest.fixture
def bare_spec(bare_environment, tmp_path):
    return SandboxSpec(environment=bare_environment, tree=make_tree(tmp_path / "tree"))
