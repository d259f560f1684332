from __future__ import annotations

import pytest

from repairgym.errors import InputError
from repairgym.report.run_folder import read_config, read_funnel, task_digests


@pytest.fixture
def run_folder(tmp_path):
    return tmp_path


def test_broken_files_of_a_run_are_named(run_folder):
    (run_folder / "tasks").mkdir()
    (run_folder / "config.toml").write_text("a = ")
    with pytest.raises(InputError, match=r"config\.toml is not TOML"):
        read_config(run_folder)
    (run_folder / "tasks" / "funnel.json").write_text("{")
    with pytest.raises(InputError, match="is no JSON"):
        read_funnel(run_folder)
    (run_folder / "tasks" / "funnel.json").write_text("[]")
    with pytest.raises(InputError, match="no JSON object"):
        read_funnel(run_folder)


def test_settings_of_commands_are_read_where_there_is_no_config_file(run_folder):
    (run_folder / "configs").mkdir()
    (run_folder / "configs" / "train-rl.toml").write_text("seed = 3")
    assert read_config(run_folder) == {"train-rl": {"seed": 3}}
    (run_folder / "config.toml").write_text("seed = 4")
    assert read_config(run_folder) == {"seed": 4}
    (run_folder / "fitted.toml").write_text("seed = 4\nnum_tasks = 2")
    assert read_config(run_folder) == {"seed": 4, "num_tasks": 2}


def test_absent_files_of_a_run_are_empty(run_folder):
    assert read_config(run_folder) == {}
    assert read_funnel(run_folder) is None
    assert task_digests(run_folder) == {}
