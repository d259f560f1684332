"""RL whose episodes are sampled by servers: the same loop, weights pushed after each update, trouble before the run."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from repairgym.config.algorithms import (
    GaeAdvantageConfig,
    PpoLossConfig,
    StepPenaltyConfig,
    TruncateCorrectionConfig,
)
from repairgym.config.learning import AlgorithmConfig, LoraConfig, OptimizerConfig
from repairgym.config.models import EndpointConfig, VllmSamplerConfig
from repairgym.config.recipes import RlConfig
from repairgym.errors import ConfigError, ServerRejectedError, StaleWeightsError
from repairgym.inference.loading import load_model
from repairgym.learning.learner import Learner
from repairgym.learning.samples import policy_sample
from repairgym.testing.fake_vllm import FakeVllm, Flaw
from repairgym.training.rl_loop import RLLoop

# PPO makes a step of groups of equal rewards, too, and the decay alone moves all matrices by a third: every iteration
# has an update, whatever the tiny model samples.
DAPO = AlgorithmConfig(
    loss=PpoLossConfig(),
    advantage=GaeAdvantageConfig(),
    group_size=2,
    batch_size=8,
    optimizer=OptimizerConfig(learning_rate=3e-2, weight_decay=10.0),
)


def config_of(url: str, algorithm: AlgorithmConfig = DAPO, **sampler: object) -> RlConfig:
    endpoint = EndpointConfig(base_url=url, model="tiny", max_attempts=2, backoff_s=0.001)
    return RlConfig(
        algorithm=algorithm,
        sampler=VllmSamplerConfig.model_validate({"endpoint": endpoint} | sampler),
        num_groups=2,
        num_groups_sampled=2,
        max_refills=0,
        max_iterations=2,
    )


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_model(folder).state_dict()


def test_servers_get_the_weights_of_each_update(tmp_path, open_run, base):
    fake = FakeVllm(base)
    run = open_run(tmp_path)
    with fake.in_thread() as url:
        loop = RLLoop(run, config_of(url), "base")
        found = list(loop.iterations())
        for step in (0, 1):
            for trajectory in run.store.trajectories(phase="rl", step=step):
                versions = trajectory.ledger.policy_version[trajectory.ledger.is_action]
                assert set(versions.tolist()) == {step}
        assert [metrics["rollout/weight_lag"] for metrics in found] == [0.0, 0.0]
        assert all(abs(metrics["policy/log_prob_gap"]) < 1e-4 for metrics in found)
        gaps = dict(run.store.metrics("rl", "sync/log_prob_gap"))
        assert set(gaps) == {0, 1, 2}
        assert max(gaps.values()) < 1e-5
        saved = state_of(tmp_path / "checkpoints" / "rl-state" / "model")
        held = fake.state()
        assert all(torch.allclose(saved[name], held[name], atol=1e-6) for name in saved)
        assert not torch.equal(saved["lm_head.weight"], state_of(base)["lm_head.weight"])
        fake.version = "default"  # it was started again
        assert RLLoop(open_run(tmp_path), config_of(url), "base").num_done == 2
        assert fake.version.endswith(":2")


def test_servers_get_new_weights_while_episodes_of_the_next_iteration_run(tmp_path, open_run, base):
    """Asynchronous: the weights after update 0 come between two tokens of iteration 1, and the ledger says which."""
    fake, run, is_sampling = FakeVllm(base), open_run(tmp_path), threading.Event()
    dapo = DAPO.model_copy(update={"correction": TruncateCorrectionConfig()})

    async def hold(_: int) -> None:
        """Iteration 1 begins with version 0 and waits for the next."""
        if fake.version.rpartition(":")[2] == "0" and len(run.store.rows(phase="rl", step=0)) == 4:
            is_sampling.set()
            await fake.is_paused.wait()

    def wait(phase: str, step: int, metrics: object) -> None:
        """Update 0 is learned and goes to the servers once iteration 1 samples."""
        assert step > 0 or "rollout/weight_lag" not in metrics or is_sampling.wait(120)

    fake.on_token = hold
    with fake.in_thread() as url, run.store.listening(wait):
        loop = RLLoop(run, config_of(url, dapo).model_copy(update={"max_staleness": 1}), "base")
        lags = []
        for metrics in loop.iterations():
            loop.keep(f"version-{loop.num_done}")
            lags.append(metrics["rollout/weight_lag"])
        loop.close()
    assert lags == [0.0, 1.0]
    assert fake.version.rpartition(":")[2] == "2"
    gaps = dict(run.store.metrics("rl", "sync/log_prob_gap"))
    assert set(gaps) == {0, 1, 2}
    assert max(gaps.values()) < 1e-5
    learners = [
        Learner(load_model(run.checkpoint(name)), dapo.optimizer, dapo.compute) for name in ("base", "version-1")
    ]
    found = list(run.store.trajectories(phase="rl", step=1))
    assert {0, 1} <= set(np.concatenate([one.ledger.policy_version for one in found]).tolist())
    for trajectory in found:
        for version, learner in enumerate(learners):
            (measured,) = learner.measure([policy_sample(trajectory, 1.0)])
            own = trajectory.ledger.policy_version == version
            assert np.allclose(measured.log_prob[own], trajectory.ledger.log_prob[own], atol=1e-4)


def test_an_adapter_is_replaced_in_place(tmp_path, open_run, base):
    fake = FakeVllm(base)
    # A penalty that later turns feel more moves the adapter, whose B starts at 0, whatever the tiny model samples.
    advantage = GaeAdvantageConfig(turn_discount=0.5)
    dapo = DAPO.model_copy(update={"trained": LoraConfig(rank=2, alpha=4), "advantage": advantage})
    with fake.in_thread() as url:
        run = open_run(tmp_path)
        reward = StepPenaltyConfig(threshold_turns=1)
        config = config_of(url, dapo, transfer="lora").model_copy(update={"reward": reward})
        next(RLLoop(run, config, "base").iterations())
        gaps = dict(run.store.metrics("rl", "sync/log_prob_gap"))
    assert fake.log.count("/v1/load_lora_adapter") == 2
    # The servers merge what they read from the adapter's own files, under its own name; the model stays as it was.
    saved, held = state_of(tmp_path / "checkpoints" / "rl-state" / "model"), fake.state("repairgym")
    assert all(torch.allclose(saved[name], held[name], atol=1e-6) for name in saved)
    assert all(torch.equal(value, fake.state()[name]) for name, value in state_of(base).items())
    assert any(not torch.allclose(value, held[name]) for name, value in state_of(base).items())
    assert (len(gaps), max(gaps.values()) < 1e-5) == (2, True)
    assert (tmp_path / "checkpoints" / "rl-state" / "model" / "adapter" / "adapter_config.json").is_file()


def test_a_stale_head_stops_the_run(tmp_path, open_run, base):
    run = open_run(tmp_path)
    with FakeVllm(base, [Flaw.STALE_HEAD]).in_thread() as url:
        loop = RLLoop(run, config_of(url), "base")
        with pytest.raises(StaleWeightsError, match="stale output head"):
            next(loop.iterations())
    assert not list(run.store.rows(phase="rl", step=1))


def test_impossible_samplers_are_rejected_before_the_run(tmp_path, open_run, base):
    run = open_run(tmp_path)
    for transfer, words in (("nccl", "has no GPU; use folder"), ("ipc", "has no GPU"), ("lora", "trained.type=lora")):
        with pytest.raises(ConfigError, match=words):
            RLLoop(run, config_of("http://127.0.0.1:1/v1", transfer=transfer), "base")
    with pytest.raises(ConfigError, match=r"needs endpoint\.base_url"):
        RLLoop(run, RlConfig(sampler=VllmSamplerConfig()), "base")
    bad = FakeVllm(base, [Flaw.NO_UPDATES])
    with bad.in_thread() as url, pytest.raises(ServerRejectedError, match="--enable-scale-out"):
        RLLoop(run, config_of(url), "base")
    assert not run.checkpoint("rl-state").exists()
