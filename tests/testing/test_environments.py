"""Copied environments hold what was asked for, and run."""

import subprocess
from importlib.metadata import PackageNotFoundError

import pytest

from repairgym.testing.environments import copy_environment


def test_the_copy_runs_without_the_project(small_environment):
    code = "import pytest, sys, importlib.util as u; print(sys.prefix in pytest.__file__, u.find_spec('pydantic'))"
    done = subprocess.run([small_environment / "bin/python", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True None\n"


def test_a_missing_package_is_an_error(tmp_path):
    with pytest.raises(PackageNotFoundError):
        copy_environment(tmp_path / "made", ["no-such-package-of-ours"])
