"""`repairgym train`: every command says what it would do, and refuses what it cannot, before a model is loaded."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repairgym.cli.main import create_app
from repairgym.config.loading import load_config
from repairgym.config.recipes import DistillThenGrpoConfig, RftCommandConfig, RlCommandConfig, TwoStageConfig
from repairgym.rollout.calls import locked
from repairgym.rollout.store import RunStore
from repairgym.training.run_settings import CallConfig, keep_config

ROOT = Path(__file__).parents[2]
BASE = ROOT / "src/repairgym/data/base"
PAPERS = [
    (["rft", "run", "model"], "paper_b/rft.toml", RftCommandConfig),
    (["dapo_two_stage", "tasks", "run", "model"], "paper_b/two_stage.toml", TwoStageConfig),
    (["distill_then_grpo", "tasks", "run", "model"], "paper_a/distill_then_grpo.toml", DistillThenGrpoConfig),
]


def cli(*arguments, **options):
    return CliRunner().invoke(create_app(), ["train", *map(str, arguments)], **options)


@pytest.mark.parametrize(("arguments", "config", "kind"), PAPERS)
def test_a_dry_run_prints_a_config_that_can_be_read_again(tmp_path, arguments, config, kind):
    result = cli(*arguments, "--config", ROOT / "src/repairgym/data/presets" / config, "--dry-run")
    assert result.exit_code == 0, result.output
    (tmp_path / "printed.toml").write_text(result.stdout)
    assert load_config(kind, tmp_path / "printed.toml") == load_config(
        kind, ROOT / "src/repairgym/data/presets" / config
    )


@pytest.mark.parametrize("command", ["sft", "rft", "step_dpo", "rl", "dapo_two_stage", "distill_then_grpo", "changes"])
def test_every_command_has_an_example(command):
    result = cli(command, "--help")
    assert result.exit_code == 0
    assert f"repairgym train {command}" in result.output


def test_what_several_processes_cannot_do_is_refused_before_anything_is_made(tmp_path, synthetic_run):
    result = cli("base", tmp_path / "model", env={"WORLD_SIZE": "2"})
    assert result.exit_code == 2
    assert "start it without torchrun" in result.output
    result = cli("rl", synthetic_run / "tasks", tmp_path / "run", BASE, "rl.algorithm.compute.context_parallel=2")
    assert result.exit_code == 2
    assert "2 parts of the context need a multiple of 2 GPUs or processes" in " ".join(result.output.split())
    assert not list(tmp_path.iterdir())


def test_asynchronous_rl_without_a_correction_is_refused():
    result = cli("rl", "tasks", "run", "model", "rl.max_staleness=1")
    assert result.exit_code == 2
    assert "algorithm.correction.type='truncate' or 'mask'" in result.output
    shown = cli("rl", "t", "r", "m", "rl.max_staleness=1", "rl.algorithm.correction.type=mask", "--dry-run")
    assert "max_staleness = 1" in shown.output


def test_a_run_without_successes_is_a_clear_error(tmp_path):
    RunStore.create(tmp_path / "run.db").close()
    result = cli("sft", tmp_path, BASE)
    assert result.exit_code == 7
    assert "no passed trajectory in phase 'rollout'" in result.output


def test_a_model_folder_that_is_none_is_refused_before_anything_is_made(tmp_path, synthetic_run):
    (tmp_path / "model").mkdir()
    result = cli("distill_then_grpo", synthetic_run / "tasks", tmp_path / "run", tmp_path / "model")
    assert result.exit_code == 3
    assert "tokenizer.json" in result.output
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_go_on_with_other_settings_or_another_model(tmp_path, task_folder):
    run = tmp_path / "run"
    keep_config(run, CallConfig("train-rl", RlCommandConfig(seed=1)))
    result = cli("rl", task_folder, run, BASE)
    assert result.exit_code == 2
    assert "seed=0 (was 1)" in " ".join(result.output.split())
    (run / "checkpoints/start").mkdir(parents=True)
    result = cli("dapo_two_stage", task_folder, run, BASE)
    assert result.exit_code == 3
    assert "another model" in " ".join(result.output.split())
    assert not (run / "run.db").exists()


@pytest.mark.parametrize("command", ["sft", "rft", "step_dpo"])
def test_two_fits_do_not_write_one_run(synthetic_run, tmp_path, command):
    run = shutil.copytree(synthetic_run, tmp_path / "run")
    with locked(run):
        result = cli(command, run, BASE, "phase=rl")
    assert result.exit_code == 3, result.output
    assert "another process works on" in " ".join(result.output.split())
