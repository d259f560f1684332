"""Training state on disk: a resumed run ends with the same weights as an unbroken one.

Reads and writes folders: trained weights, optimizer and value head as a distributed checkpoint of torch (DCP), one file
per process, and `STATE_FILE` with the rest (step numbers, torch's random state, small values of the caller).
Guarantees: a state is complete or absent, whenever a process is killed; each process writes and reads its own shards
only; the state of any number of processes resumes on any other, bit for bit. Adapters are saved without the weights
that they adapt.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from repairgym.errors import InputError
from repairgym.learning.adapters import has_adapters, is_adapter
from repairgym.learning.export import replaced
from repairgym.learning.learner import Learner

TRAINING_FOLDER = "training"
STATE_FILE = f"{TRAINING_FOLDER}/state.pt"
MODEL_FOLDER = "model"
"""Model folder of a state, where there is one (`export.save_model`); it is not read here."""
_WEIGHTS, _OPTIMIZER = "weights.", "optimizer."


def save_training_state(learner: Learner, folder: Path, extra: dict[str, Any] | None = None) -> None:
    """Write everything a resumed run needs; the old state is replaced only after all is written.

    Every process must call it. ``extra`` holds small plain values of the caller (iteration, curriculum). After a
    `DiskFullError` the old state is intact.
    """
    optimizer = {_OPTIMIZER + name: value for name, value in learner.optimizer.state_tensors().items()}
    summary = {
        "optimizer": learner.optimizer.summary(),
        "has_adapters": has_adapters(learner.model),
        "has_value_head": learner.value_head is not None,
        "rng": torch.get_rng_state(),
        "extra": extra or {},
    }
    is_alone = learner.world.size == 1
    with replaced(folder / TRAINING_FOLDER, learner.world) as temporary, warnings.catch_warnings():
        # torch says that a single process saves alone.
        warnings.simplefilter("ignore", UserWarning)
        writer = FileSystemWriter(temporary, sync_files=not is_alone)
        save(_weights(learner) | optimizer, storage_writer=writer, planner=_Planner(), no_dist=is_alone)
        if learner.world.is_leader:
            torch.save(summary, temporary / Path(STATE_FILE).name)


class _Planner(DefaultSavePlanner):
    """Plan of a save; the leader does not keep those of all processes until the end, where its memory is highest."""

    def __init__(self) -> None:
        # Nothing is nested: maps of names to names would be made and stored for nothing.
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = super().create_global_plan(all_plans)
        self.global_plan = []
        return plans, metadata


def load_training_state(learner: Learner, folder: Path) -> dict[str, Any]:
    """Restore model, optimizer and random state in place; of any number of processes, on any number. Return ``extra``.

    Raises:
        InputError: the state is not complete, or that of another model, loss, optimizer or kind of training; nothing
            is changed then.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        raise InputError(f"{folder} has no {STATE_FILE}; expected a folder written by save_training_state")
    summary = torch.load(path, weights_only=True)
    reader = FileSystemReader(path.parent)
    metadata = reader.read_metadata()
    shapes = {
        name: tuple(stored.size)
        for name, stored in metadata.state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata)
    }
    _check_files(metadata, path.parent)
    _check_state(learner, summary, shapes, folder)
    moments = {name.removeprefix(_OPTIMIZER): shape for name, shape in shapes.items() if name.startswith(_OPTIMIZER)}
    room = learner.optimizer.begin_restore(summary["optimizer"], moments)
    targets = _weights(learner) | {_OPTIMIZER + name: value for name, value in room.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        load(targets, storage_reader=reader, no_dist=learner.world.size == 1)
    torch.set_rng_state(summary["rng"])
    return dict(summary["extra"])


def _weights(learner: Learner) -> dict[str, torch.Tensor]:
    """The trained tensors by name; tied ones once, each process its shards."""
    modules: dict[str, torch.nn.Module] = {_WEIGHTS: learner.model}
    if learner.value_head is not None:
        modules[f"{_WEIGHTS}value_head."] = learner.value_head
    by_identity: dict[int, tuple[str, torch.Tensor]] = {}
    for prefix, module in modules.items():
        for name, value in module.state_dict(keep_vars=True).items():
            if is_adapter(name) or module is learner.value_head or not has_adapters(learner.model):
                by_identity.setdefault(id(value), (prefix + name, value.detach()))
    return dict(by_identity.values())


def _check_files(metadata: Metadata, folder: Path) -> None:
    names = {info.relative_path for info in (metadata.storage_data or {}).values()}
    if lost := sorted(name for name in names if not (folder / name).is_file()):
        raise InputError(f"{folder} is not complete: {', '.join(lost[:3])} is missing; copy the whole folder")


def _check_state(learner: Learner, summary: dict[str, Any], shapes: dict[str, tuple[int, ...]], folder: Path) -> None:
    if summary["has_adapters"] != has_adapters(learner.model):
        has, wants = ("adapters", "all weights") if summary["has_adapters"] else ("all weights", "adapters")
        raise InputError(f"{folder} trains {has}, this run {wants}; resume with the trained.type it began with")
    has_head, wants_head = summary["has_value_head"], learner.value_head is not None
    if has_head != wants_head:
        has, wants = ("one", "none") if has_head else ("none", "one")
        raise InputError(f"{folder} holds {has} value head, this run needs {wants}; resume with the loss it began with")
    targets = _weights(learner)
    stored = {name: shape for name, shape in shapes.items() if name.startswith(_WEIGHTS)}
    missing, unexpected = sorted(set(targets) - set(stored)), sorted(set(stored) - set(targets))
    shaped = [
        f"{name} of shape {shape} instead of {tuple(targets[name].shape)}"
        for name, shape in stored.items()
        if name in targets and shape != tuple(targets[name].shape)
    ]
    if missing or unexpected or shaped:
        raise InputError(
            f"{folder} holds another model: missing {missing[:3]}, unexpected {unexpected[:3]}, {shaped[:3]}; "
            "resume with the model it began with, or use another run folder"
        )
    if not learner.optimizer.is_like(summary["optimizer"]):
        raise InputError(f"{folder} holds the state of another optimizer; resume with the optimizer it began with")
