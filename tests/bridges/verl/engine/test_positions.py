"""verl's own checks say of each row for verl in the table of `tests/sizing/test_positions.py` what we say."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from repairgym.sizing.positions import Demand, stretched

pytestmark = pytest.mark.verl
PROGRAM = """
import json, sys
from types import SimpleNamespace
from transformers import AutoConfig
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.workers.rollout.utils import get_max_position_embeddings

def heads(config, parts):
    class Model: pass
    Model.__module__, model = __name__, Model()
    model.config = config
    try:
        apply_monkey_patch(model, ulysses_sp_size=parts, use_remove_padding=False)
    except AssertionError as error:
        return str(error)
    except Exception:
        return ""  # behind the check: this stands for a model that was not built
    return ""

found = []
for folder, parts in json.load(sys.stdin):
    config = AutoConfig.from_pretrained(folder)
    found.append((get_max_position_embeddings(config), heads(config, parts)))
print(json.dumps(found))
"""


def rows_for_verl() -> list[tuple[dict[str, Any], float, Demand, str | None]]:
    path = Path(__file__).parents[3] / "sizing/test_positions.py"
    specification = importlib.util.spec_from_file_location("positions_table", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return [row for row in module.TABLE if row[2].engine == "verl"]


def test_verl_says_what_the_preflight_says(tmp_path: Path) -> None:
    """Its server takes contexts up to `get_max_position_embeddings`; its patch of attention checks heads."""
    rows, asked = rows_for_verl(), []
    for number, (fields, factor, demand, _) in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(stretched(fields, factor, "m") if factor > 1 else fields))
        asked.append((str(folder), demand.context_parallel))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    for (_, _, demand, wrong), (longest, uneven) in zip(rows, found, strict=True):
        is_divided = not uneven and demand.num_gpus % demand.context_parallel == 0
        assert (demand.context_tokens <= longest and is_divided) is (wrong is None), (demand, longest, uneven)
    assert len(rows) >= 8
