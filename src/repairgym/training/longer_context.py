"""A model folder for a longer context by YaRN (arXiv 2309.00071), as paper B's second stage (Table 3: factor 4.0).

Reads and writes model folders; the weights are the same files. Invariants: only ``config.json`` changes; the positions
of the folder are those of the original times the factor.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from repairgym.errors import ConfigError, ModelFolderError
from repairgym.inference.loading import replace_folder


def extend_context(source: Path, target: Path, factor: float) -> int:
    """Copy model folder ``source`` to ``target`` with YaRN by ``factor``; returns its positions.

    Raises:
        ModelFolderError: ``source`` has no ``config.json``.
        ConfigError: the model has no rotary positions, or stretched ones already.
    """
    path = source / "config.json"
    if not path.is_file():
        raise ModelFolderError(f"{source} has no config.json; expected a model folder in Hugging Face format")
    config = json.loads(path.read_text(encoding="utf-8"))
    # transformers 5 writes rope_parameters; folders of older versions have rope_theta and rope_scaling apart.
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.get("rope_theta", config.get("rope_theta"))
    if theta is None or rope.get("rope_type", "default") != "default":
        found = rope.get("rope_type", "none")
        raise ConfigError(f"{source} has rotary positions of type {found!r}, YaRN needs 'default'; set yarn_factor=1")
    longest = int(config["max_position_embeddings"])
    config.pop("rope_scaling", None)
    config["rope_parameters"] = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": longest,
    }
    config["max_position_embeddings"] = round(longest * factor)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        shutil.copytree(source, temporary)
        (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        replace_folder(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return int(config["max_position_embeddings"])
