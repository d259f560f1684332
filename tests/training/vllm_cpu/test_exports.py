"""vLLM's own readers accept what training writes: model, context, stop tokens, adapter. No server is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from repairgym.config.learning import FullConfig, LoraConfig, OptimizerConfig, SftConfig
from repairgym.inference.loading import load_model, load_tokenizer
from repairgym.inference.stretching import stretch_folder
from repairgym.learning.export import save_model
from repairgym.learning.samples import text_sample
from repairgym.learning.sft import SftTrainer

pytestmark = pytest.mark.vllm
KINDS = ("float32", "bfloat16", "lora")


@pytest.fixture(scope="module")
def exports(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exports")
    for kind in KINDS:
        model = load_model(base, "bfloat16" if kind == "bfloat16" else "float32")
        model.config.eos_token_id = model.generation_config.eos_token_id = None
        trained = LoraConfig(rank=4) if kind == "lora" else FullConfig()
        trainer = SftTrainer(model, SftConfig(optimizer=OptimizerConfig(), batch_size=1, trained=trained))
        trainer.step([text_sample(list(range(300, 320)))])
        save_model(trainer.learner, load_tokenizer(base), root / kind)
    return root


@pytest.mark.parametrize("kind", KINDS)
def test_vllm_reads_the_model_and_its_stop_token(exports: Path, base: Path, kind: str) -> None:
    from vllm.config import ModelConfig

    config = ModelConfig(model=str(exports / kind), generation_config="auto")
    assert config.architecture == "Qwen3ForCausalLM"
    assert config.max_model_len == 4096
    assert kind != "bfloat16" or str(config.dtype) == "torch.bfloat16"
    stop_id = load_tokenizer(base).convert_tokens_to_ids("<|im_end|>")
    assert config.hf_config.eos_token_id == stop_id
    assert config.try_get_generation_config()["eos_token_id"] == stop_id


def test_vllm_reads_the_adapter(exports: Path) -> None:
    from vllm.lora.peft_helper import PEFTHelper

    helper = PEFTHelper.from_local_dir(str(exports / "lora" / "adapter"), 4096)
    assert (helper.r, helper.lora_alpha) == (4, LoraConfig().alpha)
    helper.validate_legal(SimpleNamespace(max_lora_rank=16, bias_enabled=False))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_lora_rank"):
        helper.validate_legal(SimpleNamespace(max_lora_rank=2, bias_enabled=False))  # type: ignore[arg-type]


def test_vllm_accepts_the_context_of_a_stretched_model_and_no_longer_one(base: Path, tmp_path: Path) -> None:
    """As `sizing/positions.py` says it for vLLM."""
    from vllm.config import ModelConfig

    stretch_folder(base, tmp_path / "long", 4)
    assert ModelConfig(model=str(tmp_path / "long"), max_model_len=16_384).max_model_len == 16_384
    with pytest.raises(ValueError, match="16384"):
        ModelConfig(model=str(tmp_path / "long"), max_model_len=16_385)
    with pytest.raises(ValueError, match="4096"):
        ModelConfig(model=str(base), max_model_len=4097)
