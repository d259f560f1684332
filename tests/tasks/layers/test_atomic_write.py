from __future__ import annotations

import os
from pathlib import Path

import pytest

from repairgym.errors import InputError
from repairgym.tasks.layers.atomic_write import folder_written_whole, written_whole


def write_half(path: Path) -> None:
    with written_whole(path) as stream:
        stream.write(b"second")
        raise ValueError("interrupted")


def fill_half(folder: Path) -> None:
    with folder_written_whole(folder) as place:
        (place / "x").write_text("x")
        raise ValueError("interrupted")


def test_a_file_keeps_its_content_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with written_whole(path) as stream:
        stream.write(b"first")
    with pytest.raises(ValueError, match="interrupted"):
        write_half(path)
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_appears_when_it_is_filled(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with pytest.raises(ValueError, match="interrupted"):
        fill_half(folder)
    with folder_written_whole(folder):
        pass
    assert list(tmp_path.iterdir()) == []
    folder.mkdir()
    with folder_written_whole(folder) as place:
        (place / "x").write_text("x")
        assert list(folder.iterdir()) == []
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "x"]
    with pytest.raises(InputError, match="not empty"), folder_written_whole(folder):
        pass


def test_what_a_killed_process_with_the_same_id_left_is_no_part_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / f".folder.{os.getpid()}" / "old").mkdir(parents=True)
    with folder_written_whole(tmp_path / "folder") as place:
        (place / "x").write_text("x")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "x"]
