"""What training commands ask for: the stages of each recipe, and memory beside positions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repairgym.config.learning import AlgorithmConfig, ComputeConfig, LoraConfig, RftConfig, SftConfig
from repairgym.config.loading import load_config, preset_file
from repairgym.config.models import EngineConfig
from repairgym.config.recipes import DistillThenGrpoConfig, RftCommandConfig, SftCommandConfig, TwoStageConfig
from repairgym.errors import ConfigError
from repairgym.sizing.preflight import Stage, preflight, stages_of

QWEN3_8B = {
    "model_type": "qwen3", "max_position_embeddings": 40_960, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12_288, "vocab_size": 151_936, "head_dim": 128,
    "rope_theta": 1_000_000.0,
}  # fmt: skip
K, GIB = 1024, 1 << 30


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    return tmp_path


def test_stages_of_the_papers_recipes() -> None:
    two = stages_of(load_config(TwoStageConfig, preset_file("paper_b/two_stage")))
    assert [(stage.context_tokens, stage.yarn_factor) for stage in two] == [(64 * K, 2.0), (128 * K, 4.0)]
    rft = stages_of(load_config(RftCommandConfig, preset_file("paper_b/rft")))
    assert [(stage.context_tokens, stage.sampler) for stage in rft] == [(64 * K, "vllm")]
    taught, rl = stages_of(load_config(DistillThenGrpoConfig, preset_file("paper_a/distill_then_grpo")))
    assert (taught.sampler, type(taught.learned)) == (None, SftConfig)  # a teacher has positions of its own
    assert (rl.context_tokens, type(rl.learned)) == (128 * K, AlgorithmConfig)
    assert stages_of(RftCommandConfig(sampler="openai"))[0].sampler is None


def test_a_teachers_longer_pipeline_counts_for_the_student(model: Path) -> None:
    config = load_config(
        DistillThenGrpoConfig, preset_file("paper_a/distill_then_grpo"), ["rollout.pipeline.max_len_tokens=8192"]
    )
    with pytest.raises(ConfigError, match="131,072 tokens for learner"):
        list(preflight(model, stages_of(config), 1))


def test_memory_is_named_and_compared_with_the_gpu(model: Path) -> None:
    compute = ComputeConfig(is_bf16=True, is_checkpointing=True)
    stages = [Stage(32 * K, RftConfig(compute=compute), None)]
    (line,) = preflight(model, stages, 8)
    for part in (str(model), "32,768 tokens", "40,960 positions", "8 GPUs", "GiB each"):
        assert part in line
    with pytest.raises(ConfigError, match=r"about 1\d\d GiB each\): a GPU has 80 GiB for it; start more processes"):
        list(preflight(model, stages, 1, 80 * GIB))
    assert list(preflight(model, stages, 8, 80 * GIB)) == [line]
    for changes in ({"compute": compute.model_copy(update={"is_offloaded": True})}, {"trained": LoraConfig()}):
        learned = stages[0].learned.model_copy(update=changes)
        assert list(preflight(model, [Stage(32 * K, learned, None)], 1, 80 * GIB))


def test_stored_episodes_are_as_long_as_the_positions_at_most(model: Path) -> None:
    config = SftCommandConfig(sft=SftConfig(compute=ComputeConfig(micro_batch_tokens=128 * K)))
    (line,) = preflight(model, stages_of(config), 1)
    assert "40,960 tokens for learner" in line


def test_a_model_of_another_shape_has_no_estimate(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(QWEN3_8B | {"num_experts": 64}))
    (line,) = preflight(model, [Stage(4 * K, SftConfig(), None)], 1, 1 * GIB)
    assert "GiB" not in line


def test_samplers_name_what_they_hold(model: Path) -> None:
    """Qwen3-8B: 8.2e9 weights; a token has 2 x 36 x 8 x 128 keys and values, 147,456 bytes in 16 bits."""
    served, _ = preflight(model, [Stage(32 * K, RftConfig(), "vllm")], 1)
    assert "32,768 tokens for vllm on 1 GPUs or processes" in served
    assert "about 19.8 GiB each" in served  # 15.3 of weights and 4.5 of one context
    engine = EngineConfig(num_slots=2, max_len_tokens=32 * K)
    own, _ = preflight(model, [Stage(32 * K, RftConfig(), "embedded", engine=engine)], 1)
    assert "about 48.5 GiB each" in own  # both in 32 bits, two contexts
    # Samplers are not on the learner's GPU.
    small = RftConfig(trained=LoraConfig(), compute=ComputeConfig(is_bf16=True, is_checkpointing=True))
    assert len(list(preflight(model, [Stage(32 * K, small, "embedded", engine=engine)], 8, 40 * GIB))) == 2


def test_rft_on_a_stored_run_samples_nothing() -> None:
    (stage,) = stages_of(RftCommandConfig(), is_sampling=False)
    assert stage.sampler is None
