"""Model arguments: a folder, ``base`` (the shipped model), or the id of a model on the Hugging Face hub.

The network is used only for a model that the local cache lacks. Imports no torch, so that a command can check its
arguments at once.
"""

import json
import re
from importlib import resources
from pathlib import Path

from repairgym.errors import ModelFolderError

SHIPPED = "base"
"""Model argument that means the shipped base; a folder of that name is ``./base``."""
_PREFIX = "hf:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
"""Of a repository of the hub: weights of other frameworks stay there."""


def shipped_base() -> Path:
    """Return the folder of the base model that ships with the package; `ModelFolderError` without one."""
    folder = Path(str(resources.files("repairgym") / "data" / "base"))
    if not (folder / "model.safetensors").is_file():
        raise ModelFolderError(
            f"no base model in {folder}; run with --from-scratch, or name a model folder with base=FOLDER"
        )
    return folder


def resolve_model(argument: str, cache: Path | None = None) -> Path:
    """Return the model folder that ``argument`` names, downloaded if necessary; `ModelFolderError` if there is none.

    A folder has precedence over a hub id without prefix (``Qwen/Qwen3-0.6B``, ``hf:Qwen/Qwen3-0.6B``). ``cache`` is the
    Hugging Face cache; None: its usual place (``HF_HUB_CACHE``).
    """
    if argument == SHIPPED:
        return shipped_base()
    folder = Path(argument).expanduser()
    hub_id = argument.removeprefix(_PREFIX)
    is_id = _HUB_ID.fullmatch(hub_id) is not None
    if argument.startswith(_PREFIX):
        if not is_id:
            raise ModelFolderError(f"got model {argument!r}; expected hf:ORGANIZATION/NAME, e.g. hf:Qwen/Qwen3-0.6B")
    elif folder.is_dir():
        return folder
    elif not is_id or folder.parent.is_dir():
        hint = f", or hf:{hub_id} for the hub" if is_id else ", or a hub id such as Qwen/Qwen3-0.6B"
        raise ModelFolderError(f"{argument} is no folder; expected a model folder in Hugging Face format, base{hint}")
    return _cached(hub_id, cache) or _downloaded(hub_id, cache)


def _cached(hub_id: str, cache: Path | None) -> Path | None:
    """The newest complete snapshot of the cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub_id, cache_dir=cache, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if _is_complete(folder) else None


def _downloaded(hub_id: str, cache: Path | None) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    reason = "the downloaded files lack config.json or *.safetensors"
    try:
        folder = Path(snapshot_download(hub_id, cache_dir=cache, allow_patterns=_FILES))
        if _is_complete(folder):
            return folder
    except GatedRepoError:
        reason = "its owner has to agree first: ask on its page, then run 'hf auth login'"
    except RepositoryNotFoundError:
        reason = "the hub has no such model, or it is private: check the name, or run 'hf auth login'"
    except Exception as error:
        reason = f"the hub is unreachable ({type(error).__name__})"
    if constants.HF_HUB_OFFLINE:
        reason = "HF_HUB_OFFLINE is set"
    raise ModelFolderError(
        f"got model {hub_id}: not (completely) in the cache {cache or constants.HF_HUB_CACHE}, and {reason}; run "
        f"'hf download {hub_id}' with network access, or name a model folder"
    )


def _is_complete(folder: Path) -> bool:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        has_weights = all((folder / shard).is_file() for shard in shards)
    else:
        has_weights = any(folder.glob("*.safetensors"))
    return has_weights and (folder / "config.json").is_file()
