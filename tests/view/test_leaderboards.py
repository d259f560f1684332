"""The leaderboard: ranks over runs, what cannot be ranked, and its pages as files."""

from __future__ import annotations

import dataclasses
import re

import pytest
from starlette.testclient import TestClient

from repairgym.records import VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.view.app import create_app
from repairgym.view.export import export_site

RATES = {"good": 1.0, "middling": 0.5, "alike": 0.5}


@pytest.fixture
def root(tmp_path, trajectory_maker):
    """Three runs of 40 tasks, one that tried three of them, and one that cannot be read."""
    folder = tmp_path / "boards"
    folder.mkdir()
    one = trajectory_maker()
    for name, rate in {**RATES, "short": 0.0}.items():
        (folder / name).mkdir()
        with RunStore.create(folder / name / "run.db") as store:
            for task in range(3 if name == "short" else 40):
                is_passed = task % 2 < 2 * rate and (name, task) != ("alike", 4)
                kind = VerdictKind.PASSED if is_passed else VerdictKind.FAILED
                verdict = one.verdict.model_copy(update={"kind": kind})
                it = dataclasses.replace(
                    one, id=f"{name}#{task}", task_id=f"task-{task}", group_id=f"g{task}", verdict=verdict
                )
                store.add_trajectory(it, phase="eval/rl/test", step=0, split="test")
            if name == "good":
                other = dataclasses.replace(one, id="base#0", task_id="task-0", group_id="b0")
                store.add_trajectory(other, phase="eval/base/other", step=0, split="test")
    (folder / "broken").mkdir()
    (folder / "broken" / "run.db").write_bytes(b"no database")
    return folder


@pytest.fixture
def client(root):
    return TestClient(create_app(root), base_url="http://localhost")


def rows_of(page):
    rows = re.findall(r"<tr data-row>(.*?)</tr>", page, re.DOTALL)
    return [[re.sub("<[^>]+>", "", cell).strip() for cell in re.findall(r"<td.*?>(.*?)</td>", row)] for row in rows]


def test_policies_of_all_runs_have_ranks_with_intervals(client):
    page = client.get("/leaderboard").text
    rows = rows_of(page)
    assert [row[:2] for row in rows] == [["1", "RL good"], ["2 to 3", "RL middling"], ["2 to 3", "RL alike"]]
    assert [row[-1] for row in rows] == ["none", "rl of alike", "rl of middling"]
    assert "RL, good is above all others." in page
    assert "RL of short (3 tasks)" in page
    assert 'class="problem">broken: ' in page
    assert page.partition("<dialog")[0].count("<h2>") == 1, "a test set with one policy has no ranks"


def test_the_address_chooses_stages_and_runs(client):
    assert len(rows_of(client.get("/leaderboard?stage=rl&run=middling&run=alike").text)) == 2
    assert "No test set has two evaluations of this stage" in client.get("/leaderboard?stage=base").text
    assert client.get("/leaderboard?run=absent").status_code == 404
    assert client.get("/leaderboard?run=middling&run=alike").text.count(" selected>") == 2


def test_evaluations_that_are_written_meanwhile_are_counted(root, client, trajectory_maker):
    before = client.get("/leaderboard?run=middling&run=alike").text
    with RunStore.open(root / "alike" / "run.db") as store:
        it = dataclasses.replace(trajectory_maker(), id="late", task_id="task-1", group_id="late")
        store.add_trajectory(it, phase="eval/rl/test", step=0, split="test")
    after = client.get("/leaderboard?run=middling&run=alike").text
    assert [row[5] for row in rows_of(before)] == ["40", "40"]
    assert sorted(row[5] for row in rows_of(after)) == ["40", "41"]


def test_the_leaderboard_of_an_export_is_a_file_by_stage(root, tmp_path):
    (root / "broken" / "run.db").unlink()
    export_site(root, tmp_path / "site", max_trajectories=2, formats={})
    page = (tmp_path / "site" / "leaderboard.html").read_text()
    assert len(rows_of(page)) == 3
    assert 'href="leaderboard-rl.html"' in page
    assert 'href="r/good/index.html"' in page
    assert 'href="leaderboard.html"' in (tmp_path / "site" / "index.html").read_text()
