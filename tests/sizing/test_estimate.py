"""Estimates: what fits, what does not, and that more machines help."""

import contextlib
import json
import random
import re

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from repairgym.config.cluster import PlanCommandConfig
from repairgym.config.loading import load_config
from repairgym.errors import ConfigError, ModelFolderError
from repairgym.inference.loading import shipped_base
from repairgym.sizing.estimate import GPUS, decode_step_s, estimate, training_memory
from repairgym.sizing.shapes import SHAPES, read_shape


def planned(*overrides):
    return estimate(load_config(PlanCommandConfig, None, list(overrides)))


def test_paper_a_fits_its_node_and_one_gpu_does_not_hold_it():
    results = planned()
    assert results.training.parts["weights and moments"] == 12 * results.shape.num_parameters / 8
    assert results.training.total_bytes < 0.9 * GPUS["h200"].memory_bytes
    with pytest.raises(ConfigError, match=r"training on 131,072 tokens needs \d+ GiB on each of 1 GPUs, 118"):
        planned("machine.num_gpus=1")


def test_a_longer_context_is_split_over_more_gpus():
    short, long = (planned(f"context_tokens={length}", "machine.num_gpus=16") for length in (40_000, 262_144))
    assert (short.yarn_factor, long.yarn_factor) == (1.0, 8.0)
    assert short.training.context_parallel < long.training.context_parallel


QWEN_7B = {
    "max_position_embeddings": 32_768, "num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 28,
    "hidden_size": 3584, "intermediate_size": 18_944, "vocab_size": 152_064,
}  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "reasons"),
    [
        # More parts of the context than heads allow would have fitted: memory is the reason, not the heads.
        (
            ["context_tokens=1048576", "machine.num_gpus=16"],
            ["GiB on each of 16 GPUs", "over 8 of them", "activations of layers", "): lower context_tokens to 262,144"],
        ),
        (
            ["model=Qwen2.5-72B", "machine.num_gpus=8"],
            ["GiB on each of 8 GPUs", "weights and moments", "train on 32 GPUs"],
        ),
        # 90 GPUs are over two parts only, fewer over eight.
        (["model=Qwen2.5-72B", "machine.num_gpus=90"], ["over 2 of them", "train on 32 GPUs"]),
        # Weights and moments alone are too much: a shorter context is no remedy, nor is one larger GPU.
        (["machine.num_gpus=4", "machine.gpu=a100"], ["over 4 of them", "GiB): train on 24 GPUs (machine.num_gpus)"]),
        (
            ["model=Qwen3-8B", "is_checkpointing=false"],
            ["set is_checkpointing=true, or lower"],
        ),
        # Positions rule out a context on any machine, and so do those of a type that cannot be stretched.
        (["model=7b", "machine.num_gpus=1"], ["has 32,768 positions", "--factor 4"]),
        (["model=Llama-3.1-70B", "context_tokens=262144"], ["has 131,072 positions there (llama3", "; lower the"]),
        # Generation: one GPU of each node, and no more than the heads divide over.
        (
            ["model=Qwen2.5-72B", "update=lora", "machine.num_gpus=64", "machine.gpus_per_node=1"],
            ["135 GiB of weights", "on each of 1 GPUs"],
        ),
    ],
)
def test_the_reason_that_is_named_rules_it_out(overrides, reasons, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    with pytest.raises(ConfigError) as error:
        planned(*(text.replace("model=7b", f"model={tmp_path}") for text in overrides))
    for reason in reasons:
        assert reason in str(error.value)
    assert "equal share" not in str(error.value)
    assert "divided over" not in str(error.value)


def test_a_remedy_that_is_named_is_enough():
    wanted = ["model=Qwen3-32B", "context_tokens=65536"]
    with pytest.raises(ConfigError, match=r"train on 8 GPUs \(machine.num_gpus\), or set update='lora'"):
        planned(*wanted, "machine.num_gpus=4")
    for remedy in (["machine.num_gpus=8"], ["machine.num_gpus=4", "update=lora"]):
        assert planned(*wanted, *remedy).training.total_bytes < 0.9 * GPUS["h200"].memory_bytes


@contextlib.contextmanager
def suppressed_generation():
    """A remedy is one of training; generation may need another."""
    try:
        yield
    except ConfigError as error:
        if "generation needs" not in str(error):
            raise


def test_every_remedy_of_a_seeded_draw_is_enough():
    generator = random.Random(20_261_123)
    num_tried = 0
    for _ in range(30):
        wanted = [
            f"model={generator.choice(['Qwen3-4B', 'Qwen3-14B', 'Qwen3-32B', 'Qwen2.5-72B', 'Llama-3.1-70B'])}",
            f"context_tokens={generator.choice([16_384, 32_768, 131_072])}",
            f"machine.num_gpus={generator.choice([1, 2, 4, 6, 8, 16, 90])}",
            f"machine.gpu={generator.choice(['a100', 'h200'])}",
        ]
        try:
            planned(*wanted)
            continue
        except ConfigError as error:
            said = str(error)
        remedies = {
            r"train on (\d+) GPUs": "machine.num_gpus={}",
            r"set (update)='lora'": "{}=lora",
            r"lower context_tokens to ([\d,]+)": "context_tokens={}",
            r"set machine\.gpu=(\w+)": "machine.gpu={}",
        }
        for pattern, setting in remedies.items():
            if "training on" in said and (named := re.search(pattern, said)):
                num_tried += 1
                with suppressed_generation():
                    planned(*wanted, setting.format(named[1].replace(",", "")))
    assert num_tried > 15


@pytest.mark.parametrize("num_gpus", [4, 8, 12, 28])
def test_splits_divide_gpus_and_heads(num_gpus, tmp_path):
    """28 heads and 4 of keys and values: 4 parts at most, whatever the number of GPUs."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    results = planned(f"model={tmp_path}", "context_tokens=32768", f"machine.num_gpus={num_gpus}", "update=lora")
    assert (results.training.context_parallel, results.generation.tensor_parallel) in {(1, 1), (2, 1), (4, 1)}
    for line, engine in zip(results.preflight, ("learner", "vllm"), strict=True):
        assert f"{tmp_path}: a context of 32,768 tokens for {engine} on {num_gpus} GPUs" in line


def test_adapters_need_less():
    config = load_config(PlanCommandConfig, None, ["update=lora"])
    shape = SHAPES[config.model]
    full = training_memory(shape, GPUS["h200"], PlanCommandConfig(), 8)
    parts = training_memory(shape, GPUS["h200"], config, 8).parts
    assert parts["weights and moments"] < 0.4 * full.parts["weights and moments"]


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


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen3-0.6B", 0.596), ("Qwen3-8B", 8.19), ("Qwen3-32B", 32.8), ("Qwen2.5-72B", 72.7), ("Llama-3.1-70B", 70.6)],
)
def test_parameters_are_those_the_makers_publish(name, billions):
    assert SHAPES[name].num_parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_a_hub_id_names_a_shape():
    assert read_shape("Qwen/Qwen3-8B") == read_shape("hf:Qwen/Qwen3-8B") == SHAPES["Qwen3-8B"]


def test_a_token_of_qwen3_32b_keeps_a_quarter_of_a_mebibyte():
    assert SHAPES["Qwen3-32B"].kv_bytes_per_token == 1 << 18


def test_operations_without_context_are_two_per_parameter_but_the_embedding():
    shape = SHAPES["Qwen3-8B"]
    assert shape.forward_flops(3, 0) == 3 * 2 * (shape.num_parameters - shape.head_parameters)
    more = shape.forward_flops(1, 1000) - shape.forward_flops(1, 0)
    assert more == 4 * 36 * 32 * 128 * 1000


def test_the_shipped_model_is_read_from_its_folder():
    folder = shipped_base()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    real = sum(parameter.numel() for parameter in model.parameters())
    assert read_shape(str(folder)).num_parameters == pytest.approx(real, rel=0.005)


def test_other_models_than_dense_decoders_are_rejected(tmp_path):
    with pytest.raises(ModelFolderError, match=r"one of Qwen3-0\.6B"):
        read_shape("Qwen9")
    path = tmp_path / "config.json"
    path.write_text("{}")
    with pytest.raises(ModelFolderError, match="does not describe a dense decoder"):
        read_shape(str(path))
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    path.write_text(json.dumps({**dict.fromkeys((*names, "vocab_size"), 8), "num_experts": 4}))
    with pytest.raises(ModelFolderError, match="mixture of experts"):
        read_shape(str(tmp_path))
