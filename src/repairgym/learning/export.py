"""Model folders of a learner for any tool, written tensor by tensor.

Reads a learner; writes a model folder in Hugging Face format, and next to merged adapters the folder ``adapter/`` in
peft's format. Guarantees: no process holds more than one shard of a tensor beyond its share (one whole tensor with
adapters, which are merged); a folder is complete or absent; weights have the names, shapes and values of the plain
model, whatever trains them.
"""

import copy
import json
import os
import shutil
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from repairgym.errors import disk_full_as_repairgym_error
from repairgym.inference.loading import record_stop_tokens, replace_folder, save_checkpoint
from repairgym.learning.adapters import ADAPTER_NAME, has_adapters, is_adapter, merged_weight, plain_name
from repairgym.learning.distributed.fsdp import World, shards_in_order, whole
from repairgym.learning.learner import Learner

ADAPTER_FOLDER = "adapter"
_MAX_FILE_BYTES = 5_000_000_000
"""Of one file of weights; a larger tensor has a file of its own."""
_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""As safetensors has them."""


def save_model(learner: Learner, tokenizer: PreTrainedTokenizerFast | None, folder: Path) -> None:
    """Write a model folder; every process must call it, the leader writes. A `DiskFullError` leaves the old folder."""
    model, is_writer = learner.model, learner.world.is_leader
    if learner.world.size == 1 and not has_adapters(model):
        save_checkpoint(model, tokenizer, folder)
        return
    with replaced(folder, learner.world) as temporary, torch.no_grad():
        if is_writer:
            _write_settings(model, tokenizer, temporary)
        _write_weights(list(_plain_tensors(model)), temporary, is_writer=is_writer)
        if has_adapters(model):
            adapter = {name: whole(value).cpu() for name, value in model.state_dict().items() if is_adapter(name)}
            if is_writer:
                _write_adapter(model, adapter, temporary / ADAPTER_FOLDER)


@contextmanager
def replaced(folder: Path, world: World) -> Iterator[Path]:
    """Yield a temporary folder, the same one for all processes; it replaces ``folder`` when all have written."""
    temporary = folder.with_name(f".{folder.name}.{world.broadcast(os.getpid())}.tmp")
    try:
        with disk_full_as_repairgym_error(folder):
            if world.is_leader:
                # Of a killed process with the same id, as in a container that starts again.
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True, exist_ok=True)
            world.broadcast(None)
            yield temporary
            world.gather(None)
            if world.is_leader:
                replace_folder(temporary, folder)
    finally:
        if world.is_leader:
            shutil.rmtree(temporary, ignore_errors=True)


@dataclass(frozen=True)
class _Tensor:
    """A tensor of the plain model."""

    name: str
    shape: Sequence[int]
    dtype: torch.dtype
    parts: Callable[[], Iterable[torch.Tensor]]
    """Makes its rows at the leader, part by part; all processes call it together, and to the end."""

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def _plain_tensors(model: PreTrainedModel) -> Iterator[_Tensor]:
    """The tensors of the model without adapters and shards; tied ones once."""
    seen: set[int] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) in seen or is_adapter(name):
            continue
        seen.add(id(value))
        parts: Callable[[], Iterable[torch.Tensor]] = partial(shards_in_order, value.detach())
        if name.endswith(".base_layer.weight"):
            parts = partial(_merged, model.get_submodule(name.removesuffix(".base_layer.weight")))
        yield _Tensor(plain_name(name), value.shape, value.dtype, parts)


def _merged(layer: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield merged_weight(layer, whole)


def _write_settings(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast | None, folder: Path) -> None:
    if tokenizer is not None:
        record_stop_tokens(model, tokenizer)
        tokenizer.save_pretrained(folder)
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], model.dtype
    config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)


def _write_weights(tensors: Sequence[_Tensor], folder: Path, *, is_writer: bool) -> None:
    """Write the files of safetensors that transformers would write; processes that do not write gather only."""
    files: list[list[_Tensor]] = [[]]
    for tensor in tensors:
        if files[-1] and sum(other.num_bytes for other in files[-1]) + tensor.num_bytes > _MAX_FILE_BYTES:
            files.append([])
        files[-1].append(tensor)
    names = ["model.safetensors"]
    if len(files) > 1:
        names = [f"model-{at:05d}-of-{len(files):05d}.safetensors" for at in range(1, len(files) + 1)]
    for name, members in zip(names, files, strict=True):
        if is_writer:
            with (folder / name).open("wb") as file:
                _write_file(file, members)
        else:
            for tensor in members:
                deque(tensor.parts(), maxlen=0)
    if is_writer and len(files) > 1:
        places = {tensor.name: name for name, members in zip(names, files, strict=True) for tensor in members}
        index = {"metadata": {"total_size": sum(tensor.num_bytes for tensor in tensors)}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_file(file: BinaryIO, tensors: Sequence[_Tensor]) -> None:
    """Write one file of safetensors: the length of its header, names with places, then the values in this order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.num_bytes
        places = {"dtype": _DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        header[tensor.name] = places
    text = json.dumps(header).encode()
    # Values begin at a multiple of eight.
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for tensor in tensors:
        for part in tensor.parts():
            file.write(part.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def _write_adapter(model: PreTrainedModel, adapter: dict[str, torch.Tensor], folder: Path) -> None:
    """Write adapters as peft reads them."""
    folder.mkdir()
    names = {name: f"base_model.model.{name.replace(f'.{ADAPTER_NAME}.', '.')}" for name in adapter}
    save_file({names[name]: value for name, value in adapter.items()}, folder / "adapter_model.safetensors")
    model.peft_config[ADAPTER_NAME].save_pretrained(str(folder))
