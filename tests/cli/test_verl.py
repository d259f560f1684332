"""`repairgym verl` and `repairgym train verl`: written configurations, refusals before anything starts."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repairgym.cli.main import create_app
from repairgym.cli.verl import load_verl_plan
from repairgym.errors import ConfigError
from repairgym.training.run_settings import keep_config

ROOT = Path(__file__).parents[2]
PAPERS = [
    ("paper_a/distill_then_grpo.toml", "distill_then_grpo", "paper_a/verl.toml", ["grpo"]),
    ("paper_b/two_stage.toml", "dapo_two_stage", "paper_b/verl.toml", ["stage-1", "stage-2"]),
]


def cli(*arguments):
    return CliRunner().invoke(create_app(), list(map(str, arguments)))


@pytest.mark.parametrize(("source", "recipe", "machine", "phases"), PAPERS)
def test_the_papers_recipes_are_written_for_verl(tmp_path, source, recipe, machine, phases):
    configs = ROOT / "src/repairgym/data/presets"
    result = cli("verl", "config", configs / source, tmp_path, "--recipe", recipe, "--machine", configs / machine)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == phases
    assert all((tmp_path / phase / "verl.yaml").is_file() for phase in phases)


def test_what_verl_cannot_do_is_an_error(tmp_path):
    result = cli("verl", "config", ROOT / "src/repairgym/data/presets/exploit_rl.toml", tmp_path)
    assert result.exit_code == 2
    assert "verl has no counterpart of: " in result.output


def test_a_dry_run_shows_both_configurations_and_checks_them():
    machine = ROOT / "src/repairgym/data/presets/verl_cpu.toml"
    command = [
        "train",
        "verl",
        "t",
        "r",
        "m",
        "--dry-run",
        "--machine",
        machine,
        "seed=3",
        "rl.algorithm.batch_size=130",
    ]
    result = cli(*command)
    assert result.exit_code == 0, result.output
    assert "seed = 3" in result.stdout
    assert 'engine = "embedded"' in result.stdout
    result = cli(*command, "rl.source_shares={mutations=0.5,releases=0.5}")
    assert result.exit_code == 2
    assert "verl draws tasks uniformly" in result.output


def test_missing_versions_are_refused_before_a_folder_is_made(tmp_path):
    """This environment has no verl."""
    arguments = [
        "rl.algorithm.batch_size=130",
        "verl.device=cpu",
        "verl.engine=embedded",
        "verl.rollout_tensor_parallel=1",
        "verl.sequence_parallel=1",
    ]
    train = ["train", "verl", tmp_path / "t", tmp_path / "run", tmp_path / "m"]
    for command in (["verl", "check", *arguments[1:]], [*train, *arguments]):
        result = cli(*command)
        assert result.exit_code == 2
        assert "make verl-env" in result.output
    assert not (tmp_path / "run").exists()


def test_what_verl_cannot_do_is_refused_before_a_folder_is_made(tmp_path):
    result = cli("train", "verl", tmp_path / "t", tmp_path / "run", tmp_path / "m", "rl.spread_share=0.5")
    assert result.exit_code == 2
    assert "rl.spread_share=0.5" in result.output
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_what_decides_its_numbers_of_the_machine(tmp_path):
    def keep(*overrides):
        for call in load_verl_plan("rl", None, None, overrides).calls():
            keep_config(tmp_path, call)

    keep()
    keep("verl.gpu_memory_share=0.5", "verl.save_every=2")
    with pytest.raises(ConfigError, match=r"batch_rounding=nearest \(was error\).*--machine"):
        keep("verl.batch_rounding=nearest")
    with pytest.raises(ConfigError, match=r"num_nodes=2"):
        keep("verl.num_nodes=2")
    with pytest.raises(ConfigError, match=r"rl\.num_groups=3 .*--config"):
        keep("rl.num_groups=3")


def test_stored_successes_are_written_for_verls_sft_trainer(tmp_path, synthetic_run):
    pytest.importorskip("pyarrow")
    base = ROOT / "src/repairgym/data/base"
    machine = ["verl.gpus_per_node=2", "verl.sequence_parallel=2", "verl.rollout_tensor_parallel=2"]
    result = cli("verl", "sft", synthetic_run, base, tmp_path / "out", "phase=rl", "sft.batch_size=2", *machine)
    assert result.exit_code == 0, result.output
    assert "-m verl.trainer.sft_trainer" in result.stdout
    assert (tmp_path / "out" / "samples.parquet").is_file()
    machine = ["verl.device=cpu", "verl.engine=embedded", "verl.rollout_tensor_parallel=1", "verl.sequence_parallel=1"]
    result = cli("verl", "sft", synthetic_run, base, tmp_path / "out", *machine)
    assert "use repairgym train sft" in result.output


def test_a_stored_success_beyond_the_positions_is_not_written_for_verl(tmp_path, synthetic_run):
    base = ROOT / "src/repairgym/data/base"
    model = tmp_path / "model"
    model.mkdir()
    config = json.loads((base / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 10}))
    for file in base.glob("token*"):
        shutil.copy(file, model)
    machine = ["verl.gpus_per_node=1", "verl.sequence_parallel=1", "verl.rollout_tensor_parallel=1"]
    result = cli("verl", "sft", synthetic_run, model, tmp_path / "out", "phase=rl", *machine)
    assert result.exit_code == 2
    assert "tokens for verl on 1 GPUs" in " ".join(result.output.split())
    assert "the model has 10 positions" in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()
