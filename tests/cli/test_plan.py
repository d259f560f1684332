"""`repairgym plan` on the command line."""

import json

from typer.testing import CliRunner

from repairgym.cli.main import create_app
from repairgym.rollout.store import RunStore


def test_a_check_and_the_models_are_printed_as_json(tmp_path, trajectory_maker):
    (tmp_path / "config.toml").write_text("[rollout]\nnum_workers = 1\n")
    with RunStore.create(tmp_path / "run.db") as store:
        store.add_trajectory(trajectory_maker(), phase="rl", step=3, split="train")
        store.add_metrics("rl", 3, {"time/rollout_s": 2.0})
    result = CliRunner().invoke(create_app(), ["plan", "--check", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert (row["iteration"], row["measured_s"]) == (3, 2.0)
    assert row["simulated_s"] > 0.0
    result = CliRunner().invoke(create_app(), ["plan", "--models", "--json"])
    assert json.loads(result.stdout)["Qwen3-8B"]["num_parameters"] > 8e9


def test_simulated_rollouts_stand_beside_what_such_took_when_they_were_measured():
    sizes = ["model=Qwen3-8B", "context_tokens=16384", "num_groups=1", "group_size=2", "episode.num_turns=3"]
    result = CliRunner().invoke(create_app(), ["plan", "--json", *sizes])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)["one iteration"]
    least, most = map(float, figures["rollouts (s) as a demo measured them"].split(" to "))
    assert figures["rollouts (s, simulated)"] < least < most < 2 * figures["rollouts (s, simulated)"]


def test_an_episode_is_measured_in_a_run_that_is_no_demo(tmp_path, trajectory_maker):
    with RunStore.create(tmp_path / "run.db") as store:
        store.add_trajectory(trajectory_maker(), phase="rl", step=0, split="train")
    result = CliRunner().invoke(create_app(), ["plan", "--measure", str(tmp_path), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert f"num_turns = {float(len(trajectory_maker().turns))}" in result.stdout


def test_a_check_takes_no_settings(tmp_path):
    for words in (["model=Qwen3-8B"], ["--measure", str(tmp_path)]):
        result = CliRunner().invoke(create_app(), ["plan", "--check", str(tmp_path), *words])
        assert (result.exit_code, "--check takes everything from its run" in result.output) == (2, True)
