"""Overlays of the tokens page: every shade has its number, and a value that is not known says why."""

from __future__ import annotations

import re

import numpy as np
import pytest
from starlette.testclient import TestClient

from repairgym.report.tokens import Piece
from repairgym.rollout.signals import TokenSignals
from repairgym.rollout.store import RunStore
from repairgym.view.app import create_app
from repairgym.view.token_pages import ADVANTAGE, GAP, RATIO, Shading, TokenMarks, draw_tokens


@pytest.fixture
def client(tmp_path, trajectory_maker):
    folder = tmp_path / "run"
    folder.mkdir()
    made = [trajectory_maker(name, group_id=f"g-{name}") for name in ("a", "b")]
    with RunStore.create(folder / "run.db") as store:
        for trajectory in made:
            store.add_trajectory(trajectory, phase="rl", step=0, split="train")
        place = np.flatnonzero(made[0].ledger.is_action)[1:].astype(np.int32)
        ones = np.ones(len(place), np.float32)
        old = made[0].ledger.log_prob[place]
        log_prob = (old + np.float32(np.log(1.5))).astype(np.float32)
        store.add_signals({"a": TokenSignals(place, ones, -0.7 * ones, old, log_prob, 0.2 * ones, 0 * place)})
        store.set_group_status("g-b", phase="rl", step=0, task_id=made[1].task_id, status="dropped_equal_rewards")
    return TestClient(create_app(folder), base_url="http://localhost")


def test_learned_tokens_have_their_values_and_classes(client):
    page = client.get("/r/run/t/1/tokens?by=advantage").text
    tokens = re.findall(r'class="tok ([^"]*)" title="([^"]*)"', page)
    sampled = [(css.split(), title) for css, title in tokens if "ctx" not in css]
    assert sampled[0][1].endswith("masked")
    assert "M0" in sampled[0][0]
    css, title = sampled[1]
    assert {"M1", "V0", "An3", "Rp4", "W4", "G6", "E2"} <= set(css)
    assert "advantage -0.7, ratio 1.5, weight 1, gap +0.41, entropy 0.2" in title
    assert 'value="advantage" checked' in page
    assert f"<dt>learned from</dt><dd>{len(sampled) - 1}</dd>" in page
    assert "in the first step of the update" in page
    learned = client.get("/api/r/run/t/1/tokens.json").json()["learned"]
    assert learned["ratio"][0] == pytest.approx(1.5, rel=1e-4)


def test_values_that_are_not_known_are_named_with_the_reason(client):
    page = client.get("/r/run/t/2/tokens?by=advantage").text
    assert "its group was dropped equal rewards" in page
    assert 'value="likelihood" checked' in page
    assert len(re.findall(r'value="(?:advantage|ratio|weight|gap|entropy)" disabled', page)) == 5
    assert client.get("/api/r/run/t/2/tokens.json").json()["learned"] is None


def test_scales_have_a_step_for_every_value():
    assert [ADVANTAGE.css(value) for value in (0.0, 0.05, 0.06, -0.06, 9.0, -9.0)] == [
        "Ap0", "Ap0", "Ap1", "An1", "Ap4", "An4",
    ]  # fmt: skip
    assert GAP.css(-1.0) == "G7"
    for overlay in (ADVANTAGE, RATIO, GAP):
        shown = {css for css, _ in overlay.steps}
        assert {overlay.css(sign * 10.0**power) for sign in (-1, 1) for power in range(-7, 3)} <= shown


def test_a_mark_leads_to_the_page_that_has_its_turn():
    pieces = [Piece(number, (5,), "a", True, -0.1, 0, False) for number in range(3)]
    shading = Shading(dict.fromkeys(range(3), "M1 V0"))
    drawn = draw_tokens(pieces, shading, TokenMarks({0: 200, 1: 201, 2: 401}, "/r/run/t/1"))
    assert re.findall(r'href="([^"]*)"', drawn) == [
        "/r/run/t/1#turn-200", "/r/run/t/1?turn=201#turn-201", "/r/run/t/1?turn=401#turn-401",
    ]  # fmt: skip
