"""Trackers: what the store takes reaches each of them, and one that is not installed is an error at the start."""

import importlib.util
import json
import math

import pytest

from repairgym.config.rollout import WatchConfig
from repairgym.errors import ConfigError
from repairgym.rollout.trackers import TRACKERS, tracking


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

    with tracking(store, WatchConfig(trackers=("tensorboard",))):
        store.add_metrics("rl", 3, {"policy/entropy": 0.5})
    (path,) = (store.path.parent / "tensorboard").iterdir()
    data, events = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[:8], "little")
        assert int.from_bytes(data[8:12], "little") == masked_crc32c(data[:8])
        events.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    found = [(event.step, value.tag, value.simple_value) for event in events for value in event.summary.value]
    assert found == [(3, "rl/policy/entropy", 0.5)]


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
    assert set(TRACKERS) == {"jsonl", "tensorboard", "wandb"}
    with pytest.raises(ValueError, match="jsonl"):
        WatchConfig(trackers=("mlflow",))
