"""The configuration folder: YAML whose lines name their source; rows."""

import json
import re
from pathlib import Path

import pyarrow.parquet
import pytest
import yaml

from repairgym.bridges.verl.config_files import (
    Stage,
    VerlPaths,
    command,
    environment,
    read_comments,
    sized,
    write_stage,
)
from repairgym.bridges.verl.training import write_rows
from repairgym.config.cluster import VerlConfig
from repairgym.config.loading import load_config
from repairgym.config.recipes import DistillThenGrpoConfig, RlCommandConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError

ROOT = Path(__file__).parents[3]
CPU = VerlConfig(device="cpu", engine="embedded", gpus_per_node=2, rollout_tensor_parallel=1, sequence_parallel=1)


@pytest.fixture
def paths(tmp_path) -> VerlPaths:
    folder = tmp_path / "verl"
    return VerlPaths(folder, tmp_path / "m", tmp_path / "t", folder / "a.parquet", folder / "b.parquet", tmp_path / "c")


def test_every_line_names_its_source(paths):
    source = ROOT / "src/repairgym/data/presets/paper_a/distill_then_grpo.toml"
    config = load_config(DistillThenGrpoConfig, source)
    machine = load_config(VerlConfig, ROOT / "src/repairgym/data/presets/paper_a/verl.toml")
    path = write_stage(Stage("grpo", config.rl, config.rollout, comments=read_comments(source)), machine, paths)
    body = path.read_text().partition("_self_\n")[2].splitlines()
    values = [line for line in body if not line.split("  #")[0].rstrip().endswith(":")]
    assert len(values) > 70
    assert all("  # " in line for line in values)
    assert any(
        line.strip() == "n: 4  # rl.algorithm.group_size: ... with 4 rollouts: up to 32 builds at one time"
        for line in body
    )
    assert any("lr: 1.0e-06  # rl.algorithm.optimizer.learning_rate: our choice: paper B's" in line for line in body)
    document = yaml.safe_load(path.read_text())
    assert document["actor_rollout_ref"]["actor"]["optim"]["lr"] == 1e-6
    assert document["data"]["train_files"] == str(paths.train_rows)
    (loop,) = yaml.safe_load((paths.folder / "agent_loop.yaml").read_text())
    assert Path(loop["settings"]).is_file()
    assert document["actor_rollout_ref"]["rollout"]["agent"]["default_agent_loop"] == loop["name"]
    assert str(paths.folder) in command(paths)
    assert document["ray_kwargs"]["ray_init"]["address"] == "local", "never a cluster that happens to run here"


def test_workers_are_enough_for_the_episodes_of_an_iteration_within_the_processors(paths):
    rl = RlCommandConfig().rl.model_copy(update={"num_groups_sampled": 300})
    asked = Stage("rl", rl, RolloutConfig(max_in_flight=48))
    machine = VerlConfig(num_nodes=16, num_cpus=3 * 8 + 10, batch_rounding="nearest")
    chosen = sized(asked, machine)
    assert chosen.rollout.num_workers == -(-300 * rl.algorithm.group_size // 48)
    assert sized(asked, machine.model_copy(update={"num_cpus": 3 * 8 + 2})).rollout.num_workers == 32
    text = write_stage(chosen, machine, paths).read_text()
    assert re.search(
        rf"num_workers: {chosen.rollout.num_workers}  # rollout.num_workers: .* workers with up to 48", text
    )
    given = Stage("rl", rl, RolloutConfig(num_workers=3))
    assert sized(given, machine) is given


def test_processes_get_our_plug_in_and_on_a_cpu_our_platform(paths):
    assert environment(paths, VerlConfig())["VERL_USE_EXTERNAL_MODULES"] == "repairgym.bridges.verl.plugin"
    assert "VERL_PLATFORM" not in environment(paths, VerlConfig())
    assert environment(paths, CPU)["VERL_PLATFORM"] == "cpu"


def test_rows_name_their_task_and_hide_the_solution(task, tmp_path):
    path = tmp_path / "rows.parquet"
    assert write_rows([task], path) == 1
    (row,) = pyarrow.parquet.read_table(path).to_pylist()
    assert row["extra_info"] == {"index": 0, "task_id": task.id, "split": task.split}
    assert row["agent_name"] == "repairgym"
    assert "<=" not in json.dumps(row)


def test_rows_are_of_one_split(task, tmp_path):
    other = task.model_copy(update={"split": "validation" if task.split != "validation" else "train"})
    for tasks in ([], [task, other]):
        with pytest.raises(ConfigError, match="splits"):
            write_rows(tasks, tmp_path / "rows.parquet")


def test_comments_of_a_file(tmp_path):
    (tmp_path / "a.toml").write_text('top = 1  # first\n[a.b]\nname = "x # y"   # told\nbare = [1, 2]\n')
    assert read_comments(tmp_path / "a.toml") == {"top": "first", "a.b.name": "told", "a.b.bare": ""}
