"""Model folders: exact round trips, atomic replacement, readable errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from repairgym.config.models import ModelConfig
from repairgym.errors import ModelFolderError
from repairgym.inference.loading import (
    copy_folder,
    create_model,
    load_model,
    load_tokenizer,
    replace_folder,
    save_checkpoint,
    shipped_base,
    weights_digest,
)
from repairgym.inference.stretching import stretch_folder

TINY = ModelConfig(
    vocab_size=420, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=64
)


def test_round_trip_and_digest(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    model = create_model(TINY)
    digest = save_checkpoint(model, tokenizer, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    assert load_tokenizer(tmp_path / "m").encode("if a <= b:") == tokenizer.encode("if a <= b:")
    assert digest == weights_digest(tmp_path / "m")
    assert digest != save_checkpoint(create_model(TINY.model_copy(update={"seed": 1})), tokenizer, tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def generated(folder: Path) -> str:
    """An answer by plain transformers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "@1 def f(a):\n@2     return a -= 1\n"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    out = AutoModelForCausalLM.from_pretrained(folder).generate(**prompt, do_sample=False, max_new_tokens=200)
    return str(tokenizer.decode(out[0][prompt["input_ids"].shape[1] :]))


def test_plain_generate_stops_at_the_end_of_an_answer(tmp_path: Path) -> None:
    model, tokenizer = load_model(shipped_base()), load_tokenizer(shipped_base())
    model.config.eos_token_id = model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    save_checkpoint(model, tokenizer, tmp_path / "m")
    for folder in (shipped_base(), tmp_path / "m"):
        text = generated(folder)
        assert text.count("<|im_end|>") == 1
        assert text.endswith("<|im_end|>")
    config = json.loads((tmp_path / "m" / "generation_config.json").read_text())
    assert (config["eos_token_id"], config["pad_token_id"]) == (2, 0)


def test_stop_tokens_of_a_model_stay(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    model = create_model(TINY)
    model.config.eos_token_id, model.generation_config.eos_token_id = 7, [7, 8]
    save_checkpoint(model, tokenizer, tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["eos_token_id"] == 7
    config = json.loads((tmp_path / "m" / "generation_config.json").read_text())
    assert config["eos_token_id"] == [tokenizer.eos_token_id, 7, 8]


def test_creation_follows_the_seed_and_leaves_torchs_generator_alone() -> None:
    torch.manual_seed(5)
    first = create_model(TINY)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    assert torch.equal(first.get_input_embeddings().weight, create_model(TINY).get_input_embeddings().weight)
    assert create_model(TINY, "bfloat16").dtype is torch.bfloat16


def test_a_failed_save_keeps_what_was_there(tmp_path: Path) -> None:
    model = create_model(TINY)
    digest = save_checkpoint(model, None, tmp_path / "m")
    model.config.id2label = {0: object()}  # no JSON
    with pytest.raises(Exception, match=r"."):
        save_checkpoint(model, None, tmp_path / "m")
    assert weights_digest(tmp_path / "m") == digest
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_folders_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="is no folder"):
        load_model(tmp_path / "nothing")
    with pytest.raises(ModelFolderError, match=r"no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFolderError, match=r"no \*\.safetensors"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(ModelFolderError, match="does not load"):
        load_model(tmp_path)
    with pytest.raises(ModelFolderError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_missing_weights_are_rejected(tmp_path: Path) -> None:
    save_checkpoint(create_model(TINY), None, tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ModelFolderError, match="up_proj"):
        load_model(tmp_path / "m")


def test_the_attention_implementation_is_not_written_into_the_config(tmp_path: Path) -> None:
    save_checkpoint(create_model(TINY), None, tmp_path / "m")
    assert "repairgym" not in json.dumps(json.loads((tmp_path / "m" / "config.json").read_text()))


def test_a_folder_is_replaced_in_one_step_and_leftovers_of_killed_processes_go(tmp_path: Path) -> None:
    folder, new = tmp_path / "m", tmp_path / ".m.1.tmp"
    for place, text in ((folder, "old"), (new, "new"), (tmp_path / ".m.77.state", "half"), (tmp_path / ".n.7.tmp", "")):
        place.mkdir()
        (place / "text").write_text(text)
    replace_folder(new, folder)
    assert (folder / "text").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".n.7.tmp", "m"]


def test_a_folder_stays_where_there_is_no_new_one(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(FileNotFoundError):
        replace_folder(tmp_path / "missing", tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def leave_behind(folder: Path, kind: str) -> None:
    """Leave what a killed process with this one's id does, as in a container that starts again."""
    place = folder.with_name(f".{folder.name}.{os.getpid()}.{kind}")
    place.mkdir()
    (place / "model-00001-of-00002.safetensors").write_text("half")


def test_what_a_killed_process_with_the_same_id_left_is_in_the_way_of_nothing(tmp_path: Path) -> None:
    digest = save_checkpoint(create_model(TINY), None, tmp_path / "m")
    for folder in (tmp_path / "copy", tmp_path / "long", tmp_path / "saved"):
        leave_behind(folder, "tmp")
    copy_folder(tmp_path / "m", tmp_path / "copy")
    stretch_folder(tmp_path / "m", tmp_path / "long", 2)
    save_checkpoint(create_model(TINY), None, tmp_path / "saved")
    assert {weights_digest(tmp_path / name) for name in ("copy", "long", "saved")} == {digest}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "long", "m", "saved"]
