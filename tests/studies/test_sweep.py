"""Sweeps of child programs: draws, resuming after an interruption and a kill, failures, values and compute."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repairgym.config.sweep import SweepConfig
from repairgym.errors import ConfigError, InputError
from repairgym.studies.sweep import (
    RESULTS_FILE,
    child_words,
    compare_arms,
    draw_settings,
    planned_runs,
    read_compute,
    read_results,
    read_value,
    run_sweep,
    value_again,
)

CHILD = """
import json, pathlib, sys, time
folder, values = pathlib.Path(sys.argv[1]), dict(word.split("=") for word in sys.argv[2:])
started = folder / "started"
started.write_text(started.read_text() + "x" if started.exists() else "x")
if folder.name == "002" and (folder.parents[1] / "fails").exists():
    sys.exit("no luck")
if folder.name == "001" and (folder.parents[1] / "waits").exists():
    time.sleep(60)
result = {"score": float(values["a.rate"]) + (values["b"] == "x"), "num_tokens": 7}
(folder / "result.json").write_text(json.dumps(result))
"""
PARENT = """
import sys
from pathlib import Path
from repairgym.config.loading import load_config
from repairgym.config.sweep import SweepConfig
from repairgym.studies.sweep import run_sweep
folder = Path(sys.argv[1])
run_sweep(load_config(SweepConfig, folder / "plan.toml"), folder, lambda *_: None)
"""
PLAN = """
program = [{python}, {child}, "{{run}}"]
metric = "score"
num_runs = 4
[settings."a.rate"]
type = "log_uniform"
low = 1e-4
high = 1e-2
[settings.b]
type = "choice"
values = ["x", "y"]
"""


def quiet(*_: object) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "child.py").write_text(CHILD)
    plan = PLAN.format(python=json.dumps(sys.executable), child=json.dumps(str(tmp_path / "child.py")))
    (tmp_path / "plan.toml").write_text(plan)
    return tmp_path


@pytest.fixture
def config(folder: Path) -> SweepConfig:
    from repairgym.config.loading import load_config

    return load_config(SweepConfig, folder / "plan.toml")


def num_starts(folder: Path, number: int) -> int:
    return len((folder / "runs" / f"{number:03d}" / "started").read_text())


def test_draws_depend_on_their_number_and_seed_alone(config: SweepConfig):
    more = config.model_copy(update={"num_runs": 40})
    assert [run.settings for run in planned_runs(more)][:4] == [run.settings for run in planned_runs(config)]
    assert draw_settings(config.model_copy(update={"seed": 1}), 0) != draw_settings(config, 0)
    rates = [float(run.settings["a.rate"]) for run in planned_runs(more)]
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)
    assert 8 <= sum(rate < 1e-3 for rate in rates) <= 32


def test_arms_are_repeated_with_other_seeds_seed_by_seed(tmp_path: Path):
    config = SweepConfig(
        command=("train", "rl", "tasks", "{run}", "base"), arms={"a": (), "b": ("rl.x=1",)}, num_seeds=2, seed=5
    )
    runs = planned_runs(config)
    assert [(run.arm, run.seed) for run in runs] == [("a", 5), ("b", 5), ("a", 6), ("b", 6)]
    place = str(tmp_path / "runs" / "003")
    assert child_words(runs[3], config, tmp_path) == ["train", "rl", "tasks", place, "base", "rl.x=1", "seed=6"]


def test_a_sweep_runs_once_and_reads_values_and_compute(folder: Path, config: SweepConfig):
    seen: list[tuple[int, int, str]] = []
    runs = run_sweep(config, folder, lambda *line: seen.append(line))
    assert [run.value for run in runs] == [
        pytest.approx(float(run.settings["a.rate"]) + (run.settings["b"] == "x")) for run in runs
    ]
    assert all(run.num_tokens == 7 and run.cpu_s > 0 for run in runs)
    assert (seen[0], seen[-1][:2]) == ((0, 4, ""), (4, 4))
    assert "min left" in seen[1][2]
    assert run_sweep(config, folder, quiet) == runs
    # Ended runs are read again by the metric of the call, as the new ones are.
    other = config.model_copy(update={"metric": "num_tokens", "num_runs": 5})
    assert [run.value for run in run_sweep(other, folder, quiet)] == [7.0] * 5
    assert [num_starts(folder, number) for number in range(5)] == [1, 1, 1, 1, 1]


def test_a_sweep_with_seeds_does_not_grow_by_draws(folder: Path, config: SweepConfig):
    seeded = config.model_copy(update={"num_runs": 2, "num_seeds": 2, "seed_setting": "seed"})
    run_sweep(seeded, folder, quiet)
    with pytest.raises(ConfigError, match=r"run 2 of .* has another point than this plan gives it"):
        run_sweep(seeded.model_copy(update={"num_runs": 3}), folder, quiet)
    assert len(run_sweep(seeded.model_copy(update={"num_seeds": 3}), folder, quiet)) == 6


def test_a_failed_child_is_kept_and_tried_again(folder: Path, config: SweepConfig):
    (folder / "fails").touch()
    runs = run_sweep(config, folder, quiet)
    assert [(run.status, run.exit_code) for run in runs] == [("done", 0), ("done", 0), ("failed", 1), ("done", 0)]
    assert "no luck" in (folder / "logs" / "002.log").read_text()
    (folder / "fails").unlink()
    assert [run.status for run in run_sweep(config, folder, quiet)] == ["done"] * 4
    assert [num_starts(folder, number) for number in range(4)] == [1, 1, 2, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_sweep_goes_on_where_it_was(folder: Path, config: SweepConfig, number: signal.Signals):
    (folder / "waits").touch()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stderr=subprocess.DEVNULL)
    started = folder / "runs" / "001" / "started"
    deadline = time.monotonic() + 60
    while not (started.exists() and started.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(parent.pid, number)
    assert parent.wait(60) != 0
    (folder / "waits").unlink()
    with (folder / RESULTS_FILE).open("a") as stream:
        stream.write('{"number": 1, "sta')  # a line that a power cut tore
    assert list(read_results(folder)) == [0]
    assert [run.status for run in run_sweep(config, folder, quiet)] == ["done"] * 4
    assert [num_starts(folder, place) for place in range(4)] == [1, 2, 1, 1]
    assert sorted(read_results(folder)) == [0, 1, 2, 3]


def test_values_of_run_folders(synthetic_run: Path, tmp_path: Path):
    config = SweepConfig(command=("eval", "run", "{run}"), metric="rl:policy/entropy", window=2)
    assert read_value(synthetic_run, config) == pytest.approx(0.6 - 0.3 * 0.875)
    rate = read_value(synthetic_run, config.model_copy(update={"metric": "eval/rl/test-mutations"}))
    assert 0.5 < rate < 1.0
    with pytest.raises(InputError, match="has no metric 'nothing'"):
        read_value(synthetic_run, config.model_copy(update={"metric": "rl:nothing"}))
    place = shutil.copytree(synthetic_run, tmp_path / "run")
    shape = {
        **{"vocab_size": 100, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"num_key_value_heads": 1, "intermediate_size": 16, "head_dim": 4},
    }
    (place / "checkpoints" / "rl" / "config.json").write_text(json.dumps(shape))
    compute = read_compute(place)
    assert compute["num_tokens"]
    assert compute["num_sampled_tokens"]
    assert compute["flops"]
    assert compute["flops"] > 2 * 800 * compute["num_tokens"]
    assert read_compute(synthetic_run)["flops"] is None


def test_a_child_is_evaluated_after_its_command_and_arms_are_paired(synthetic_run: Path, tmp_path: Path):
    phase = "eval/rl/test-mutations"
    config = SweepConfig(
        command=("eval", "show", "{run}", "--phase", phase),
        evaluation=("eval", "predictions", "{run}", "{run}/patches.jsonl", "--phase", phase),
        metric=phase,
        seed_setting="",
        arms={"a": (), "b": ()},
    )
    for number in range(2):
        shutil.copytree(synthetic_run, tmp_path / "runs" / f"00{number}")
    runs = run_sweep(config, tmp_path, quiet)
    assert [run.status for run in runs] == ["done", "done"]
    assert all((tmp_path / "runs" / f"00{number}" / "patches.jsonl").is_file() for number in range(2))
    (row,) = compare_arms(runs, config, tmp_path)
    assert (row.treatment, row.reference, row.difference, row.num_seeds) == ("b", "a", 0.0, 1)
    assert row.num_tasks > 10
    (row,) = compare_arms(runs, config.model_copy(update={"reference": "b"}), tmp_path)
    assert row.treatment == "a"
    assert not compare_arms(runs, config.model_copy(update={"metric": "rl:policy/entropy"}), tmp_path)
    assert not compare_arms(runs[1:], config, tmp_path)
    # The evaluation is repeated after a failure: neither its tokens nor its seconds are the child's.
    lines = [json.loads(line) for line in (tmp_path / "runs" / "000.jsonl").read_text().splitlines()]
    assert [line["is_evaluation"] for line in lines] == [False, True]
    assert runs[0].cpu_s == lines[0]["cpu_s"]
    assert runs[0].num_tokens == lines[0]["compute"]["num_tokens"]
    wrong = config.model_copy(update={"evaluation": (*config.evaluation, "--sample", "99")})
    with pytest.raises(ConfigError, match=r"run 0 was rejected .*no sample 99"):
        run_sweep(
            wrong, shutil.copytree(tmp_path / "runs" / "000", tmp_path / "other" / "runs" / "000").parents[1], quiet
        )


def test_children_run_side_by_side_and_end_with_their_sweep(folder: Path, config: SweepConfig):
    both = config.model_copy(update={"num_concurrent": 2})
    (folder / "waits").touch()
    plan = folder / "plan.toml"
    plan.write_text(f"num_concurrent = 2\n{plan.read_text()}")
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    # While run 1 waits, the other three end.
    while sorted(read_results(folder)) != [0, 2, 3] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sorted(read_results(folder)) == [0, 2, 3]
    started = time.monotonic()
    os.kill(parent.pid, signal.SIGINT)
    assert parent.wait(60) != 0
    assert time.monotonic() - started < 30
    (folder / "waits").unlink()
    assert [run.status for run in run_sweep(both, folder, quiet)] == ["done"] * 4
    assert [num_starts(folder, number) for number in range(4)] == [1, 2, 1, 1]


def test_a_line_of_results_outlives_its_run_folder(folder: Path, config: SweepConfig, synthetic_run: Path):
    runs = run_sweep(config, folder, quiet)
    shutil.rmtree(folder / "runs")
    assert run_sweep(config, folder, quiet) == runs
    with pytest.raises(InputError, match=r"001 is gone, and the line of run 1 .* has 'score'; got the metric 'num_tok"):
        value_again(runs[1], config.model_copy(update={"metric": "num_tokens"}), folder)
    phase = "eval/rl/test-mutations"
    arms = SweepConfig(
        command=("eval", "show", "{run}", "--phase", phase),
        **{"metric": phase, "seed_setting": "", "num_seeds": 2, "arms": {"a": (), "b": ()}},
    )
    for number in range(4):
        shutil.copytree(synthetic_run, folder / "arms" / "runs" / f"00{number}")
    runs = run_sweep(arms, folder / "arms", quiet)
    rows = compare_arms(runs, arms, folder / "arms")
    shutil.rmtree(folder / "arms" / "runs")
    assert compare_arms(run_sweep(arms, folder / "arms", quiet), arms, folder / "arms") == rows
    assert rows[0].num_tasks > 10


def test_a_plan_that_cannot_run_is_rejected(folder: Path, config: SweepConfig):
    with pytest.raises(ConfigError, match="no settings to draw and no arms"):
        planned_runs(SweepConfig(command=("rollout", "{run}")))
    for wrong, problem in (
        ({"evaluation": ("eval", "run")}, "without {run}"),
        ({"reference": "c"}, "expected one of the arms a, b"),
    ):
        with pytest.raises(ValueError, match=problem):
            SweepConfig.model_validate({"command": ("rollout", "{run}"), "arms": {"a": (), "b": ()}, **wrong})
    with pytest.raises(InputError, match="no number 'other'"):
        run_sweep(config.model_copy(update={"metric": "other"}), folder, quiet)
    wrong = SweepConfig(command=("eval", "run", "{run}"), arms={"a": ("no.such=1",), "b": ()})
    with pytest.raises(ConfigError, match=r"run 0 was rejected .*no\.such"):
        run_sweep(wrong, folder / "other", quiet)
