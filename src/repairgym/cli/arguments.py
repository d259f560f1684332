"""Checks of paths and names before a command imports torch, so that mistakes are reported at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from repairgym.config.models import EndpointConfig
from repairgym.errors import InputError, ModelFolderError
from repairgym.inference.model_source import resolve_model, shipped_base
from repairgym.records import Task
from repairgym.rollout.jobs import PolicyRef, ServerProtocol
from repairgym.tasks.store import TaskStore

if TYPE_CHECKING:
    from repairgym.rollout.store import RunStore


def check_tasks(folder: Path) -> Path:
    """Return ``folder`` if it holds tasks; else raise an `InputError` that says how to make them."""
    store = TaskStore(folder)
    if not store.has_tasks:
        store.load()
    return folder


def load_tasks(folder: Path) -> dict[str, Task]:
    """Return id -> task of a folder with certified tasks."""
    return {task.id: task for task in TaskStore(folder).load()}


def check_new_run(folder: Path) -> Path:
    """Return ``folder`` if it can hold a run; raise an `InputError` if it is a file."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"got the run folder {folder}, which is a file; name a new or existing folder")
    return folder


def check_run(folder: Path) -> Path:
    """Return ``folder`` if it holds a run; else raise an `InputError`."""
    if not (folder / "run.db").is_file():
        raise InputError(f"{folder} is no run folder: it has no run.db")
    return folder


def open_stored(run: Path) -> RunStore:
    """Open the store of ``run`` for reading; raise an `InputError` if the folder holds no run."""
    from repairgym.rollout.store import RunStore

    return RunStore.open(check_run(run) / "run.db", is_read_only=True)


def find_model(argument: str | Path) -> Path:
    """Return the folder of a model argument: a folder, ``base``, or a model of the hub, which is downloaded."""
    folder = resolve_model(str(argument))
    if missing := [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]:
        raise ModelFolderError(
            f"{folder} holds no {' and no '.join(missing)}; expected a model folder in Hugging Face format"
        )
    return folder


def is_script(name: str) -> bool:
    """Return True when ``name`` is a scripted policy, and no folder."""
    if "/" in name or Path(name).is_dir():
        return False
    from repairgym.agent.scripted import find_script
    from repairgym.config.agent import SHELL_SCRIPTS

    return find_script(name) is not None or name in SHELL_SCRIPTS


def find_policy(name: str, temperature: float, endpoint: EndpointConfig) -> PolicyRef:
    """Return a scripted policy, ``openai`` or ``vllm`` for the model of ``endpoint``, a model, or a file's several."""
    if is_script(name):
        return PolicyRef(name)
    if name in get_args(ServerProtocol):
        endpoint.require_server()
        full_name = f"{name}-{endpoint.model.replace('/', '_')}"
        return PolicyRef(full_name, "", 0, temperature, cast(ServerProtocol, name), endpoint)
    if name.endswith(".json"):
        return _find_members(Path(name), temperature)
    try:
        folder = find_model(name)
    except ModelFolderError as error:
        raise InputError(
            f"got policy {name!r}, expected a model, base, openai, vllm, oracle, submit-at-once, random or teacher: "
            f"{error}"
        ) from error
    return PolicyRef(Path(name).name, str(folder), 0, temperature)


def _find_members(path: Path, temperature: float) -> PolicyRef:
    """Return the policy of a file; InputError where a member's weights are not those that the file was made with."""
    from repairgym.agent.routing import Team, read_members
    from repairgym.training.evaluate import weights_digest

    router = read_members(path)
    for member in router.members:
        if weights_digest(find_model(member.folder)) != member.weights_digest:
            raise InputError(f"{path}: the weights in {member.folder} are not those it was made with; make it again")
    kind = "team" if isinstance(router, Team) else "router"
    return PolicyRef(f"{kind}-{router.digest()[:8]}", temperature=temperature, router=router)


def run_names(runs: Sequence[Path]) -> list[str]:
    """Return the folder name of each run, or its path where another run has the same name."""
    folders = [run.resolve() for run in runs]
    distinct = set(folders)
    return [
        folder.name if sum(other.name == folder.name for other in distinct) == 1 else str(run)
        for run, folder in zip(runs, folders, strict=True)
    ]


def tokenizer_folder(model: Path | None, ref: PolicyRef | None = None) -> Path:
    """Return the folder with the tokenizer: ``model``, else that of the policy, else the shipped base."""
    if model:
        return resolve_model(str(model))
    if ref and ref.router:
        return Path(ref.router.members[0].folder)
    return Path(ref.folder) if ref and ref.folder else shipped_base()
