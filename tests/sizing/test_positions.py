"""Long contexts: which model, context and machines go together, for our learner, vLLM and verl 0.9.1.

The configs are those of the models' public pages, cut to the fields that matter here.
"""

import json

import pytest
from transformers import AutoConfig

from repairgym.errors import ConfigError, ModelFolderError
from repairgym.sizing.positions import Demand, Positions, check_demand, exact_positions, read_positions, stretched

QWEN_72B = {
    "model_type": "qwen2",
    "max_position_embeddings": 32_768,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "rope_theta": 1_000_000.0,
}
QWEN3_32B = {**QWEN_72B, "model_type": "qwen3", "max_position_embeddings": 40_960}
QWEN3_4B = {**QWEN3_32B, "num_attention_heads": 32}
LLAMA_70B = {
    "model_type": "llama",
    "max_position_embeddings": 131_072,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}
QWEN_7B = {**QWEN_72B, "num_attention_heads": 28, "num_key_value_heads": 4}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
PHI = {
    "model_type": "phi3",
    "max_position_embeddings": 128 * 1024,
    "original_max_position_embeddings": 4096,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "rope_scaling": {"type": "longrope", "long_factor": [2.0], "short_factor": [1.0]},
}
BY_HAND = {**QWEN_72B, "rope_scaling": YARN}
"""As the model's page tells users to do it: ``rope_scaling`` alone, with the positions of before."""
K = 1024
TOO_LONG, UNEVEN = "lower the context", "divided over|equal share|multiple of"

TABLE = [
    # The papers: stage 1 and 2 of paper B (16 nodes of 8), paper A (one node).
    (QWEN_72B, 1, Demand("verl", 64 * K, 128, 8, 4), TOO_LONG),
    (QWEN_72B, 2, Demand("verl", 64 * K, 128, 8, 4), None),
    (QWEN_72B, 2, Demand("verl", 128 * K, 128, 8, 4), TOO_LONG),
    (QWEN_72B, 4, Demand("verl", 128 * K, 128, 8, 4), None),
    (QWEN_72B, 4, Demand("vllm", 128 * K, 8, 1, 8), None),
    (QWEN_72B, 2, Demand("learner", 64 * K, 128, 8), None),
    (QWEN_72B, 4, Demand("learner", 128 * K, 128, 8), None),
    (QWEN_72B, 1, Demand("learner", 64 * K, 128, 8), TOO_LONG),
    (QWEN3_32B, 1, Demand("verl", 128 * K, 8, 8, 4), TOO_LONG),
    (QWEN3_32B, 4, Demand("verl", 128 * K, 8, 8, 4), None),
    (QWEN3_32B, 4, Demand("vllm", 128 * K, 8, 1, 4), None),
    (QWEN3_32B, 4, Demand("learner", 128 * K, 8, 8), None),
    # Within the positions nothing has to be stretched.
    (QWEN3_32B, 1, Demand("vllm", 40_960, 8, 1, 4), None),
    (QWEN3_32B, 1, Demand("embedded", 40_961), TOO_LONG),
    (LLAMA_70B, 1, Demand("vllm", 128 * K, 8, 1, 8), None),
    (LLAMA_70B, 1, Demand("vllm", 128 * K + 1, 8, 1, 8), TOO_LONG),
    (LLAMA_70B, 1, Demand("learner", 128 * K, 8, 8), None),
    # vLLM 0.32 with transformers 5 rejects it, as verl and we do; earlier ones compute from the stretch alone.
    (BY_HAND, 1, Demand("vllm", 128 * K, 8, 1, 8), TOO_LONG),
    (BY_HAND, 1, Demand("verl", 128 * K, 128, 8, 4), TOO_LONG),
    (BY_HAND, 1, Demand("learner", 128 * K, 128, 8), TOO_LONG),
    # Rotations that a call takes from its longest sequence: what has several sequences stays within the original.
    (PHI, 1, Demand("learner", 4 * K, 1), None),
    (PHI, 1, Demand("learner", 4 * K + 1, 1), TOO_LONG),
    (PHI, 1, Demand("embedded", 8 * K), TOO_LONG),
    (PHI, 1, Demand("vllm", 128 * K, 1), None),
    # Heads and GPUs.
    (QWEN3_4B, 1, Demand("vllm", 32 * K, 8, 1, 8), None),
    (QWEN_7B, 1, Demand("vllm", 32 * K, 8, 1, 8), UNEVEN),
    (QWEN_7B, 1, Demand("vllm", 32 * K, 7, 1, 7), UNEVEN),
    (QWEN_7B, 1, Demand("vllm", 32 * K, 4, 1, 4), None),
    (QWEN3_32B, 1, Demand("learner", 32 * K, 16, 16), UNEVEN),
    (QWEN3_32B, 1, Demand("verl", 32 * K, 16, 16, 4), None),
    (QWEN3_32B, 1, Demand("learner", 32 * K, 6, 4), UNEVEN),
    (QWEN3_32B, 1, Demand("verl", 32 * K, 8, 3, 4), UNEVEN),
]


@pytest.mark.parametrize(("config", "factor", "demand", "wrong"), TABLE)
def test_models_contexts_and_machines(config, factor, demand, wrong, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    positions = read_positions(tmp_path, factor)
    if wrong is None:
        check_demand(positions, demand)
        return
    with pytest.raises(ConfigError, match=wrong) as error:
        check_demand(positions, demand)
    for part in (f"{demand.context_tokens:,} tokens", demand.engine, f"{demand.num_gpus} GPUs", str(tmp_path)):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (PHI, 4096),
        ({**PHI, "rope_scaling": None, "rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, 4096),
        ({"text_config": PHI}, 4096),
        ({**PHI, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 128 * K),  # the same up to there
        (LLAMA_70B, 128 * K),
        ({"model_type": "gpt2"}, None),
    ],
)
def test_positions_that_are_exact_whatever_a_call_has_besides(config, positions):
    assert exact_positions(config) == positions


def test_the_message_names_a_stretch_that_is_enough():
    with pytest.raises(ConfigError, match=r"--factor 3\.5") as error:
        check_demand(Positions.of(QWEN_72B, "m"), Demand("vllm", 100_000))
    assert "32,768 positions there (default, 32,768 originally)" in str(error.value)


def test_a_model_that_cannot_be_stretched_gets_no_such_advice():
    with pytest.raises(ConfigError, match="originally\\); lower the context"):
        check_demand(Positions.of(LLAMA_70B, "m"), Demand("learner", 256 * K))


def test_a_second_stretch_is_that_of_the_original():
    twice = stretched(stretched(QWEN3_32B, 2, "m"), 4, "m")
    assert twice == stretched(QWEN3_32B, 4, "m")
    assert twice["max_position_embeddings"] == 131_072  # the makers' figure: 4 times 32,768, not 4 times 40,960
    assert Positions.of(twice, "m").original == 32_768
    assert stretched(QWEN3_32B, 4, "m", original=40_960)["max_position_embeddings"] == 163_840


def test_both_spellings_load_as_the_same_positions(tmp_path):
    new = {**QWEN_72B, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    del new["rope_theta"]
    seen = []
    for number, config in enumerate((QWEN_72B, new)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(stretched(config, 4, "m")))
        loaded = AutoConfig.from_pretrained(folder)
        seen.append((loaded.max_position_embeddings, loaded.rope_parameters))
    assert seen[0] == seen[1]
    assert seen[0][1]["factor"] == 4.0


@pytest.mark.parametrize(
    ("config", "factor", "said"),
    [
        (LLAMA_70B, 2, "of type 'llama3'"),
        (QWEN3_32B, 1, "40960 positions already"),
        (stretched(QWEN_72B, 4, "m"), 2, "131072 positions already"),
    ],
)
def test_models_that_cannot_be_stretched(config, factor, said):
    with pytest.raises(ConfigError, match=said):
        stretched(config, factor, "m")


def test_files_that_are_no_model(tmp_path):
    with pytest.raises(ModelFolderError, match=r"no config\.json"):
        read_positions(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFolderError, match="no 'max_position_embeddings'"):
        read_positions(tmp_path)
