"""The public API: its names, that it needs no torch to import, and each function on a tiny task."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import repairgym
from repairgym.config.learning import LastChoice, SftConfig
from repairgym.errors import InputError
from repairgym.inference.loading import weights_digest


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


def test_a_phase_and_an_evaluation_have_one_policy(tmp_path, task):
    oracle = repairgym.load_policy("oracle")
    with repairgym.open_run(tmp_path, [task]) as run:
        for phase in ("rollout", "eval/oracle/test"):
            run.store.start_phase(phase, {"policy_digest": "another"})
            run.store.end_phase(phase)
        with pytest.raises(InputError, match=r"rollout of .* another policy"):
            repairgym.run_episodes(run, oracle, [task])
        with pytest.raises(InputError, match=r"eval/oracle/test of .* another policy"):
            repairgym.evaluate(run, oracle, [task])
    with repairgym.open_run(tmp_path / "other", [task], seed=1) as run:
        run.store.start_phase("eval/first/test", {"seed": "0"})
        run.store.end_phase("eval/first/test")
        with pytest.raises(InputError, match=r"eval/first/test of .* another seed"):
            repairgym.evaluate(run, oracle, [task], stage="first")


def test_a_run_keeps_the_model_that_it_was_begun_with(tmp_path, task, base):
    with repairgym.open_run(tmp_path, [task], base):
        pass
    with repairgym.open_run(tmp_path, [task]) as run:
        assert (run.checkpoint("base") / "config.json").read_bytes() == (base / "config.json").read_bytes()
    with (
        pytest.raises(InputError, match="begun with another model"),
        repairgym.open_run(tmp_path, [task], repairgym.shipped_base()),
    ):
        pass


def test_other_lessons_make_another_checkpoint(tmp_path, task, base, trajectory_maker):
    tasks = [task.model_copy(update={"id": "task-1", "split": "train"})]
    config = SftConfig(num_epochs=1, choice=LastChoice())
    lessons = [trajectory_maker(name, "task-1") for name in ("a", "b")]
    with repairgym.open_run(tmp_path, tasks, base) as run:
        shutil.copytree(base, run.checkpoint("sft"))  # of an earlier version, which kept no digest
        target = run.checkpoint("sft")
        for _ in range(2):
            assert repairgym.train_sft(run, lessons[:1], config=config).folder == str(target)
            assert weights_digest(target) == weights_digest(base)
        repairgym.train_sft(run, lessons[:1], config=config.model_copy(update={"num_epochs": 2}))
        assert weights_digest(target) != weights_digest(base)
