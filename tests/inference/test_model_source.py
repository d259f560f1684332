"""Model arguments: folders, and hub ids from a cache on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repairgym.errors import ModelFolderError
from repairgym.inference.model_source import resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def add_to_cache(cache: Path, hub_id: str, files: dict[str, str]) -> Path:
    """A repository as huggingface_hub stores it."""
    root = cache / f"models--{hub_id.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    for name, text in files.items():
        (snapshot / name).write_text(text)
    return snapshot


def offline(code: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("argument", ["Org/tiny", "hf:Org/tiny"])
def test_a_hub_id_is_read_from_the_cache(tmp_path: Path, argument: str) -> None:
    snapshot = add_to_cache(tmp_path, "Org/tiny", {"config.json": "{}", "model.safetensors": ""})
    assert resolve_model(argument, tmp_path) == snapshot


def test_an_existing_folder_has_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_to_cache(tmp_path / "cache", "Org/tiny", {"config.json": "{}", "model.safetensors": ""})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Org" / "tiny").mkdir(parents=True)
    assert resolve_model("Org/tiny", tmp_path / "cache") == Path("Org/tiny")
    assert resolve_model(str(tmp_path / "Org" / "tiny")) == tmp_path / "Org" / "tiny"
    assert resolve_model("hf:Org/tiny", tmp_path / "cache") != Path("Org/tiny")


def test_names_that_are_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFolderError, match="'hf:nothing'; expected hf:ORGANIZATION/NAME"):
        resolve_model("hf:nothing")
    for argument in ("nothing", "./a/b", str(tmp_path / "nothing"), "a/b/c"):
        with pytest.raises(ModelFolderError, match=r"is no folder; expected .* or a hub id such as"):
            resolve_model(argument)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ModelFolderError, match=r"checkpoints/rl is no folder; .* or hf:checkpoints/rl for the hub"):
        resolve_model("checkpoints/rl")


def test_offline_without_a_complete_copy_there_is_one_clear_error(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    add_to_cache(
        tmp_path, "Org/half", {"config.json": "{}", "model-1.safetensors": "", "model.safetensors.index.json": index}
    )
    code = """
import sys
from repairgym.errors import ModelFolderError
from repairgym.inference.model_source import resolve_model
for argument in ("Org/half", "Org/absent"):
    try:
        resolve_model(argument)
    except ModelFolderError as error:
        print(error)
assert not {"torch", "transformers"} & set(sys.modules)
"""
    got = offline(code, tmp_path)
    assert got.returncode == 0, got.stderr
    for hub_id, line in zip(("Org/half", "Org/absent"), got.stdout.splitlines(), strict=True):
        assert line == (
            f"got model {hub_id}: not (completely) in the cache {tmp_path}, and HF_HUB_OFFLINE is set; run "
            f"'hf download {hub_id}' with network access, or name a model folder"
        )
