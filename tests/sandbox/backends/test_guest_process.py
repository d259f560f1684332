import os

import pytest

from repairgym.errors import InputError, SandboxError
from repairgym.sandbox.backends.guest_process import find_interpreter_folders


def test_interpreter_folders(tmp_path):
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    with pytest.raises(InputError, match="bin/python"):
        find_interpreter_folders(environment)
    python = environment / "bin" / "python"
    python.symlink_to("/bin/sh")
    assert find_interpreter_folders(environment) == ()
    python.unlink()
    real = tmp_path / "opt" / "python" / "bin"
    real.mkdir(parents=True)
    (real / "python3").touch()
    python.symlink_to(os.path.relpath(real / "python3", python.parent))
    if str(tmp_path).startswith("/tmp/"):
        with pytest.raises(SandboxError, match="installed elsewhere"):
            find_interpreter_folders(environment)
    else:
        assert find_interpreter_folders(environment) == (str(tmp_path / "opt" / "python"),)
