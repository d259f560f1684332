"""Model folders with a longer context, by YaRN; the weights stay.

Reads a model folder; makes another one. Guarantees: the copy is complete or absent.
"""

import json
import os
import shutil
from pathlib import Path

from repairgym.errors import disk_full_as_repairgym_error
from repairgym.inference.loading import remove_leftover, replace_folder
from repairgym.sizing.positions import Positions, read_config, stretched


def stretch_folder(source: Path, target: Path, factor: float, original: int | None = None) -> Positions:
    """Copy model folder ``source`` to ``target`` with YaRN by ``factor``; arguments and errors as of `stretched`."""
    config = stretched(read_config(source), factor, str(source), original)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with disk_full_as_repairgym_error(target):
            remove_leftover(temporary)
            shutil.copytree(source, temporary)
            (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            replace_folder(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Positions.of(config, str(target))
