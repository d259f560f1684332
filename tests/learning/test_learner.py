"""One step of the learner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from repairgym.config.learning import ComputeConfig, OptimizerConfig, SftConfig
from repairgym.errors import ConfigError
from repairgym.learning.learner import Learner, release_memory
from repairgym.learning.losses import sft_loss
from repairgym.learning.samples import Sample, text_sample
from repairgym.learning.sft import SftTrainer

MakeModel = Callable[[int], PreTrainedModel]
MakeGroup = Callable[..., list[Sample]]
FAST = OptimizerConfig(learning_rate=1e-2)
TEXTS = [text_sample([(start + step * 7) % 120 for step in range(20)]) for start in range(12)]


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def test_the_cut_into_micro_batches_does_not_change_the_step(make_model: MakeModel, make_group: MakeGroup) -> None:
    samples = make_group(1, 30, (10, 40, 12)) + make_group(2, 50, (20, 5)) + TEXTS[:3]
    results = []
    for budget in (4096, 60):
        learner = Learner(make_model(0), OptimizerConfig(max_grad_norm=1e9), ComputeConfig(micro_batch_tokens=budget))
        results.append(learner.step(samples, sft_loss))
    assert results[0]["train/loss"] == pytest.approx(results[1]["train/loss"], rel=1e-5)
    assert results[0]["optim/grad_norm"] == pytest.approx(results[1]["optim/grad_norm"], rel=1e-4)
    assert results[0]["train/num_learned_tokens"] == sum(sample.num_learned for sample in samples)


def test_gradient_checkpointing_gives_the_same_step(make_model: MakeModel, make_group: MakeGroup) -> None:
    samples = make_group(1, 30, (10, 40, 12))
    norms = []
    for is_checkpointing in (False, True):
        learner = Learner(make_model(0), OptimizerConfig(), ComputeConfig(is_checkpointing=is_checkpointing))
        norms.append(learner.step(samples, sft_loss)["optim/grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_evaluation_measures_what_a_step_would_report_and_changes_nothing(model: PreTrainedModel) -> None:
    trainer = SftTrainer(model, SftConfig(optimizer=FAST))
    before = weights(model)
    measured = trainer.evaluate(TEXTS)
    assert_equal(weights(model), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert measured["sft/nll"] == pytest.approx(trainer.step(TEXTS)["sft/nll"], rel=1e-5)


def test_dropout_is_off_while_learning(make_group: MakeGroup) -> None:
    config = GPT2Config(vocab_size=120, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    learner = Learner(GPT2LMHeadModel(config), OptimizerConfig(), ComputeConfig())
    group = make_group(1, 30, (10, 12))
    want = learner.evaluate(group, sft_loss)["sft/nll"]
    assert learner.step(group, sft_loss)["sft/nll"] == pytest.approx(want, rel=1e-5)


def test_a_batch_without_learned_tokens_changes_nothing(model: PreTrainedModel) -> None:
    empty = Sample(np.array([1, 2], np.int32), np.zeros(2, np.float32), np.zeros(2, np.float32))
    before = weights(model)
    assert SftTrainer(model, SftConfig()).step([empty]) == {}
    assert_equal(weights(model), before)


MakeModel = Callable[[int], PreTrainedModel]
MakeGroup = Callable[..., list[Sample]]


def test_measured_log_probs_are_those_of_full_forwards(model: PreTrainedModel, make_group: MakeGroup) -> None:
    """In the samples' order, whatever order packing computes them in."""
    group = make_group(1, 40, (30, 5, 12))
    measured = Learner(model, OptimizerConfig(), ComputeConfig(micro_batch_tokens=80)).measure(group)
    for sample, scores in zip(group, measured, strict=True):
        ids = torch.from_numpy(sample.token_id).long()
        with torch.no_grad():
            want = torch.log_softmax(model(ids[None]).logits[0], -1)[:-1].gather(1, ids[1:, None])[:, 0].numpy()
        assert scores.log_prob[1:] == pytest.approx(np.where(sample.weight[1:] > 0, want, 0.0), abs=1e-4)
        assert scores.value is None


MIB = 1 << 20


def resident_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_freed_blocks_between_live_ones_are_given_back() -> None:
    blocks = [torch.ones(16 * 1024) for _ in range(4096)]  # 64 KiB each, too small to be mapped one by one
    live = blocks[::16]
    before = resident_bytes()
    del blocks
    release_memory()
    assert resident_bytes() < before - 128 * MIB
    assert all(bool((block == 1).all()) for block in live)


def test_a_sample_beyond_positions_that_depend_on_its_neighbors_is_rejected() -> None:
    """LongRoPE: transformers takes the factors of a whole pack from its longest sample."""
    config = LlamaConfig(
        vocab_size=120, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16,
            "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0],
        },
    )  # fmt: skip
    torch.manual_seed(0)
    learner = Learner(LlamaForCausalLM(config), OptimizerConfig(), ComputeConfig())
    short, other, long = (text_sample(range(begin, begin + size)) for begin, size in ((0, 16), (20, 12), (40, 17)))
    together = learner.measure([short, other])[0].log_prob
    assert together == pytest.approx(learner.measure([short])[0].log_prob, abs=1e-5)
    with pytest.raises(ConfigError, match="a sample has 17 tokens, and the model has 16 positions: beyond them"):
        learner.measure([short, long])
