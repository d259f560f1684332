"""Models and tokenizers to and from folders in Hugging Face format; models get grouped attention.

Guarantees: a checkpoint folder is complete or absent (written under another name, then renamed); loading never uses the
network (`model_source` does).
"""

import ctypes
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

from repairgym.config.models import DtypeName, ModelConfig
from repairgym.errors import ModelFolderError, disk_full_as_repairgym_error
from repairgym.inference.engine.forward import ATTENTION_NAME
from repairgym.inference.model_source import shipped_base as shipped_base
from repairgym.inference.renderer import ChatRenderer

_CHUNK_BYTES = 1 << 24
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
"""Of Linux's renameat2."""
_DTYPES: dict[DtypeName, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def create_model(config: ModelConfig, dtype: DtypeName = "float32") -> PreTrainedModel:
    """Create a randomly initialized Qwen3 model; equal configs give equal weights."""
    hf_config = Qwen3Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_len_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=config.is_tied,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = Qwen3ForCausalLM(hf_config)
    model.set_attn_implementation(ATTENTION_NAME)
    return _moved(model, dtype=_DTYPES[dtype])


def load_model(folder: Path, dtype: DtypeName = "float32", device: str = "cpu") -> PreTrainedModel:
    """Load a causal LM; `ModelFolderError` if ``folder`` is none."""
    _require(folder, "config.json")
    if not list(folder.glob("*.safetensors")):
        raise ModelFolderError(f"{folder} has no *.safetensors file; expected the weights of a causal LM in it")
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=_DTYPES[dtype], local_files_only=True, output_loading_info=True
        )
    except Exception as error:
        raise ModelFolderError(f"{folder} does not load as a causal LM: {_first_line(error)}") from error
    model, info = loaded
    missing = sorted(info["missing_keys"]) + [str(key) for key in info["mismatched_keys"]]
    if missing:
        # transformers would fill them with random numbers and only warn.
        raise ModelFolderError(f"{folder} lacks weights of {type(model).__name__}: {', '.join(missing[:3])}")
    if getattr(model, "_supports_attention_backend", False):
        model.set_attn_implementation(ATTENTION_NAME)
    return _moved(model, device=device)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load a fast tokenizer; `ModelFolderError` if ``folder`` holds none."""
    _require(folder, "tokenizer.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise ModelFolderError(f"{folder} does not load as a tokenizer: {_first_line(error)}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelFolderError(f"{folder} holds a {type(tokenizer).__name__}; expected a fast tokenizer")
    return tokenizer


def save_checkpoint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast | None, folder: Path) -> str:
    """Write a model folder, atomically over an old one (intact on a `DiskFullError`); returns the weights' digest."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    logging.disable_progress_bar()
    try:
        with disk_full_as_repairgym_error(folder):
            remove_leftover(temporary)
            if tokenizer is not None:
                record_stop_tokens(model, tokenizer)
                tokenizer.save_pretrained(temporary)
            model.save_pretrained(temporary)
            digest = weights_digest(temporary)
            replace_folder(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return digest


def record_stop_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Name the token that ends an answer in the model's configurations, so that `generate` of any tool stops at it."""
    generation = model.generation_config
    stop_id = ChatRenderer(tokenizer).stop_token_ids[0] if tokenizer.chat_template else tokenizer.eos_token_id
    if stop_id is None or generation is None:
        return
    if model.config.eos_token_id is None:
        model.config.eos_token_id = stop_id
    known = generation.eos_token_id if isinstance(generation.eos_token_id, list) else [generation.eos_token_id]
    others = [token_id for token_id in known if token_id not in (None, stop_id)]
    generation.eos_token_id = [stop_id, *others] if others else stop_id
    # Not in the model's own configuration, where it would change the embedding.
    if generation.pad_token_id is None:
        generation.pad_token_id = tokenizer.pad_token_id


def weights_digest(folder: Path) -> str:
    """SHA-256 (hex) over the ``*.safetensors`` files of ``folder`` in name order."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def replace_folder(new: Path, folder: Path) -> None:
    """Rename ``new`` to ``folder``; an old ``folder`` is exchanged with it in one step and then deleted.

    After a kill at any moment ``folder`` is the old one or the new one. If the file system cannot exchange names, the
    old one is moved aside first, and a kill between the two steps leaves none. Leftovers of killed processes next to
    ``folder`` are removed, so no other process may write it.

    Raises:
        FileNotFoundError: there is no ``new``; nothing was changed.
    """
    # First: below, a failed exchange is taken for a file system that has none, and the old one is moved aside.
    new.stat()
    if not folder.exists():
        new.rename(folder)
    elif _exchange(new, folder):
        shutil.rmtree(new)
    else:
        old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        remove_leftover(old)
        folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    for kind in ("tmp", "state", "old"):
        for leftover in folder.parent.glob(f".{folder.name}.*.{kind}"):
            shutil.rmtree(leftover, ignore_errors=True)


def remove_leftover(place: Path) -> None:
    """Remove the temporary folder of a killed process, whose id is this one's where a container starts again."""
    shutil.rmtree(place, ignore_errors=True)


def copy_folder(source: Path, target: Path) -> None:
    """Copy a model folder; ``target`` is complete or, with a `DiskFullError`, unchanged."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with disk_full_as_repairgym_error(target):
            remove_leftover(temporary)
            shutil.copytree(source, temporary)
            replace_folder(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names of one file system in one step; False if the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(first), os.fsencode(second)
    return bool(rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


def _moved(model: PreTrainedModel, **where: Any) -> PreTrainedModel:
    # nn.Module's own `to`: transformers wraps it in a decorator that hides its type.
    return torch.nn.Module.to(model, **where)


def _require(folder: Path, name: str) -> None:
    if not folder.is_dir():
        raise ModelFolderError(f"{folder} is no folder; expected a model folder in Hugging Face format")
    if not (folder / name).is_file():
        raise ModelFolderError(f"{folder} has no {name}; expected a model folder in Hugging Face format")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
