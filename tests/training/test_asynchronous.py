"""Sampling while learning: it overlaps, tokens keep their versions, none older than the bound is learned from."""

import shutil
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from repairgym.config.algorithms import TruncateCorrectionConfig
from repairgym.config.learning import AlgorithmConfig, OptimizerConfig
from repairgym.config.recipes import RlConfig
from repairgym.config.rollout import AlarmConfig
from repairgym.config.selection import TrainingSelection
from repairgym.errors import SandboxError
from repairgym.inference.loading import load_model
from repairgym.learning.learner import Learner
from repairgym.learning.samples import policy_sample
from repairgym.ledger import LedgerBuilder
from repairgym.rollout.jobs import PolicyRef, make_groups
from repairgym.training.asynchronous import BackgroundUpdates, WeightVersions
from repairgym.training.rl_loop import RLLoop
from repairgym.training.rollout_batch import is_stale

RL = RlConfig(
    algorithm=AlgorithmConfig(
        group_size=4,
        batch_size=16,
        optimizer=OptimizerConfig(learning_rate=1e-2),
        correction=TruncateCorrectionConfig(),
    ),
    num_groups=4,
    num_groups_sampled=4,
    max_refills=0,
    max_iterations=4,
    max_staleness=1,
)


# --- the thread ----------------------------------------------------------------------------------------------------


def test_the_next_batch_is_sampled_while_one_is_learned() -> None:
    """The update of the first batch ends only once the second is there: one after the other they would never end."""
    has_second = threading.Event()

    def update(batch: int) -> dict[str, float]:
        assert has_second.wait(60)
        return {"batch": float(batch)}

    with BackgroundUpdates(update, 5) as updates:
        updates.submit(0)
        assert list(updates.finished(5)) == []
        updates.submit(1)
        has_second.set()
        assert list(updates.finished(7)) == [{"batch": 0.0}, {"batch": 1.0}]


def test_waiting_returns_the_metrics_of_the_update() -> None:
    def update(batch: int) -> dict[str, float]:
        time.sleep(0.05)
        return {"batch": float(batch)}

    with BackgroundUpdates(update, 0) as updates:
        for batch in range(3):
            updates.submit(batch)
        assert next(updates.finished(1)) == {"batch": 0.0}
        assert [found["batch"] for found in updates.finished(3)] == [1.0, 2.0]


def test_an_error_of_an_update_is_raised_in_the_sampling_thread() -> None:
    def update(batch: int) -> dict[str, float]:
        if batch:
            raise SandboxError("no room")
        return {}

    with BackgroundUpdates(update, 0) as updates:
        updates.submit(0)
        updates.submit(1)
        found = updates.finished(2)
        assert next(found) == {}
        with pytest.raises(SandboxError, match="no room"):
            next(found)


def test_stopping_finishes_the_running_update_and_drops_the_others() -> None:
    begun, done = threading.Event(), []

    def update(batch: int) -> dict[str, float]:
        begun.set()
        time.sleep(0.05)
        done.append(batch)
        return {}

    with BackgroundUpdates(update, 0) as updates:
        updates.submit(0)
        updates.submit(1)
        assert begun.wait(60)
    assert done == [0]


def test_an_error_of_the_last_update_is_raised_when_the_caller_stops() -> None:
    begun = threading.Event()

    def update(batch: int) -> dict[str, float]:
        begun.set()
        raise SandboxError("no room")

    def iterations():
        with BackgroundUpdates(update, 0) as updates:
            updates.submit(0)
            assert begun.wait(60)
            yield

    found = iterations()
    next(found)
    with pytest.raises(SandboxError, match="no room"):
        found.close()


# --- the loop ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_staleness", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_tokens_keep_their_version_within_the_staleness_bound(tmp_path, open_taught, max_staleness):
    run = open_taught(tmp_path)
    config = RL.model_copy(update={"max_staleness": max_staleness})
    loop = RLLoop(run, config, "sft", AlarmConfig(weight_lag=0))
    models = {0: load_model(run.checkpoint("sft"))}
    lags = []
    for metrics in loop.iterations():
        loop.keep("kept")
        models[loop.num_done] = load_model(run.checkpoint("kept"))
        lags.append(metrics["rollout/weight_lag"])
        assert metrics["rollout/num_stale"] == 0.0
        # Of older weights it says how far the policy has moved, and gives no alarm.
        assert ("policy/log_prob_gap" in metrics) <= (lags[-1] == 0.0)
        assert ("policy/stale_log_prob_gap" in metrics) <= (lags[-1] > 0.0)
        assert ("policy/log_prob_gap" in metrics) + ("policy/stale_log_prob_gap" in metrics) == (
            "policy/ratio_mean" in metrics
        )
    loop.close()
    assert loop.num_done == 4
    assert len(lags) == 4
    assert max(lags) <= max_staleness
    assert not any("weight_lag" in event.kind for event in run.store.events())
    for step in range(4):
        for trajectory in run.store.trajectories(phase="rl", step=step):
            (version,) = set(trajectory.ledger.policy_version[trajectory.ledger.is_action].tolist())
            assert step - max_staleness <= version <= step
            learner = Learner(models[version], config.algorithm.optimizer, config.algorithm.compute)
            (found,) = learner.measure([policy_sample(trajectory, 1.0)])
            # The version is of the weights that really sampled.
            assert np.allclose(found.log_prob, trajectory.ledger.log_prob, atol=1e-4)
    assert not (tmp_path / "checkpoints" / "dapo-versions").exists()


def test_a_stopped_run_resumes_without_sampling_twice(tmp_path, open_taught):
    loop = RLLoop(open_taught(tmp_path), RL, "sft")
    iterations = loop.iterations()
    next(iterations)
    iterations.close()
    assert 1 <= loop.num_done <= 2
    run = open_taught(tmp_path)
    stored = {row.id: row.created_at for row in run.store.rows(phase="rl")}
    resumed = RLLoop(run, RL, "sft")
    assert resumed.num_done == loop.num_done
    assert len(list(resumed.iterations())) == 4 - loop.num_done
    rows = {row.id: row.created_at for row in run.store.rows(phase="rl")}
    assert stored.items() <= rows.items()
    assert len(rows) == 4 * 4 * 4
    assert [step for step, _ in run.store.metrics("rl", "rollout/num_stale")] == [0, 1, 2, 3]


@pytest.mark.parametrize(("max_staleness", "num_stale"), [(0, 16.0), (1, 0.0)])
def test_stale_episodes_are_dropped_and_counted(tmp_path, open_taught, max_staleness, num_stale):
    """Iteration 1 was sampled with version 0, by a run that allowed it; what is dropped sounds the alarm."""
    run = open_taught(tmp_path)
    jobs = make_groups("rl", 1, [task.id for task in run.select(TrainingSelection())], 4, run.seed)
    run.run_jobs(PolicyRef("rl", str(run.checkpoint("sft"))), jobs, phase="rl", step=1)
    loop = RLLoop(run, RL.model_copy(update={"max_staleness": max_staleness, "max_iterations": 2}), "sft")
    first, second = loop.iterations()
    assert first["rollout/num_stale"] == 0.0
    assert first["rollout/num_trajectories"] == 16.0
    assert second["rollout/num_stale"] == num_stale
    assert second["rollout/num_trajectories"] == 16.0 - num_stale
    assert second["rollout/weight_lag"] == 1.0
    assert [event.kind for event in run.store.events()].count("alarm_weight_lag") == (num_stale > 0.0)
    assert ("train/num_learned_tokens" in second) <= (num_stale == 0.0)


def test_the_oldest_token_decides_staleness(trajectory_maker):
    ledger = LedgerBuilder()
    for version in (5, 3):
        ledger.append_context([1])
        ledger.append_action([2], [-1.0], version)
    trajectory = replace(trajectory_maker(), ledger=ledger.build())
    assert not is_stale(trajectory, 3, 0)
    assert not is_stale(trajectory, 4, 1)
    assert is_stale(trajectory, 5, 1)


def test_a_published_version_never_changes(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").write_text("zero")
    versions = WeightVersions(tmp_path / "versions")
    versions.publish(model, 0)
    shutil.rmtree(model)
    model.mkdir()
    (model / "weights").write_text("one")
    versions.publish(model, 1)
    assert [(versions.path(number) / "weights").read_text() for number in (0, 1)] == ["zero", "one"]
    versions.forget_before(1)
    assert not versions.path(0).exists()
    WeightVersions(tmp_path / "versions")
    assert not versions.path(1).exists()
