"""`repairgym sweep`: dry run, run, results as JSON and as a page, plans that are rejected."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from repairgym.cli.main import main

CHILD = """
import json, pathlib, sys
values = dict(word.split("=") for word in sys.argv[2:])
value = (values.get("a") == "x") + 0.01 * int(values["seed"])
(pathlib.Path(sys.argv[1]) / "result.json").write_text(json.dumps({"score": value, "num_sampled_tokens": 5}))
"""


@pytest.fixture
def cli(capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "child.py").write_text(CHILD)
    program = json.dumps([sys.executable, str(tmp_path / "child.py"), "{run}"])
    path = tmp_path / "plan.toml"
    path.write_text(f'program = {program}\nmetric = "score"\n')
    return path


def test_a_search_from_plan_to_page(cli, plan: Path, tmp_path: Path):
    draw = """settings={a={type="choice", values=["x", "<b>y"]}, b={type="uniform", low=0.0, high=1.0}}"""
    code, out, err = cli("sweep", tmp_path / "s", "--config", plan, draw, "num_runs=6", "--dry-run")
    assert code == 0, err
    assert "num_runs = 6" in out
    assert err.count("child.py") == 6
    assert not (tmp_path / "s").exists()
    code, out, err = cli("sweep", tmp_path / "s", "--config", plan, draw, "num_runs=6", "--json")
    assert code == 0, err
    tables = json.loads(out)["tables"]
    assert tables["Settings by the share of the variance between runs"][0]["setting"] == "a"
    assert len(tables["Runs"]) == 6
    page = (tmp_path / "s" / "sweep.html").read_text()
    assert "Value by sampled tokens" in page
    assert "<b>y" not in page
    code, out, err = cli("sweep", tmp_path / "s", "--config", plan, draw, "num_runs=6", "seed=3")
    assert (code, "seed" in err) == (3, True) or code == 1, err
    code, out, err = cli("sweep", tmp_path / "s", "--show", "--json")
    assert code == 0, err
    assert json.loads(out)["tables"] == tables


def test_arms_are_ranked(cli, plan: Path, tmp_path: Path):
    arms = ["""arms={good=["a=x"], bad=["a=y"], worse=["a=z"]}""", "num_seeds=3"]
    code, out, err = cli("sweep", tmp_path / "s", "--config", plan, *arms, "--json")
    assert code == 0, err
    places = {row["name"]: row for row in json.loads(out)["tables"]["Arms by the mean of their seeds"]}
    assert (places["good"]["rank_low"], places["good"]["rank_high"]) == (1, 1)
    assert places["bad"]["indistinguishable"] == "worse"


def test_what_is_rejected(cli, plan: Path, tmp_path: Path):
    code, _, err = cli("sweep", tmp_path / "s")
    assert (code, "has no command" in err) == (2, True)
    code, _, err = cli("sweep", tmp_path / "s", "--config", plan)
    assert (code, "no settings to draw and no arms" in err) == (2, True)
    code, _, err = cli("sweep", tmp_path / "s", "--config", plan, "settings.a.low=2.0", "settings.a.type=uniform")
    assert (code, "the lower one first" in err) == (2, True)
    code, _, err = cli("sweep", tmp_path / "s", "--config", plan, 'program=["true"]', "arms={a=[], b=[]}")
    assert (code, "{run}" in err) == (2, True)
