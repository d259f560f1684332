"""`repairgym rollout`: its last lines; with ``--branch``, which episodes it takes, and what it says of the others."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repairgym.cli.episodes import branch_jobs, check_identity, load_scaffold, print_verdicts
from repairgym.cli.main import create_app
from repairgym.config.commands import RolloutCommandConfig
from repairgym.config.loading import load_config
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError, InputError
from repairgym.evaluation.pass_at_k import pass_at_1
from repairgym.records import VerdictKind
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.store import RunStore
from repairgym.training.run import Run
from repairgym.training.run_settings import CallConfig, keep_config


@pytest.fixture
def opened(tmp_path, task, trajectory_maker):
    stored = trajectory_maker(task_id=task.id)
    turns = tuple(turn.model_copy(update={"state": "a"}) for turn in stored.turns)
    with RunStore.create(tmp_path / "run.db") as store:
        store.add_trajectory(replace(stored, turns=turns), phase="rl", step=0, split="train")
        yield Run(tmp_path, store, pool=None, tasks={task.id: task})


def test_a_branch_names_an_episode_and_its_turns(opened):
    jobs = branch_jobs(opened, PolicyRef("p"), RolloutCommandConfig(num_samples=2), "t-1:2")
    assert [job.trajectory_id for job in jobs] == ["branch/p/t-1:2#0", "branch/p/t-1:2#1"]
    assert {(job.prefix.trajectory.id, job.prefix.num_turns) for job in jobs} == {("t-1", 2)}


@pytest.mark.parametrize(
    ("branch", "overrides", "error", "message"),
    [
        ("t-1", (), ConfigError, "expected ID:TURNS"),
        ("t-1:last", (), ConfigError, "expected ID:TURNS"),
        ("t-2:1", (), InputError, "holds no trajectory 't-2'"),
        ("t-1:3", (), InputError, "it branches after turn 1 to 2"),
        ("t-1:1", ("rollout.pipeline.type=paper_b",), ConfigError, "has the pipeline 'compact', got 'paper_b'"),
    ],
)
def test_other_branches_are_errors(opened, branch, overrides, error, message):
    with pytest.raises(error, match=message):
        branch_jobs(opened, PolicyRef("p"), load_config(RolloutCommandConfig, None, list(overrides)), branch)


def test_a_branch_of_a_task_that_is_not_there_is_an_error(opened):
    with pytest.raises(InputError, match="which is not among the tasks"):
        branch_jobs(replace(opened, tasks={}), PolicyRef("p"), RolloutCommandConfig(), "t-1:1")


def test_a_branch_leaves_no_choice_of_tasks(task_folder, tmp_path):
    arguments = ["rollout", str(task_folder), str(tmp_path / "run"), "--branch", "t-1:1", "select.num_tasks=3"]
    done = CliRunner().invoke(create_app(), arguments)
    assert done.exit_code == ConfigError.exit_code
    assert "leave select.* out" in done.output
    assert not (tmp_path / "run").exists()


def test_a_rollout_ends_with_its_rate_its_interval_and_the_next_command(trajectory_maker, capsys):
    kinds = (VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.INVALID)
    made = [trajectory_maker(f"t{number}", f"task-{number}", kind=kind) for number, kind in enumerate(kinds)]
    print_verdicts("rft", made, {}, Path("runs/my run"), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "rft: 3 tasks, 3 episodes: 1 passed, 1 failed, 1 invalid"
    rate = pass_at_1({trajectory.task_id: [trajectory.verdict.kind] for trajectory in made})
    assert lines[1] == f"Pass@1 33.3 %, 95 % interval {100 * rate.ci_low:.1f} to {100 * rate.ci_high:.1f} %"
    assert lines[2:] == ["next: repairgym view 'runs/my run'"]
    print_verdicts("rft", made, {}, Path("run"), as_json=True)
    assert json.loads(capsys.readouterr().out)["num_tasks"] == 3


def test_two_models_of_one_name_have_no_common_episodes(store, base, tmp_path):
    settings = RolloutConfig()
    model = shutil.copytree(base, tmp_path / "b" / "rl")
    ref, other = PolicyRef("rl", str(base)), PolicyRef("rl", str(model))
    store.start_phase("rollout")  # of an earlier version, which kept nothing of a policy
    store.start_phase("rollout", check_identity(store, "rollout", ref, settings))
    assert check_identity(store, "rollout", other, settings) == check_identity(store, "rollout", ref, settings)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=r"rollout of .* was begun with another policy of the name 'rl'"):
        check_identity(store, "rollout", other, settings)
    assert check_identity(store, "rollout", PolicyRef("sft", str(model)), settings)
    assert check_identity(store, "branch", other, settings)


def test_a_rollout_of_another_model_is_rejected_before_an_episode(cli, task_folder, tmp_path):
    with RunStore.create(tmp_path / "run.db") as store, store.phase("rollout", {"oracle/policy_digest": "another"}):
        pass
    code, text = cli("rollout", task_folder, tmp_path, "--policy", "oracle", "rollout.num_workers=1")
    assert (code, "another policy of the name 'oracle'" in " ".join(text.split())) == (3, True), text


def test_scaffolds_reject_settings_that_they_do_not_read(cli, task_folder, tmp_path):
    for word in ("seed=3", "num_samples=2", "select.splits=test", "cluster.address=auto"):
        code, text = cli("scaffolds", task_folder, tmp_path / "run", "--pipeline", "compact", word)
        assert (code, "reads rollout.* only" in " ".join(text.split())) == (2, True), text
    (tmp_path / "own.toml").write_text("num_samples = 3\n[rollout.pipeline]\ntype = 'compact'\n")
    with pytest.raises(ConfigError, match="got num_samples"):
        load_scaffold(str(tmp_path / "own.toml"), [])
    assert not (tmp_path / "run").exists()


def test_scaffolds_of_one_name_have_the_same_settings(cli, task_folder, tmp_path):
    keep_config(tmp_path / "run", CallConfig("scaffold-compact", load_scaffold("compact", [])))
    words = ("scaffolds", task_folder, tmp_path / "run", "--pipeline", "compact", "rollout.pipeline.max_turns=5")
    code, text = cli(*words)
    assert (code, "rollout.pipeline.max_turns=5 (was" in " ".join(text.split())) == (2, True), text
