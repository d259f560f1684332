"""What training writes is complete for other tools: transformers generates with it, peft puts its adapter on the start.

vLLM reads the same folders in `tests/training/vllm_cpu/test_exports.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from repairgym.config.learning import FullConfig, LoraConfig, OptimizerConfig, SftConfig
from repairgym.inference.loading import load_model, load_tokenizer, shipped_base
from repairgym.learning.export import save_model
from repairgym.learning.samples import text_sample
from repairgym.learning.sft import SftTrainer

QUESTION = [{"role": "user", "content": "@1 def f(a):\n@2     return a -= 1\n"}]
KINDS = ("float32", "bfloat16", "lora")
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[:2]]
"""Generation of plain folders is left to the slow tests, which CI runs; merged ones show more."""


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each kind, after one small step from a start that names no stop token, as a base of the hub may."""
    root = tmp_path_factory.mktemp("exports")
    for kind in KINDS:
        model = load_model(shipped_base(), "bfloat16" if kind == "bfloat16" else "float32")
        model.config.eos_token_id = model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
        trained = LoraConfig(rank=4) if kind == "lora" else FullConfig()
        config = SftConfig(optimizer=OptimizerConfig(learning_rate=1e-5), batch_size=1, trained=trained)
        trainer = SftTrainer(model, config)
        trainer.step([text_sample(list(range(300, 320)))])
        save_model(trainer.learner, load_tokenizer(shipped_base()), root / kind)
    return root


def answer(model: PreTrainedModel, folder: Path) -> str:
    """A greedy answer with what the folder alone says about its end."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    made = model.generate(**prompt, do_sample=False, max_new_tokens=120)
    return str(tokenizer.decode(made[0][prompt["input_ids"].shape[1] :]))


@pytest.mark.parametrize("kind", [*SLOW, "lora"])
def test_plain_generate_ends_its_answers(exports: Path, kind: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(exports / kind)
    assert model.dtype == (torch.bfloat16 if kind == "bfloat16" else torch.float32)
    text = answer(model, exports / kind)
    assert text.count("<|im_end|>") == 1
    assert text.endswith("<|im_end|>")


@pytest.mark.parametrize("kind", KINDS)
def test_both_configurations_name_the_stop_token(exports: Path, kind: str) -> None:
    stop_id = load_tokenizer(shipped_base()).convert_tokens_to_ids("<|im_end|>")
    config = json.loads((exports / kind / "config.json").read_text())
    generation = GenerationConfig.from_pretrained(exports / kind)
    assert config["eos_token_id"] == generation.eos_token_id == stop_id
    assert generation.pad_token_id == load_tokenizer(shipped_base()).pad_token_id
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["dtype"] == ("bfloat16" if kind == "bfloat16" else "float32")


def test_peft_puts_the_adapter_on_the_start(exports: Path) -> None:
    peft = pytest.importorskip("peft")
    folder = exports / "lora" / "adapter"
    start = AutoModelForCausalLM.from_pretrained(shipped_base(), dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(start, folder)
    assert answer(adapted, exports / "lora") == answer(
        AutoModelForCausalLM.from_pretrained(exports / "lora"), exports / "lora"
    )
    # By the adapter's folder alone, which names its start.
    alone = peft.AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(300, 320)[None]
    assert torch.equal(alone(input_ids=ids).logits, adapted(input_ids=ids).logits)
