"""Variance, merge score and contamination as commands, on a stored run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from repairgym.records import Task

PHASE = "eval/rl/test-mutations"


def test_variance_of_runs_says_what_they_do_not_show(cli, synthetic_run: Path):
    code, text = cli("eval", "variance", synthetic_run, "--phase", PHASE, "--json")
    assert code == 0, text
    values = json.loads(text)
    assert values["seed"] is None
    assert values["task"] >= 0.0
    assert "an interval over new seeds needs 3 runs" in values["sentences"][0]
    code, text = cli("eval", "variance", synthetic_run, "--phase", PHASE)
    assert (code, "mean Pass@1 of the recipe" in text) == (0, True)


@pytest.fixture
def known_run(synthetic_run: Path, tmp_path: Path) -> Path:
    """The run over tasks whose code before the repair is in their records."""
    run = shutil.copytree(synthetic_run, tmp_path / "run")
    path = run / "tasks" / "tasks.jsonl"
    files = {"pkg/numbers.py": "x = 1\n", "pkg/old.py": "y = 1\n"}
    rows = [Task.model_validate_json(line) for line in path.read_text().splitlines()]
    changed = [
        row.model_copy(update={"base_files": files, "created_at": f"202{4 + number % 2}-06-01"})
        for number, row in enumerate(rows)
    ]
    path.write_text("".join(f"{row.model_dump_json()}\n" for row in changed))
    return run


def test_the_merge_score_stands_next_to_pass_at_1(cli, known_run: Path):
    code, text = cli("eval", "merge", known_run, f"phase={PHASE}", "--json")
    assert code == 0, text
    strict = json.loads(text)
    assert strict["value"] == 0.0  # every patch of the fixture removes a file that gold keeps
    assert strict["held"]["files"] == 0.0
    code, text = cli("eval", "merge", known_run, f"phase={PHASE}", "max_more_files=1", "--json")
    assert code == 0, text
    lenient = json.loads(text)
    assert lenient["value"] == pytest.approx(strict["pass_at_1"])
    assert lenient["ci_low"] < lenient["value"] < lenient["ci_high"]


def test_results_by_date(cli, known_run: Path):
    words = ("eval", "contamination", known_run / "tasks")
    code, text = cli(*words, "--run", known_run, "known_until=2024-12-31", f"phase={PHASE}", "--json")
    assert code == 0, text
    (probe,) = json.loads(text)["tables"]["Held-out against control"]
    assert (probe["num_held_out"], probe["num_control"]) == (6, 6)
    assert probe["ci_low"] < probe["difference"] < probe["ci_high"]
    code, text = cli(*words, "--run", known_run)
    assert (code, "belong together" in text) == (2, True)
    code, text = cli(*words)
    assert (code, "nothing to probe" in text) == (2, True)
