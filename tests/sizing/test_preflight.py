"""What training commands ask for: the stages of each recipe, and memory beside positions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repairgym.config.algorithms import KlConfig, NoKlConfig
from repairgym.config.learning import AlgorithmConfig, ComputeConfig, LoraConfig, RftConfig, SftConfig
from repairgym.config.loading import load_config, preset_file
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.recipes import (
    DistillThenGrpoConfig,
    RftCommandConfig,
    RlCommandConfig,
    SftCommandConfig,
    StepDpoCommandConfig,
    TwoStageConfig,
)
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError
from repairgym.sizing.preflight import Room, Stage, preflight, stages_of

QWEN3_8B = {
    "model_type": "qwen3", "max_position_embeddings": 40_960, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12_288, "vocab_size": 151_936, "head_dim": 128,
    "rope_theta": 1_000_000.0,
}  # fmt: skip
K, GIB = 1024, 1 << 30
LORA = RftConfig(trained=LoraConfig(), compute=ComputeConfig(is_bf16=True, is_checkpointing=True))


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
        list(preflight(model, stages, 1, Room(80 * GIB)))
    assert list(preflight(model, stages, 8, Room(80 * GIB))) == [line]
    for changes in ({"compute": compute.model_copy(update={"is_offloaded": True})}, {"trained": LoraConfig()}):
        learned = stages[0].learned.model_copy(update=changes)
        assert list(preflight(model, [Stage(32 * K, learned, None)], 1, Room(80 * GIB)))


@pytest.mark.parametrize(
    ("is_bf16", "room", "is_told"),
    [
        (True, Room(cpu_bf16="emulated"), True),
        (False, Room(cpu_bf16="emulated"), False),
        (True, Room(cpu_bf16="amx"), False),
        (True, Room(80 * GIB, cpu_bf16="emulated"), False),
    ],
)
def test_bfloat16_that_the_processor_does_not_have_is_told(model: Path, is_bf16: bool, room: Room, is_told: bool):
    learned = RftConfig(compute=ComputeConfig(is_bf16=is_bf16, is_checkpointing=True), trained=LoraConfig())
    lines = list(preflight(model, [Stage(K, learned, None)], 1, room))
    assert any("has no bfloat16" in line for line in lines) is is_told


def test_the_reference_of_a_kl_term_counts(model: Path) -> None:
    """Four bytes of each of 8.19e9 parameters over 8 processes."""
    said = []
    for kl in (NoKlConfig(), KlConfig(type="k3")):
        (line,) = preflight(model, [Stage(32 * K, AlgorithmConfig(kl=kl), None)], 8)
        said.append(float(line.partition("about ")[2].partition(" GiB each")[0]))
    assert said[1] - said[0] == pytest.approx(4 * 8.19e9 / 8 / GIB, rel=0.05)


def test_stored_episodes_are_as_long_as_the_positions_at_most(model: Path) -> None:
    config = SftCommandConfig(sft=SftConfig(compute=ComputeConfig(micro_batch_tokens=128 * K)))
    (line,) = preflight(model, stages_of(config), 1)
    assert "40,960 tokens for learner" in line


def test_a_model_of_another_shape_has_no_estimate(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(QWEN3_8B | {"num_experts": 64}))
    (line,) = preflight(model, [Stage(4 * K, SftConfig(), None)], 1, Room(1 * GIB, 1 * GIB))
    assert "GiB" not in line


def test_samplers_name_what_they_hold(model: Path) -> None:
    """Qwen3-8B: 8.2e9 weights; a token has 2 x 36 x 8 x 128 keys and values, 147,456 bytes in 16 bits."""
    served, _ = preflight(model, [Stage(32 * K, RftConfig(), "vllm")], 1)
    assert "32,768 tokens for vllm on servers, whose GPUs are not known here" in served
    assert "about 19.8 GiB together" in served  # 15.3 of weights and 4.5 of one context
    rollout = RolloutConfig(engine=EngineConfig(num_slots=2, max_len_tokens=32 * K))
    own, _ = preflight(model, [Stage(32 * K, RftConfig(), "embedded", rollout=rollout)], 1)
    assert "about 48.5 GiB each" in own  # both in 32 bits, two contexts
    # Samplers are not on the learner's GPU.
    small = RftConfig(trained=LoraConfig(), compute=ComputeConfig(is_bf16=True, is_checkpointing=True))
    assert len(list(preflight(model, [Stage(32 * K, small, "embedded", rollout=rollout)], 8, Room(40 * GIB)))) == 2


def test_rft_on_a_stored_run_samples_nothing() -> None:
    (stage,) = stages_of(RftCommandConfig(), is_sampling=False, stored_tokens=5000)
    assert (stage.sampler, stage.context_tokens) == (None, 5000)


def test_stored_episodes_beyond_the_positions_are_rejected_before_anything_is_loaded(model: Path) -> None:
    for config in (SftCommandConfig(), StepDpoCommandConfig(), RftCommandConfig()):
        fits, long = (stages_of(config, is_sampling=False, stored_tokens=num) for num in (40_960, 40_961))
        assert list(preflight(model, fits, 1))
        with pytest.raises(ConfigError, match=r"40,961 tokens for learner .* 40,960 positions"):
            list(preflight(model, long, 1))


def test_host_memory_is_compared_where_the_learner_has_no_gpu(model: Path) -> None:
    """16 bytes of each of 8.19e9 parameters are 122 GiB in one process; two processes on a machine hold them once."""
    stages = [Stage(1 * K, SftConfig(compute=ComputeConfig(micro_batch_tokens=1 * K, is_checkpointing=True)), None)]
    with pytest.raises(
        ConfigError, match=r"at least 12\d GiB .*1 learners 12\d\); this machine .* has 100: start fewer"
    ):
        list(preflight(model, stages, 1, Room(host_bytes=100 * GIB)))
    _, line = preflight(model, stages, 1, Room(host_bytes=256 * GIB))
    assert "GiB in the machine's memory (1 learners 12" in line
    assert line.endswith("of 256")
    _, shared = preflight(model, stages, 8, Room(host_bytes=100 * GIB, num_local=2))
    assert "(2 learners " in shared
    _, dry = preflight(model, stages, 1, Room(host_bytes=100 * GIB, is_here=False))
    assert dry.endswith("this machine has 100, too few to run it here")


def test_engines_of_all_workers_are_in_host_memory_beside_the_learner(model: Path) -> None:
    """An engine cannot do without 30.5 GiB of float32 weights and 0.28 GiB of one context of 1,024 tokens."""
    learned = SftConfig(compute=ComputeConfig(is_bf16=True, is_checkpointing=True))
    rollout = RolloutConfig(num_workers=3, engine=EngineConfig(num_slots=4))
    (stage,) = stages_of(RlCommandConfig(rollout=rollout))
    assert stage.num_engines == 3
    three = Stage(1 * K, learned, "embedded", rollout=rollout, num_engines=3)
    lines = list(preflight(model, [three], 8, Room(gpu_bytes=80 * GIB, host_bytes=128 * GIB, num_local=8)))
    assert "at least 92.4 GiB in the machine's memory (3 engines 92.4), of 128" in lines[-1]
    with pytest.raises(ConfigError, match=r"3 engines 92\.4\); this machine .* has 64"):
        list(preflight(model, [three], 8, Room(gpu_bytes=80 * GIB, host_bytes=64 * GIB, num_local=8)))
    # One process reads a whole model before it goes to its GPU; offloaded shards stay in host memory.
    one = [Stage(1 * K, LORA, None)]
    assert "weights while loading 30.5" in list(preflight(model, one, 1, Room(80 * GIB, 64 * GIB)))[-1]
    assert len(list(preflight(model, one, 8, Room(80 * GIB, 64 * GIB, num_local=8)))) == 1
    offloaded = learned.model_copy(update={"compute": learned.compute.model_copy(update={"is_offloaded": True})})
    with pytest.raises(ConfigError, match="weights, gradients and moments 122"):
        list(preflight(model, [Stage(1 * K, offloaded, None)], 8, Room(80 * GIB, 64 * GIB, num_local=8)))


def test_a_cache_that_one_engine_takes_at_its_start_must_fit(model: Path) -> None:
    """64 slots of 32,769 tokens of 288 KiB: 576 GiB, which a machine of 256 GiB cannot give however few are used."""
    engine = EngineConfig(num_slots=64, max_len_tokens=32 * K)
    stage = Stage(1 * K, LORA, "embedded", rollout=RolloutConfig(engine=engine), num_engines=1)
    with pytest.raises(ConfigError, match=r"1 engines 607\).*rollout\.engine\.num_slots"):
        list(preflight(model, [stage], 8, Room(80 * GIB, 256 * GIB, num_local=8)))


def test_settings_of_an_engine_that_does_not_sample_are_named(model: Path) -> None:
    rollout = RolloutConfig(
        pipeline=PipelineConfig(max_len_tokens=32 * K), engine=EngineConfig(num_slots=8, max_len_tokens=4 * K)
    )
    idle, *_ = preflight(model, [Stage(32 * K, LORA, "vllm", rollout=rollout)], 1)
    assert idle.startswith("rollout.engine.num_slots=8, rollout.engine.max_len_tokens=4096: no effect, vllm samples")
    assert "rollout.pipeline.max_len_tokens=32768" in idle
    with pytest.raises(ConfigError, match=r"max_len_tokens=32768 is more than the embedded engine keeps.*now 4096"):
        list(preflight(model, [Stage(32 * K, LORA, "embedded", rollout=rollout)], 1))


def test_a_windowed_model_is_not_learned_and_has_no_estimate(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(QWEN3_8B | {"model_type": "mistral", "sliding_window": 4096}))
    with pytest.raises(ConfigError, match=r"config\.json has sliding_window=4096.*under verl with vLLM"):
        list(preflight(model, [Stage(1 * K, LORA, None)], 1))
