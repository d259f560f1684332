from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from repairgym.errors import TaskError
from repairgym.tasks.layers.environments import (
    base_python,
    build_environment,
    describe_environment,
    lock_name,
    resolve_lock,
    shipped_lock,
)
from repairgym.tasks.layers.store import LayerStore


def test_equal_requirements_share_one_lock() -> None:
    assert lock_name(("b>=1", "a")) == lock_name(("a", "b>=1")) == "pytest+a+b-1.txt"
    assert lock_name(()) == "pytest.txt"


def test_digest_follows_the_lock() -> None:
    lock = shipped_lock(())
    assert describe_environment(lock) == describe_environment(lock)
    assert describe_environment(lock).digest != describe_environment(lock + "\n").digest


def test_missing_lock_says_how_to_make_it() -> None:
    with pytest.raises(TaskError, match="repairgym tasks lock"):
        shipped_lock(("no-such-requirement",))


def test_base_python_is_outside_any_virtual_environment() -> None:
    code = "import sys; print(sys.prefix == sys.base_prefix)"
    done = subprocess.run([str(base_python()), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.network
def test_environment_holds_what_its_lock_names(tmp_path: Path) -> None:
    lock = resolve_lock(())
    assert "--hash=sha256:" in lock
    assert "://" not in lock
    environment, folder = build_environment(LayerStore(tmp_path), lock)
    assert folder.name == environment.digest
    code = "import pytest, sys; print(pytest.__version__, sys.prefix)"
    done = subprocess.run([str(folder / "bin" / "python"), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["8.3.5", str(folder)]
    assert list(folder.rglob("pytest/__pycache__/*.pyc"))
