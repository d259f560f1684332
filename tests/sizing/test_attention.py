"""Fields of a config.json by which layers see less than the whole context, against transformers' own reading."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from repairgym.config.models import EngineConfig
from repairgym.errors import ConfigError
from repairgym.inference.engine.core import Engine
from repairgym.sizing.attention import limited_attention

QWEN = {"model_type": "qwen2", "num_hidden_layers": 28, "max_position_embeddings": 32_768, "sliding_window": 4096}
MISTRAL = {"model_type": "mistral", "num_hidden_layers": 32, "max_position_embeddings": 32_768}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        # As the makers' pages have them: Qwen2.5-7B-Instruct names a window and does not use it.
        (QWEN | {"use_sliding_window": False, "max_window_layers": 28}, ""),
        (QWEN | {"use_sliding_window": True, "max_window_layers": 28}, ""),  # the first 28 of 28 layers are full
        (QWEN | {"use_sliding_window": True, "max_window_layers": 21}, "sliding_window=4096"),
        (QWEN, ""),
        (MISTRAL | {"sliding_window": 4096}, "sliding_window=4096"),  # Mistral-7B-v0.1
        (MISTRAL | {"sliding_window": None}, ""),  # v0.3
        (MISTRAL, "sliding_window=4096"),  # transformers' default
        ({"model_type": "phi3", "sliding_window": 2047, "max_position_embeddings": 4096}, "sliding_window=2047"),
        ({"model_type": "phi3", "sliding_window": 262_144, "max_position_embeddings": 131_072}, ""),
        ({"model_type": "gemma2", "sliding_window": 4096, "max_position_embeddings": 8192}, "sliding_window=4096"),
        ({"model_type": "gpt_oss", "layer_types": ["sliding_attention", "full_attention"]}, "of sliding_attention"),
        ({"text_config": {"layer_types": ["chunked_attention"]}}, "layer_types of chunked_attention"),
        ({"text_config": {"attention_chunk_size": 8192, "max_position_embeddings": 1 << 20}}, "attention_chunk_size=8"),
        ({"model_type": "llama", "max_position_embeddings": 8192}, ""),
    ],
)
def test_fields_as_makers_write_them(config, said):
    assert (said in limited_attention(config)) if said else limited_attention(config) == ""


def small(name: str, **fields: object) -> PreTrainedConfig:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4}
    return AutoConfig.for_model(name, **sizes, num_hidden_layers=2, num_key_value_heads=2, **fields)


@pytest.mark.parametrize(
    ("config", "is_limited"),
    [
        (small("mistral", sliding_window=8), True),
        (small("mistral", sliding_window=None), False),
        (small("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1), True),
        (small("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=2), False),
        (small("qwen2", use_sliding_window=False, sliding_window=8), False),
        (small("starcoder2", sliding_window=8, bos_token_id=1, eos_token_id=2), True),
    ],
)
def test_the_engine_rejects_what_transformers_computes_otherwise(config, is_limited):
    """The last of 24 tokens has other logits than under full attention exactly where the fields say so."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    plain = copy.deepcopy(config)
    plain.sliding_window = None
    if getattr(plain, "layer_types", None):
        plain.layer_types = ["full_attention"] * 2
    full = AutoModelForCausalLM.from_config(plain).eval()
    full.load_state_dict(model.state_dict())
    ids = torch.arange(24)[None]
    with torch.no_grad():
        is_other = not torch.allclose(model(ids).logits[0, -1], full(ids).logits[0, -1], atol=1e-4)
    assert (bool(limited_attention(config.to_dict())), is_other) == (is_limited, is_limited)
    engine = EngineConfig(num_slots=2, max_len_tokens=32)
    if not is_limited:
        Engine(model, engine)
        return
    with pytest.raises(ConfigError, match="some layers see less than the whole context"):
        Engine(model, engine)
