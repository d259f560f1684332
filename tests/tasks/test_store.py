from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from repairgym.errors import InputError
from repairgym.tasks.store import MANIFEST_FILE, TaskStore, Unit


def test_store_filters_and_says_what_is_missing(built: TaskStore, tmp_path: Path) -> None:
    first = built.load()[0]
    assert built.load(ids=[first.id]) == (first,)
    assert built.load(split="test") == ()
    assert TaskStore(built.folder / "tasks.jsonl").load(ids=[first.id]) == (first,)
    with pytest.raises(InputError, match="no task missing"):
        built.load(ids=["missing"])
    with pytest.raises(InputError, match="repairgym tasks build"):
        TaskStore(tmp_path).load()
    (tmp_path / "tasks.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(InputError, match="line 1"):
        TaskStore(tmp_path).load()


@pytest.mark.parametrize("damage", [str.upper, lambda text: text[:-9], lambda text: text.replace('"issue"', '"i"')])
def test_a_unit_that_cannot_be_read_is_none(built: TaskStore, tmp_path: Path, damage: Callable[[str], str]) -> None:
    store = TaskStore(tmp_path)
    unit = Unit("releases-a", "key", {"kept": 1}, built.load()[:1])
    store.save_unit(unit)
    assert store.load_unit("releases-a", "key") == unit
    assert store.load_unit("releases-a", "other") is None
    path = tmp_path / "units" / "releases-a.jsonl"
    path.write_text(damage(path.read_text()))
    assert store.load_unit("releases-a", "key") is None


def test_a_folder_of_an_older_version_is_rejected(built: TaskStore, tmp_path: Path) -> None:
    store = TaskStore(tmp_path)
    store.save(built.load()[:1], {}, {"seed": 0})
    assert len(store.load()) == 1
    path = tmp_path / MANIFEST_FILE
    manifest = json.loads(path.read_text())
    del manifest["format"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"format 1, .* format 2; build the tasks again"):
        store.load()
