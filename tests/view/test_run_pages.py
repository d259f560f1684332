"""Pages of a run: how a killed one goes on, times with their zone, and groups that are cut."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from repairgym.rollout.calls import locked
from repairgym.rollout.store import RunStore
from repairgym.view.app import create_app


def open_client(folder):
    return TestClient(create_app(folder), base_url="http://localhost")


@pytest.mark.parametrize(("file", "words"), [("config.toml", "demo --resume --run"), ("", "The same command")])
def test_a_killed_run_says_what_continues_it(tmp_path, file, words):
    if file:
        (tmp_path / file).write_text("minutes = 2.0\n")
    with locked(tmp_path), RunStore.create(tmp_path / "run.db") as store:
        store.start_phase("rl")
    page = open_client(tmp_path).get(f"/r/{tmp_path.name}").text
    (problem,) = re.findall(r'class="problem">No process.*?</p>', page)
    assert words in problem


def test_times_have_their_zone(tmp_path, trajectory_maker):
    with locked(tmp_path), RunStore.create(tmp_path / "run.db") as store, store.phase("rl"):
        store.add_trajectory(trajectory_maker(), phase="rl", step=0, split="train")
        store.add_event("sandbox_lost", "one")
    client, run = open_client(tmp_path), f"/r/{tmp_path.name}"
    for path in (run, f"{run}/phase?name=rl", f"{run}/t/1"):
        times = re.findall(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?! UTC)", client.get(path).text)
        assert times == [], path


def test_a_group_says_how_many_of_its_members_are_shown(tmp_path, trajectory_maker):
    with RunStore.create(tmp_path / "run.db") as store:
        for number in range(18):
            store.add_trajectory(trajectory_maker(f"t-{number}", group_id="g"), phase="rl", step=0, split="train")
    client, address = open_client(tmp_path), f"/r/{tmp_path.name}/group?phase=rl&step=0&id=g"
    assert "The first 16 of 18 members side by side" in client.get(address).text
