"""The public API: its names, that it needs no torch to import, and each function on a tiny task."""

import subprocess
import sys
from pathlib import Path

import pytest

import repairgym
from repairgym.errors import InputError


def test_there_are_at_most_20_public_names_and_all_exist():
    assert 15 <= len(repairgym.__all__) <= 20
    for name in repairgym.__all__:
        assert getattr(repairgym, name).__doc__, name
        assert name in dir(repairgym)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = repairgym.nonsense


def test_every_public_name_is_documented():
    page = (Path(__file__).parents[1] / "docs/reference/api.md").read_text()
    assert [name for name in repairgym.__all__ if f"`{name}" not in page] == []


def test_importing_the_package_needs_no_torch():
    code = "import sys, repairgym; assert repairgym.Task and repairgym.__version__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_advantages_compare_with_the_group():
    assert repairgym.group_advantages([1.0, 0.0, None, 0.0, 1.0]) == pytest.approx([1, -1, 0, -1, 1], abs=1e-4)
    assert repairgym.group_advantages([1.0, 1.0]) == [0.0, 0.0]


@pytest.mark.parametrize("algorithm", ["dapo", "grpo"])
def test_losses_have_names(algorithm):
    assert callable(repairgym.policy_loss(algorithm))


def test_an_unknown_policy_is_an_error_that_lists_what_there_is():
    with pytest.raises(InputError, match="expected a model folder, base, oracle"):
        repairgym.load_policy("no-such-thing")
    assert repairgym.load_policy("oracle").folder == ""
    assert repairgym.load_policy("base").folder == str(repairgym.shipped_base())


def test_tasks_of_one_function_are_in_one_split(task):
    tasks = [
        task.model_copy(update={"id": f"{name}-{k}", "location": None, "gold_files": {f"{name}.py": ""}})
        for name in "abcdef"
        for k in range(3)
    ]
    split = repairgym.split_tasks(tasks)
    assert {one.split for one in split} == {"train", "test"}
    assert len({(one.id[0], one.split) for one in split}) == 6
    assert {one.split for one in repairgym.split_tasks(tasks[:3])} == {"train"}


def test_training_rejects_trajectories_of_test_tasks(tmp_path, task, trajectory_maker):
    tasks = [task.model_copy(update={"id": "task-1", "split": "test"})]
    with (
        repairgym.open_run(tmp_path, tasks) as run,
        pytest.raises(InputError, match="expected train tasks only"),
    ):
        repairgym.train_sft(run, [trajectory_maker("a")])
