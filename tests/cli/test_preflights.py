"""What training commands and dry runs check of stored episodes, of selections and of contexts, with real folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from repairgym.cli.main import create_app
from repairgym.config.learning import SftConfig
from repairgym.inference.model_source import shipped_base
from repairgym.rollout.store import RunStore
from repairgym.training.supervised import stored_samples

PHASE = "rl"


def cli(*arguments: object, **environment: str) -> Result:
    return CliRunner().invoke(create_app(), list(map(str, arguments)), env=environment)


def said(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.fixture(scope="session")
def longest(synthetic_run: Path) -> int:
    """Tokens of the longest sample, up to its last learned token."""
    with RunStore.open(synthetic_run / "run.db", is_read_only=True) as store:
        samples = stored_samples(store, PHASE, 4, SftConfig(), shipped_base())
    return max(int(sample.weight.nonzero()[0][-1]) + 1 for sample in samples)


def model_with(folder: Path, positions: int) -> Path:
    """The shipped base with other positions in its config.json."""
    folder.mkdir()
    config = json.loads((shipped_base() / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
    for file in shipped_base().glob("token*"):
        shutil.copy(file, folder)
    return folder


@pytest.mark.parametrize("command", ["sft", "rft"])
def test_stored_lengths_are_read_with_and_without_a_dry_run(
    command: str, synthetic_run: Path, longest: int, tmp_path: Path
) -> None:
    fits, short = model_with(tmp_path / "fits", longest), model_with(tmp_path / "short", longest - 1)
    result = cli("train", command, synthetic_run, fits, f"phase={PHASE}", "--dry-run")
    assert f"# {fits}: a context of {longest:,} tokens for learner" in said(result), result.output
    assert "not on this machine" not in result.output
    for extra in (["--dry-run"], []):
        result = cli("train", command, synthetic_run, short, f"phase={PHASE}", *extra)
        assert result.exit_code == 2
        assert f"a context of {longest:,} tokens for learner" in said(result)
        assert f"the model has {longest - 1:,} positions" in said(result)
    assert not (synthetic_run / "checkpoints" / command).exists()


def test_a_phase_without_successes_is_told_by_a_dry_run(synthetic_run: Path) -> None:
    result = cli("train", "sft", synthetic_run, "base", "phase=absent", "--dry-run")
    assert (result.exit_code, "no passed trajectory in phase 'absent'" in result.output) == (7, True)
    result = cli("train", "step_dpo", synthetic_run, "base", "phase=absent", "--dry-run")
    assert (result.exit_code, "no two actions after one history" in said(result)) == (7, True)


def test_what_is_not_here_is_told(tmp_path: Path) -> None:
    for command in ("sft", "step_dpo"):
        result = cli("train", command, "runs/absent", "models/absent", "--dry-run")
        assert result.exit_code == 0
        assert "# runs/absent is not on this machine, so the lengths of its episodes are not checked" in result.output
        assert "# models/absent is not on this machine, so its positions are not checked" in result.output
    result = cli("train", "rl", "tasks/absent", "runs/absent", "base", "--dry-run")
    assert "# tasks/absent is not on this machine, so no task is selected" in result.output


def test_a_dry_run_selects_the_tasks_of_every_stage(task_folder: Path) -> None:
    tasks = task_folder
    small = ["rollout.pipeline.max_len_tokens=512"]
    result = cli("train", "rl", tasks, "r", "base", *small, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "# rl.select: 1 of 2 tasks (splits=train: 1)" in result.output
    assert "# rl.validation: 1 of 2 tasks (splits=validation: 1" in result.output
    result = cli("train", "dapo_two_stage", tasks, "r", "base", "--dry-run", "stage_2.rl.select.packages=absent")
    assert (result.exit_code, "no task is left by packages=absent" in said(result)) == (2, True)
    assert "# stage_1.rl.select: " in result.output
    shares = "rl.source_shares={mutations = 0.5, history = 0.5}"
    result = cli("train", "rl", tasks, "r", "base", *small, shares, "--dry-run")
    assert (result.exit_code, "no training task of history" in said(result)) == (2, True)
    result = cli("train", "rft", "r", "base", "--tasks", tasks, "collect.select.ids=absent", "--dry-run")
    assert (result.exit_code, "1 of 1 ids are not in the task folder: absent" in said(result)) == (2, True)
    result = cli(
        "train", "verl", tasks, "r", "base", "--dry-run", "rl.select.since=2999-01-01", "--machine", "verl_cpu"
    )
    assert result.exit_code == 2, result.output


@pytest.mark.parametrize("command", [["rollout"], ["eval", "run"]])
def test_a_dry_run_says_what_is_sampled(command: list[str], task_folder: Path, tmp_path: Path) -> None:
    arguments = [*command, task_folder, tmp_path / "run", "--dry-run"]
    result = cli(*arguments, "select.splits=train")
    assert "# select: " in result.output, result.output
    result = cli(*arguments, "select.splits=train", "select.packages=absent")
    assert (result.exit_code, "no task is left by packages=absent" in said(result)) == (2, True)
    assert not (tmp_path / "run").exists()
    result = cli(*command, "tasks/absent", tmp_path / "run", "--dry-run")
    assert (result.exit_code, "so no task is selected" in said(result)) == (0, True)


def test_an_empty_selection_of_a_later_stage_ends_the_command_before_the_first(
    task_folder: Path, tmp_path: Path
) -> None:
    command = ["train", "distill_then_grpo", task_folder, tmp_path / "run", "base"]
    result = cli(*command, "rl.select.labels.difficulty=absent")
    assert (result.exit_code, "no task is left by labels.difficulty=absent" in said(result)) == (2, True)
    assert not (tmp_path / "run").exists()


def test_only_the_embedded_engine_bounds_episodes(synthetic_run: Path, tmp_path: Path) -> None:
    """Servers and scripts have other contexts: the bound of an engine that does not sample is no error."""
    command = ["rollout", synthetic_run / "tasks", tmp_path / "run", "select.splits=train"]
    long = "rollout.pipeline.max_len_tokens=2048"
    result = cli(*command, long, "--policy", "base")
    assert result.exit_code == 2
    assert "rollout.pipeline.max_len_tokens=2048 is more than the embedded engine keeps" in said(result)
    server = ["endpoint.base_url=http://127.0.0.1:9/v1", "endpoint.model=m", "endpoint.max_attempts=1"]
    result = cli(*command, long, "--policy", "vllm", *server, "rollout.engine.num_slots=8")
    assert "rollout.engine.num_slots=8: no effect, vllm samples" in said(result)
    assert "rollout.pipeline.max_len_tokens=2048" in said(result)
    assert result.exit_code == 8  # no server answers; nothing else is wrong
    beyond = ["rollout.pipeline.max_len_tokens=9000", "rollout.engine.max_len_tokens=9000"]
    result = cli(*command, *beyond, "--policy", "base")
    assert (result.exit_code, "9,000 tokens for embedded" in said(result)) == (2, True)


@pytest.mark.parametrize("command", ["sft", "step_dpo"])
def test_searches_are_not_learned(command: str, synthetic_run: Path) -> None:
    result = cli("train", command, synthetic_run, shipped_base(), "phase=solve/base")
    assert result.exit_code == 2
    assert "judged by visible tests only" in said(result)
