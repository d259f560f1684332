"""`repairgym serve`: the name under which a model answers."""

import pytest

from repairgym.cli.serve import served_name
from repairgym.inference.loading import shipped_base


@pytest.mark.parametrize(("policy", "name"), [(".", "model"), ("..", "runs"), ("../model", "model"), ("base", "base")])
def test_a_folder_is_served_under_its_own_name(tmp_path, monkeypatch, policy, name):
    (tmp_path / "runs" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "runs" / "model")
    assert served_name(policy) == name


@pytest.mark.parametrize("policy", ["", "vllm", str(shipped_base())])
def test_tasks_are_for_scripts(cli, task_folder, policy):
    code, text = cli("serve", "--policy", policy, "--tasks", task_folder)
    assert (code, "--tasks is for scripts" in " ".join(text.split())) == (2, True), text
