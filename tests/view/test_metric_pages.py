"""Metrics: curves with bounded points, their charts and pages."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from repairgym.rollout.store import RunStore
from repairgym.view.app import create_app
from repairgym.view.curves import smoothed
from repairgym.view.metric_charts import key_metrics
from repairgym.view.reader import RunReader


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Two runs: 1,000 steps with one spike and one value that is not finite, and 30 steps."""
    root = tmp_path_factory.mktemp("metrics")
    for name, num in (("long", 1_000), ("short", 30)):
        (root / name).mkdir()
        with RunStore.create(root / name / "run.db") as store:
            store.start_phase("rl")
            with store._transaction() as connection:
                times = [f"2026-11-24T{step // 60:02}:{step % 60:02}:00+00:00" for step in range(num)]
                rows = [("rl", step, "policy/entropy", 1.0 / (1 + step), times[step]) for step in range(num)]
                rows += [("rl", step, "train/loss", 50.0 if step == 555 else 0.0, times[step]) for step in range(num)]
                rows += [("rl", step, "optim/learning_rate", 1e-5, times[step]) for step in range(num)]
                connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", rows)
            store.add_metrics("rl", num, {"train/loss": float("nan")})
            store.end_phase("rl")
    return TestClient(create_app(root), base_url="http://localhost")


def text_of(client, path, status=200):
    answer = client.get(path)
    assert answer.status_code == status, answer.text[:1000]
    return answer.text


def test_a_spike_in_a_long_curve_is_not_lost(client, tmp_path_factory):
    root = next(iter(tmp_path_factory.getbasetemp().glob("metrics*")))
    with RunReader.read(root / "long" / "run.db") as reader:
        points = reader.curve("rl", "train/loss", 100)
        assert len(points) == 100
        assert max(point.high for point in points) == 50.0
        assert [point.first for point in points] == sorted(point.first for point in points)
        assert sum(point.last - point.first + 1 for point in points) == 1_000
        assert reader.num_not_finite("rl", "train/loss", points) == 1
        assert reader.metric_names("rl") == ["optim/learning_rate", "policy/entropy", "train/loss"]
        assert reader.metric_phases() == ["rl"]
        assert reader.curve("rl", "none", 100) == []


def test_all_metrics_are_grouped_and_constants_are_words(client):
    page = text_of(client, "/r/long/metrics")
    assert re.findall(r'<h2 id="group-\d">(\w+)</h2>', page) == ["policy", "train"]
    assert re.search(r"<dt><a [^>]+>optim/learning_rate</a></dt><dd>1e-05</dd>", page)
    filtered = text_of(client, "/r/long/metrics?q=entr")
    assert "1 metric" in filtered
    assert "train/loss" not in filtered


def test_a_phase_of_one_step_is_told_in_words(tmp_path):
    with RunStore.create(tmp_path / "run.db") as store:
        store.start_phase("rl")
        store.add_metrics("rl", 0, {"rollout/reward_mean": 0.539, "policy/entropy": 0.3946})
    one = TestClient(create_app(tmp_path), base_url="http://localhost")
    page = text_of(one, f"/r/{tmp_path.name}")
    assert re.search(r">Reward</a></dt><dd>0.539</dd>", page)
    assert "which had one step" in page
    assert "<figure>" not in page
    assert "<figure>" not in text_of(one, f"/r/{tmp_path.name}/metrics")
    with RunStore.open(tmp_path / "run.db") as store:
        store.add_metrics("rl", 1, {"rollout/reward_mean": 0.6})
    page = text_of(one, f"/r/{tmp_path.name}")
    assert page.count("<figure>") == 1
    assert "which had one step" not in page
    assert "Entropy</a></dt>" in page


def test_a_point_leads_to_the_trajectories_of_its_steps(client):
    page = text_of(client, "/r/short/metric?phase=rl&name=policy%2Fentropy")
    assert "/r/short/trajectories?phase=rl&amp;step=7" in page
    page = text_of(client, "/r/long/metric?phase=rl&name=policy%2Fentropy")
    assert re.search(r"phase=rl&amp;min_step=\d+&amp;max_step=\d+", page)


def test_runs_share_a_chart_and_axes_change(client):
    page = text_of(client, "/r/long/metric?phase=rl&name=policy%2Fentropy&with=short")
    assert {"curve l0", "curve l1"} <= set(re.findall(r'class="(curve l\d)"', page))
    logarithmic = text_of(client, "/r/long/metric?phase=rl&name=policy%2Fentropy&log=1&x=time&smooth=0.9")
    assert ">hours<" in logarithmic
    assert ">0.01<" in logarithmic
    assert "curve raw" in logarithmic


@pytest.mark.parametrize(
    ("query", "status"),
    [("q=(", 400), ("x=parsecs", 400), ("smooth=1", 400), ("smooth=x", 400), ("colour=red", 400), ("with=none", 404)],
)
def test_an_unknown_view_is_an_error(client, query, status):
    assert "problem" in text_of(client, f"/r/long/metrics?{query}", status)


def test_a_metric_that_is_not_there_is_said(client):
    text_of(client, "/r/long/metric?phase=rl&name=none", 404)
    text_of(client, "/r/long/metric?phase=none&name=train%2Floss", 404)


def test_the_key_curves_are_those_that_tell_most():
    names = ["a/b", "optim/grad_norm", "policy/entropy", "rollout/reward_mean", "time/s", "train/loss", "z/y", "z/z"]
    assert key_metrics(names)[:3] == ["rollout/reward_mean", "policy/entropy", "optim/grad_norm"]
    assert len(key_metrics(names)) == 6


def test_smoothing_has_no_bias_at_the_start():
    assert smoothed([2.0, 2.0, 2.0], 0.9) == pytest.approx([2.0, 2.0, 2.0])
    assert smoothed([0.0, 1.0], 0.5) == pytest.approx([0.0, 2 / 3])
    assert smoothed([3.0, 1.0], 0.0) == [3.0, 1.0]
