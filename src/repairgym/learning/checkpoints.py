"""Training state on disk: a resumed run ends with the same weights as an unbroken one.

Reads and writes folders: the model in Hugging Face format plus ``training.pt`` (optimizer with its step number,
adapters, torch's random state, small values of the caller). Guarantees: a state folder is complete or absent; model
folders hold whole, merged weights whatever trains them (adapters, several processes), so that any tool loads them;
adapters are also in ``adapter/`` of the model folder, in peft's format.
"""

import copy
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from repairgym.errors import InputError, disk_full_as_repairgym_error
from repairgym.inference.loading import replace_folder, save_checkpoint
from repairgym.learning.adapters import adapter_state, has_adapters, merged_state
from repairgym.learning.distributed.fsdp import like, whole
from repairgym.learning.learner import Learner

STATE_FILE = "training.pt"
MODEL_FOLDER = "model"
ADAPTER_FOLDER = "adapter"


def save_model(learner: Learner, tokenizer: PreTrainedTokenizerFast | None, folder: Path) -> str:
    """Write a model folder for any tool; every process must call it, the leader writes.

    Returns the SHA-256 of the weights; empty for processes that do not write. After `DiskFullError` the old folder is
    intact.
    """
    model = learner.model
    if learner.world.size == 1 and not has_adapters(model):
        return save_checkpoint(model, tokenizer, folder)
    state: dict[str, torch.Tensor] = whole(dict(model.state_dict()))
    if not learner.world.is_leader:
        return ""
    if not has_adapters(model):
        return save_checkpoint(_with_weights(model, state), tokenizer, folder)
    with _replaced(folder, "tmp") as temporary:
        digest = save_checkpoint(_with_weights(model, merged_state(model, state)), tokenizer, temporary)
        model.save_pretrained(temporary / ADAPTER_FOLDER, state_dict=state)
    return digest


def save_training_state(
    learner: Learner, tokenizer: PreTrainedTokenizerFast | None, folder: Path, extra: dict[str, Any] | None = None
) -> str:
    """Write everything a resumed run needs; the old state is replaced only after all is written.

    Every process must call it. ``folder/model`` is a model folder, ``extra`` holds small plain values of the caller
    (iteration, curriculum). Returns and raises as `save_model`.
    """
    with _replaced(folder, "state", is_writer=learner.world.is_leader) as temporary:
        digest = save_model(learner, tokenizer, temporary / MODEL_FOLDER)
        state = {
            "optimizer": learner.optimizer.state_dict(),
            "adapters": whole(adapter_state(dict(learner.model.state_dict()))),
            "value_head": whole(dict(learner.value_head.state_dict())) if learner.value_head else None,
            "rng": torch.get_rng_state(),
            "weights_sha256": digest,
            "extra": extra or {},
        }
        if learner.world.is_leader:
            torch.save(state, temporary / STATE_FILE)
    return digest


@contextmanager
def _replaced(folder: Path, kind: str, *, is_writer: bool = True) -> Iterator[Path]:
    """Yield a temporary folder that replaces ``folder`` at the end if ``is_writer``."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.{kind}")
    try:
        with disk_full_as_repairgym_error(folder):
            yield temporary
            if is_writer:
                replace_folder(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_training_state(learner: Learner, folder: Path) -> dict[str, Any]:
    """Restore model, optimizer and random state in place; of any number of processes, on any number. Return ``extra``.

    Raises:
        InputError: the state is not complete, or that of another model, loss, optimizer or kind of training; nothing
            is changed then.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        raise InputError(f"{folder} has no {STATE_FILE}; expected a folder written by save_training_state")
    state = torch.load(path, weights_only=True)
    weights = state["adapters"] or _read_weights(folder / MODEL_FOLDER)
    _check_state(learner, state, weights, folder)
    targets = learner.model.state_dict()
    learner.model.load_state_dict({name: like(value, targets[name]) for name, value in weights.items()}, strict=False)
    if learner.value_head is not None:
        own = learner.value_head.state_dict()
        learner.value_head.load_state_dict(
            {name: like(value, own[name]) for name, value in state["value_head"].items()}
        )
    learner.optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    return dict(state["extra"])


def _check_state(learner: Learner, state: dict[str, Any], weights: dict[str, torch.Tensor], folder: Path) -> None:
    if bool(state["adapters"]) != has_adapters(learner.model):
        has, wants = ("adapters", "all weights") if state["adapters"] else ("all weights", "adapters")
        raise InputError(f"{folder} trains {has}, this run {wants}; resume with the trained.type it began with")
    targets = learner.model.state_dict()
    wanted = set(adapter_state(targets)) if state["adapters"] else set(targets) - _tied_names(learner)
    missing, unexpected = sorted(wanted - set(weights)), sorted(set(weights) - set(targets))
    shaped = [
        f"{name} of shape {tuple(value.shape)} instead of {tuple(targets[name].shape)}"
        for name, value in weights.items()
        if name in targets and value.shape != targets[name].shape
    ]
    if missing or unexpected or shaped:
        raise InputError(
            f"{folder} holds another model: missing {missing[:3]}, unexpected {unexpected[:3]}, {shaped[:3]}; "
            "resume with the model it began with, or use another run folder"
        )
    has_head, wants_head = state.get("value_head") is not None, learner.value_head is not None
    if has_head != wants_head:
        has, wants = ("one", "none") if has_head else ("none", "one")
        raise InputError(f"{folder} holds {has} value head, this run needs {wants}; resume with the loss it began with")
    if not learner.optimizer.is_like(state["optimizer"]):
        raise InputError(f"{folder} holds the state of another optimizer; resume with the optimizer it began with")


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    return weights


def _with_weights(model: PreTrainedModel, state: dict[str, torch.Tensor]) -> PreTrainedModel:
    """Build a model of the same kind, without adapters and shards, on the tensors of ``state`` (not copied)."""
    with torch.device("meta"):
        plain = type(model)(copy.deepcopy(model.config))
    plain.load_state_dict(state, strict=False, assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain


def _tied_names(learner: Learner) -> set[str]:
    """Names of weights that share a tensor: it is stored once, so the others may be missing."""
    seen: dict[int, str] = {}
    tied: set[str] = set()
    for name, parameter in learner.model.named_parameters(remove_duplicate=False):
        if id(parameter) in seen:
            tied |= {name, seen[id(parameter)]}
        seen[id(parameter)] = name
    return tied
