"""What `train verl` asks of its GPUs, named and compared with their memory before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repairgym.bridges.verl.training import check_contexts, check_stages, stages_of
from repairgym.config.cluster import VerlConfig
from repairgym.config.loading import load_config, preset_file
from repairgym.config.recipes import DistillThenGrpoConfig
from repairgym.errors import ConfigError
from repairgym.sizing.preflight import Room

QWEN3_32B = {
    "model_type": "qwen3", "max_position_embeddings": 131_072, "num_attention_heads": 64, "num_key_value_heads": 8,
    "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 25_600, "vocab_size": 151_936, "head_dim": 128,
    "rope_theta": 1_000_000.0,
}  # fmt: skip
GIB = 1 << 30
H200 = 141e9


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_32B))
    return tmp_path


IDLE = "rollout.engine.max_len_tokens=131072: no effect, vLLM samples"


def lines(model: Path, room_bytes: float | None = None, *recipe: str, **machine: object) -> list[str]:
    """What is said of the GPUs."""
    said = all_lines(model, Room(room_bytes), *recipe, **machine)
    return [line for line in said if not line.startswith(IDLE)]


def all_lines(model: Path, room: Room, *recipe: str, **machine: object) -> list[str]:
    config = load_config(DistillThenGrpoConfig, preset_file("paper_a/distill_then_grpo"), list(recipe))
    loaded = load_config(VerlConfig, preset_file("paper_a/verl")).model_copy(update=machine)
    return list(check_contexts(model, config, loaded, room))


def gib(line: str) -> float:
    return float(line.partition("about ")[2].partition(" GiB each")[0])


def test_paper_a_fits_eight_h200_and_names_their_memory(model: Path) -> None:
    training, sampling = lines(model, H200)
    assert "131,072 tokens for verl on 8 GPUs" in training
    assert "131,072 tokens for vllm on 8 GPUs" in sampling
    # 16 bytes of each of 32.8e9 parameters over 8 GPUs are 61 GiB; layers, activations and logits come with them.
    assert 80 < gib(training) < 131
    # 61 GiB of weights and 32 GiB of one context over 4 GPUs.
    assert gib(sampling) == pytest.approx((2 * 32.76e9 + 131_072 * 262_144) / 4 / GIB, rel=0.01)
    assert lines(model) == [training, sampling]


@pytest.mark.parametrize(
    ("room_bytes", "machine", "advice"),
    [
        (80e9, {}, "for verl on .*take more nodes"),
        (H200, {"gpus_per_node": 4, "sequence_parallel": 4}, "for verl on .*take more nodes"),
        (H200, {"gpu_memory_share": 0.1}, "for vllm on .*a GPU has 13.1 GiB for it.*verl.gpu_memory_share"),
        (H200, {"rollout_tensor_parallel": 1, "gpu_memory_share": 0.6}, "for vllm on .*verl.rollout_tensor_parallel"),
    ],
)
def test_a_gpu_that_is_too_small_is_named(
    model: Path, room_bytes: float, machine: dict[str, object], advice: str
) -> None:
    with pytest.raises(ConfigError, match=advice):
        lines(model, room_bytes, **machine)


def test_weights_and_moments_that_stay_take_room_from_vllm(model: Path) -> None:
    wide = {"gpu_memory_share": 0.7, "rollout_tensor_parallel": 1}
    assert lines(model, 180e9, **wide)
    with pytest.raises(ConfigError, match=r"for vllm on .*is_offloaded=true"):
        lines(model, 140e9, is_offloaded=False, **wide)


def test_an_embedded_engine_and_a_cpu_have_no_gpu_to_compare_with(model: Path) -> None:
    machine = {"device": "cpu", "engine": "embedded", "rollout_tensor_parallel": 1, "sequence_parallel": 1}
    training, sampling = lines(model, 1 * GIB, **machine)
    assert gib(training) > 61
    assert "for embedded on 8 GPUs or processes" in sampling


def test_offloaded_weights_and_moments_are_in_host_memory(model: Path) -> None:
    """Twelve bytes of each of 32.8e9 parameters; they are all on one node of eight."""
    idle, _, _, host = all_lines(model, Room(H200, 1024 * GIB))
    assert idle.startswith(IDLE)
    assert "at least 366 GiB in the machine's memory (weights and moments 366), of 1.02e+03" in host
    with pytest.raises(ConfigError, match=r"weights and moments 366\); this machine .* has 256"):
        all_lines(model, Room(H200, 256 * GIB))
    assert len(all_lines(model, Room(H200, 256 * GIB), ray_address="head:6379")) == 3  # other machines
    assert len(all_lines(model, Room(H200, 256 * GIB), is_offloaded=False, num_nodes=4)) == 3


def test_the_reference_of_a_kl_term_is_in_host_memory_unless_adapters_are_trained(model: Path) -> None:
    kl = "rl.algorithm.kl={type='k3', coefficient=0.001}"
    *_, host = all_lines(model, Room(H200, 1024 * GIB), kl)
    assert "(weights and moments 366, reference 61)" in host
    *_, host = all_lines(model, Room(H200, 1024 * GIB), kl, "rl.algorithm.trained.type=lora")
    assert "(weights and moments 124)" in host


def test_on_a_cpu_learners_and_engines_are_in_host_memory(model: Path) -> None:
    machine = {"device": "cpu", "engine": "embedded", "gpus_per_node": 2, "sequence_parallel": 1}
    machine |= {"rollout_tensor_parallel": 1}
    with pytest.raises(ConfigError, match=r"2 engines \d.*, 2 learners .*this machine"):
        all_lines(model, Room(host_bytes=256 * GIB), "rollout.engine.num_slots=1", **machine)
    with pytest.raises(ConfigError, match="the embedded engine keeps no more"):
        check_stages_of("rollout.engine.max_len_tokens=1024", **machine)


def check_stages_of(*recipe: str, **machine: object) -> None:
    config = load_config(DistillThenGrpoConfig, preset_file("paper_a/distill_then_grpo"), list(recipe))
    loaded = load_config(VerlConfig, preset_file("paper_a/verl")).model_copy(update=machine)
    check_stages(stages_of(config), loaded)
