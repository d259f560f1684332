"""The commands around evaluations, on stored runs."""

from __future__ import annotations

import json
import shutil

import pytest

from repairgym.cli.eval import print_evaluation
from repairgym.cli.running import keep_evaluation
from repairgym.config.commands import EvalCommandConfig
from repairgym.config.loading import load_config
from repairgym.evaluation.pass_at_k import pass_at_1
from repairgym.records import VerdictKind
from repairgym.rollout.calls import locked
from repairgym.rollout.store import RunStore
from repairgym.training.run import Run


@pytest.fixture
def run_copy(synthetic_run, tmp_path):
    return shutil.copytree(synthetic_run, tmp_path / "run")


def test_show_prints_every_number_of_an_evaluation(cli, synthetic_run):
    code, text = cli("eval", "show", synthetic_run, "--phase", "eval/rl/test-mutations")
    assert code == 0
    for words in ("Pass@1 of every stage", "Pass@1 by label", "Best of 2", "RL solves more than"):
        assert words in text
    code, text = cli("eval", "show", synthetic_run)
    assert code == 0
    words = " ".join(text.split())
    assert "Pass@1 of every stage" in words
    assert "Pass@1 by label" not in words
    assert "RL solves more than" in words
    assert "--phase with one of eval/" in words
    assert "eval/rl/test-mutations" in words
    code, text = cli("eval", "show", synthetic_run, "--json")
    assert json.loads(text)["phase"] == ""


def test_compare_two_phases_of_one_run(cli, synthetic_run):
    code, text = cli(
        *("eval", "compare", synthetic_run, synthetic_run, "--phase", "eval/rl/test-mutations"),
        *("--reference-phase", "eval/base/test-mutations"),
    )
    assert code == 0
    assert "solves more than eval/base/test-mutations of run on 12 common tasks" in text


def test_predictions(cli, synthetic_run, tmp_path):
    out = tmp_path / "preds.jsonl"
    code, text = cli("eval", "predictions", synthetic_run, out, "--phase", "eval/rl/test-mutations")
    assert (code, text.strip()) == (0, f"12 predictions: {out}")
    assert {"instance_id", "model_name_or_path", "model_patch"} == set(json.loads(out.read_text().splitlines()[0]))


def test_analyse_prints_and_writes(cli, run_copy):
    code, text = cli("analyse", run_copy, "num_permutations=9", 'export.tables=["csv"]', 'export.figures=["svg"]')
    assert code == 0
    assert "Behavior" in text
    assert "Jensen-Shannon" in text
    assert (run_copy / "analysis" / "behavior.csv").is_file()
    assert (run_copy / "analysis" / "figure-tools-during-training.svg").is_file()
    assert not list((run_copy / "analysis").glob("*.parquet"))
    code, text = cli("analyse", run_copy, "phase=none")
    assert code == 3
    assert "has no phase 'none'; phases are" in text


def test_report_with_data_and_comparison(cli, run_copy, synthetic_run, tmp_path):
    code, text = cli("report", run_copy, "--data", "--set", 'tables=["csv"]', "--set", "figures=[]")
    assert code == 0
    assert text.strip().endswith("report.html")
    assert (run_copy / "data" / "stages.csv").is_file()
    second = run_copy.rename(tmp_path / "second")
    code, text = cli("report", "--compare", synthetic_run, second, "--out", tmp_path / "c.html")
    assert (code, text.strip()) == (0, str(tmp_path / "c.html"))
    code, text = cli("report", synthetic_run, second)
    assert code == 2
    assert "--compare" in text


@pytest.mark.parametrize(
    "command", [("eval", "run", "t", "r"), ("eval", "audit", "r"), ("eval", "exploit-study", "t", "r")]
)
def test_dry_runs_say_what_would_run(cli, command):
    code, text = cli(*command, "--dry-run")
    assert code == 0
    assert "is_cold" in text
    assert cli(*command, "--dry-run", "nonsense=1")[0] == 2


def test_a_missing_checkpoint_is_refused(cli, tmp_path):
    config = tmp_path / "m.toml"
    config.write_text('[policies.a]\npolicy = "missing"\n[environments.e]\n')
    code, text = cli("eval", "matrix", tmp_path, tmp_path / "run", "--config", config)
    assert code == 3
    assert "expected a model folder" in text
    assert not (tmp_path / "run").exists()


def test_a_comparison_is_planned_from_a_pilot(cli, synthetic_run):
    pilot = [synthetic_run, "--phase", "eval/rl/test-mutations"]
    code, text = cli("eval", "plan", *pilot, "--tasks", 100, "--samples", 1, "--samples", 4)
    assert code == 0, text
    assert "assumed: rates of the policies correlate by 0.8" in " ".join(text.split())
    reference = ["--reference", synthetic_run, "--reference-phase", "eval/rft/test-mutations"]
    code, text = cli("eval", "plan", *pilot, *reference, "--difference", 50, "--json")
    assert code == 0, text
    found = json.loads(text)
    assert found["variance_is"] == "measured on both policies"
    studies, needs = found["tables"].values()
    assert [row["num_samples"] for row in studies] == [row["num_samples"] for row in needs] == [1, 2, 4, 8]
    assert studies[0]["standard_error"] >= studies[-1]["standard_error"]
    code, text = cli("eval", "plan", *pilot, *reference, "--correlation", 0.5)
    assert code == 3
    assert "--correlation needs a pilot" in text


def test_evaluations_are_ranked_with_intervals(cli, synthetic_run, tmp_path):
    code, text = cli("eval", "rank", synthetic_run, "--json")
    assert code == 0, text
    places = json.loads(text)["Ranks by Pass@1 on the common tasks of test-mutations"]
    assert {"rl", "rft", "base"} <= {row["name"] for row in places}
    assert [row["pass_at_1"] for row in places] == sorted((row["pass_at_1"] for row in places), reverse=True)
    assert all(1 <= row["rank_low"] <= row["rank_high"] <= len(places) for row in places)
    shutil.copytree(synthetic_run, tmp_path / "other" / synthetic_run.name)
    code, text = cli("eval", "rank", synthetic_run, tmp_path / "other" / synthetic_run.name, "--json")
    both = json.loads(text)["Ranks by Pass@1 on the common tasks of test-mutations"]
    assert len(both) == 2 * len(places)
    code, text = cli("eval", "rank", synthetic_run, "--phase", "eval/rl/test-mutations")
    assert code != 0
    assert "no test set has two evaluations eval/rl/test-mutations in" in " ".join(text.split())


def test_a_test_set_that_cannot_be_ranked_hides_no_other(cli, trajectory_maker, tmp_path):
    with RunStore.create(tmp_path / "run.db") as store:
        for phase, tasks in (("a/good", "tuv"), ("b/good", "tuv"), ("a/bad", "tuv"), ("b/bad", "xyz")):
            for task in tasks:
                one = trajectory_maker(f"{phase}{task}", task, group_id=f"{phase}{task}")
                store.add_trajectory(one, phase=f"eval/{phase}", step=0, split="test")
    code, text = cli("eval", "rank", tmp_path)
    assert code == 0
    assert "bad cannot be ranked: got 0 tasks that all of a, b have tried" in " ".join(text.split())
    assert "common tasks of good" in " ".join(text.split())


def test_patches_that_a_search_judged_by_visible_tests_are_not_graded_again(
    cli, task_folder, trajectory_maker, tmp_path
):
    with RunStore.create(tmp_path / "run.db") as store:
        store.add_trajectory(trajectory_maker(), phase="solve/base", step=0, split="test")
    code, text = cli("eval", "regrade", tmp_path, "--tasks", task_folder)
    assert code == 0
    assert "0 of 0 rewarded trajectories" in text


def test_costs_of_a_solve_are_shown(cli, synthetic_run):
    code, text = cli("eval", "show", synthetic_run, "--json")
    assert code == 0
    (rows,) = (rows for title, rows in json.loads(text)["tables"].items() if title.startswith("Costs of a solve"))
    assert all(row["tokens_per_solve"] >= row["sampled_tokens_per_solve"] > 0 for row in rows if row["num_passed"])


def test_an_evaluation_ends_with_its_rate_its_interval_and_the_next_command(tmp_path, trajectory_maker, capsys):
    run = tmp_path / "my run"
    run.mkdir()
    kinds = {f"task-{number}": [VerdictKind.PASSED if number < 3 else VerdictKind.FAILED] for number in range(8)}
    with RunStore.create(run / "run.db") as store, store.phase("eval/rl/test-mutations"):
        for task, (kind,) in kinds.items():
            made = trajectory_maker(task, task, kind=kind, group_id=task)
            store.add_trajectory(made, phase="eval/rl/test-mutations", step=0, split="test")
    print_evaluation(run, run / "tasks", "eval/rl/test-mutations")
    *_, rate, following = capsys.readouterr().out.splitlines()
    estimate = pass_at_1(kinds)
    interval = f"95 % interval {100 * estimate.ci_low:.1f} to {100 * estimate.ci_high:.1f} %"
    assert rate.startswith(f"rl on test-mutations: Pass@1 37.5 %, {interval} (")
    assert following == f"next: repairgym view '{run}', repairgym eval compare '{run}' OTHER_RUN"


def test_a_stage_is_a_name(cli, task_folder, tmp_path):
    code, text = cli("eval", "run", task_folder, tmp_path / "run", "--policy", "oracle", "--stage", "exp/1")
    assert (code, "got --stage 'exp/1'" in " ".join(text.split())) == (2, True), text
    assert not (tmp_path / "run").exists()


def test_an_evaluation_keeps_its_seed(cli, task_folder, tmp_path):
    phase = "eval/first/train"
    with RunStore.create(tmp_path / "run.db") as store, store.phase(phase, {"seed": "0"}):
        pass
    words = ("eval", "run", task_folder, tmp_path, "--policy", "oracle", "--stage", "first", "select.splits=train")
    code, text = cli(*words, "seed=1", "rollout.num_workers=1")
    assert (code, f"{phase} of" in text, "another seed" in " ".join(text.split())) == (3, True, True), text
    assert not (tmp_path / "configs").exists()


def test_the_settings_of_an_evaluation_are_kept_and_may_change(tmp_path):
    with RunStore.create(tmp_path / "run.db") as store:
        run = Run(tmp_path, store, pool=None, tasks={})
        for num_samples in (2, 3):
            config = EvalCommandConfig(num_samples=num_samples)
            keep_evaluation(run, "first", {"policy_digest": "a"}, config)
            assert load_config(EvalCommandConfig, tmp_path / "configs" / "eval-first-test.toml") == config


@pytest.mark.parametrize("command", [("eval", "audit", "phase=rl"), ("trajectories", "import", "source")])
def test_a_run_has_one_process_that_writes(cli, run_copy, tmp_path, command):
    (tmp_path / "source").mkdir()
    words = [str(tmp_path / "source") if word == "source" else word for word in command]
    with locked(run_copy):
        code, text = cli(*words[:2], run_copy, *words[2:])
    assert (code, "another process works on" in " ".join(text.split())) == (3, True), text


def test_unknown_tasks_are_not_called_unaudited(cli, run_copy):
    phase = ("--phase", "eval/rl/test-mutations")
    assert "(verdicts: not audited)" in cli("eval", "show", run_copy, *phase)[1]
    shutil.rmtree(run_copy / "tasks")
    words = " ".join(cli("eval", "show", run_copy, *phase)[1].split())
    assert "(verdicts: unknown, because the run's tasks were not found)" in words
    assert f"no certified tasks in {run_copy / 'tasks'}" in words


def test_a_matrix_of_two_temperatures_is_a_matter_of_settings(cli, task_folder, tmp_path):
    settings = ["policies.a.policy=oracle", "environments.x.temperature=1.0", "environments.y.temperature=0.5"]
    code, text = cli("eval", "matrix", task_folder, tmp_path / "run", *settings)
    assert (code, "a single temperature" in " ".join(text.split())) == (2, True), text
