"""Trackers: what the store takes reaches each of them, and one that is not installed is an error at the start."""

import importlib.util
import json
import math
import sqlite3
from typing import get_args

import pytest

from repairgym.config.rollout import TrackerName, WatchConfig
from repairgym.errors import ConfigError
from repairgym.records import VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.rollout.trackers import ID_FILE, TRACKERS, _copying, summary_of, tracked_run, tracking


def test_the_store_tells_its_trackers(store):
    with tracking(store, WatchConfig(trackers=("jsonl",))):
        store.add_metrics("rl", 3, {"policy/entropy": 0.5, "policy/log_prob_gap": math.nan})
    store.add_metrics("rl", 4, {"policy/entropy": 0.25})
    lines = (store.path.parent / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"phase": "rl", "step": 3, "policy/entropy": 0.5, "policy/log_prob_gap": None}
    ]
    assert store.metrics("rl", "policy/entropy") == [(3, 0.5), (4, 0.25)]


def test_tensorboard_gets_scalars(store):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    keep_settings(store)
    with tracking(store, WatchConfig(trackers=("tensorboard",), tags=("sweep",))):
        store.add_metrics("rl", 3, {"policy/entropy": 0.5})
    (path,) = (store.path.parent / "tensorboard").iterdir()
    data, events = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[:8], "little")
        assert int.from_bytes(data[8:12], "little") == masked_crc32c(data[:8])
        events.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    values = [(event.step, value) for event in events for value in event.summary.value]
    assert [(step, value.tag, value.simple_value) for step, value in values if not value.HasField("tensor")] == [
        (3, "rl/policy/entropy", 0.5)
    ]
    texts = {value.tag: value.tensor.string_val[0].decode() for _, value in values if value.HasField("tensor")}
    assert "| configs.seed |" not in texts["config/text_summary"]
    assert "| train-rl.rl.num_groups | 4 |" in texts["config/text_summary"]
    assert "repairgym, sweep" in texts["tags/text_summary"]
    assert "| rl/policy/entropy | 0.5 |" in texts["summary/text_summary"]


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed here")
def test_a_tracker_that_is_not_installed_is_an_error_before_the_run(store):
    with (
        pytest.raises(ConfigError, match=r"wandb is not installed; .*pip install -e"),
        tracking(store, WatchConfig(trackers=("jsonl", "wandb"))),
    ):
        pass
    store.add_metrics("rl", 0, {"x": 1.0})
    assert not (store.path.parent / "metrics.jsonl").exists()


def test_every_name_of_the_configuration_has_a_tracker():
    assert set(TRACKERS) == set(get_args(TrackerName))
    with pytest.raises(ValueError, match="jsonl"):
        WatchConfig(trackers=("comet",))


def test_ids_stay_with_the_folder_and_equal_names_do_not_meet(tmp_path):
    ids = []
    for parent in ("a", "b"):
        folder = tmp_path / parent / "run"
        folder.mkdir(parents=True)
        with RunStore.create(folder / "run.db") as store:
            ids += [tracked_run(store, WatchConfig()).id for _ in range(2)]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert all(name.startswith("run-") for name in ids)


def test_the_summary_has_rates_over_valid_episodes_and_the_newest_values(store, trajectory_maker):
    kinds = (VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.INVALID)
    for number, kind in enumerate(kinds):
        store.add_trajectory(trajectory_maker(f"t{number}", kind=kind), phase="rl", step=0, split="train")
    for step, value in ((1, 0.5), (0, 0.25)):
        store.add_metrics("rl", step, {"loss": value, "gap": math.nan})
    assert summary_of(store) == {"rl/num_trajectories": 3.0, "rl/pass_rate": 0.5, "rl/loss": 0.5}


def keep_settings(store):
    folder = store.path.parent / "configs"
    folder.mkdir()
    (folder / "train-rl.toml").write_text("seed = 3\n[rl]\nnum_groups = 4\nname = 'x'\n")


def twice(store, tracker, tags=("sweep",)):
    """Two calls of one run, so that the second resumes it."""
    for step in (1, 2):
        with tracking(store, WatchConfig(trackers=(tracker,), tags=tags)):
            store.add_metrics("rl", step, {"loss": 1.0 / step})


def test_wandb_gets_config_tags_and_summary(store, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    keep_settings(store)
    twice(store, "wandb")
    files = sorted((store.path.parent / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    text = b"".join(file.read_bytes() for file in files)
    assert all(part in text for part in (b"train-rl.rl.num_groups", b"sweep", b"rl/loss")), wandb.__version__


def test_trackio_gets_config_and_summary(store, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    keep_settings(store)
    twice(store, "trackio")
    (path,) = (tmp_path / "trackio").rglob("*.db")
    rows = sqlite3.connect(path).execute("SELECT run_name, metrics FROM metrics ORDER BY id").fetchall()
    logged = [json.loads(values) for _, values in rows]
    assert {name for name, _ in rows} == {tracked_run(store, WatchConfig()).id}
    assert [row["rl/loss"] for row in logged if "rl/loss" in row] == [1.0, 0.5]
    assert logged[-1]["summary/rl/loss"] == 0.5
    (config,) = {text for (text,) in sqlite3.connect(path).execute("SELECT config FROM configs")}
    assert json.loads(config)["train-rl.rl.num_groups"] == 4


def test_mlflow_continues_its_run(store, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    keep_settings(store)
    twice(store, "mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{store.path.parent.resolve() / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("repairgym")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["train-rl.rl.num_groups"] == "4"
    assert run.data.tags["repairgym.tag.sweep"] == "true"
    assert run.data.metrics["summary/rl/loss"] == 0.5
    assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "rl/loss")] == [
        (1, 1.0),
        (2, 0.5),
    ]
    assert run.info.status == "FINISHED"


class Unreachable:
    """A tracker whose server goes away once the run has begun."""

    def __init__(self, run):
        self.num_calls = 0

    def __enter__(self):
        return self.fail

    def fail(self, *_):
        self.num_calls += 1
        raise ConnectionError("no server")

    def __exit__(self, *_):
        self.fail()


def test_a_tracker_that_fails_ends_no_run_and_hides_no_error(store):
    name, tracker = "unreachable", Unreachable(None)

    def run():
        for step in range(2):
            store.add_metrics("rl", step, {"x": 1.0})
        raise ValueError("the run's own error")

    with pytest.raises(ValueError, match="own error"), _copying(store, name, tracker):
        run()
    assert tracker.num_calls == 3
    assert store.metrics("rl", "x") == [(0, 1.0), (1, 1.0)]
    (event,) = store.events()
    assert (event.kind, event.message.split()[0]) == ("tracker_failed", name)


def test_an_empty_id_is_drawn_again(store):
    path = store.path.parent / ID_FILE
    path.touch()
    drawn = tracked_run(store, WatchConfig()).id
    assert drawn
    assert tracked_run(store, WatchConfig()).id == drawn == path.read_text().strip()
