from __future__ import annotations

import pytest

from repairgym.errors import InputError
from repairgym.view.folders import RunFolders


def test_runs_are_found_below_a_folder(tmp_path):
    for name in ("b", "deep/er/a", "tasks/no", ".hidden", "too/deep/to/find"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.db").touch()
    folders = RunFolders(tmp_path)
    assert [one.key for one in folders.all()] == ["b", "deep~er~a"]
    assert folders.get("deep~er~a").name == "deep/er/a"
    for key in ("..", "../b", "b/../b", ".hidden"):
        with pytest.raises(InputError, match="no run"):
            folders.get(key)
    assert [one.key for one in RunFolders(tmp_path / "b").all()] == ["b"]
