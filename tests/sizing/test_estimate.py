"""Estimates: what fits, what does not, and that more machines help."""

import pytest

from repairgym.config.cluster import PlanCommandConfig
from repairgym.config.loading import load_config
from repairgym.errors import ConfigError
from repairgym.sizing.estimate import decode_step_s, estimate, training_memory
from repairgym.sizing.shapes import GPUS, SHAPES


def planned(*overrides):
    return estimate(load_config(PlanCommandConfig, None, list(overrides)))


def test_paper_a_fits_its_node_and_one_gpu_does_not_hold_it():
    results = planned()
    assert results.training.parts["weights, gradients, moments"] == 16 * results.shape.num_parameters / 8
    assert results.training.total_bytes < 0.9 * GPUS["h200"].memory_bytes
    with pytest.raises(ConfigError, match=r"training needs \d+ GiB on each of 1 GPUs.*update='lora'"):
        planned("machine.num_gpus=1")


def test_a_longer_context_is_split_over_more_gpus():
    short, long = planned("context_tokens=40000"), planned("context_tokens=262144")
    assert short.training.context_parallel < long.training.context_parallel


def test_adapters_need_less():
    config = load_config(PlanCommandConfig, None, ["update=lora"])
    shape = SHAPES[config.model]
    full = training_memory(shape, GPUS["h200"], PlanCommandConfig(), 8)
    assert training_memory(shape, GPUS["h200"], config, 8).parts["adapters"] < 0.05 * full.total_bytes


def test_decoding_one_sequence_reads_the_weights_once():
    config = load_config(
        PlanCommandConfig, None, ["efficiency.decode_bandwidth=1.0", "episode.observation_tokens=1e-9"]
    )
    step_s = decode_step_s(SHAPES["Qwen3-32B"], GPUS["h200"], config, 1, 1)
    weights_s = 2 * SHAPES["Qwen3-32B"].num_parameters / GPUS["h200"].bandwidth_bytes
    assert weights_s < step_s < 1.5 * weights_s


def test_twice_the_machines_update_in_half_the_time():
    item, two = planned("machine.num_gpus=8"), planned("machine.num_gpus=16")
    assert item.update_s == pytest.approx(2 * two.update_s)
    assert two.rollouts.duration_s <= item.rollouts.duration_s


def test_apart_some_generate_and_the_others_train():
    results = planned("machine.is_colocated=false", "machine.num_gpus=16", "machine.rollout_share=0.25")
    assert (results.num_generating_gpus, results.num_training_gpus) == (4, 12)


def test_an_episode_longer_than_the_context_is_rejected():
    with pytest.raises(ConfigError, match=r"an episode has 28000 tokens on average, context_tokens=1000"):
        planned("context_tokens=1000")
