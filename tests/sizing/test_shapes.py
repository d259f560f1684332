"""Counts that follow from a shape, against numbers that are known."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from repairgym.errors import ModelFolderError
from repairgym.inference.loading import shipped_base
from repairgym.sizing.shapes import SHAPES, read_shape


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
