from __future__ import annotations

import sqlite3
import zlib

import pytest

from repairgym.errors import InputError
from repairgym.rollout.connection import APPLICATION_ID, SCHEMA_VERSION
from repairgym.view.lists import TrajectoryFilter
from repairgym.view.reader import RunReader


def test_reading_leaves_no_file_behind(many_rows):
    before = {path.name: path.stat().st_mtime_ns for path in many_rows.iterdir()}
    with RunReader.read(many_rows / "run.db") as reader:
        reader.page(TrajectoryFilter(), 5)
    assert {path.name: path.stat().st_mtime_ns for path in many_rows.iterdir()} == before
    with RunReader.read(many_rows / "run.db") as reader, pytest.raises(InputError, match="read-only"):
        reader.add_event("kind", "message")


def test_older_newer_and_foreign_files_are_rejected(tmp_path):
    for version, message in (
        (SCHEMA_VERSION - 1, "earlier, unreleased version"),
        (SCHEMA_VERSION + 1, f"reads {SCHEMA_VERSION}"),
    ):
        path = tmp_path / f"{version}.db"
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE trajectories (x)")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {version}")
        with pytest.raises(InputError, match=message):
            RunReader.read(path)
    (tmp_path / "text.db").write_text("no database, and longer than a header of one hundred bytes " * 3)
    with pytest.raises(InputError, match="cannot be read"):
        RunReader.read(tmp_path / "text.db")


def test_a_damaged_text_is_an_error_of_its_own(many_rows):
    with sqlite3.connect(many_rows / "run.db") as connection:
        connection.execute("UPDATE documents SET document = ? WHERE number = 2", (b"nonsense",))
        connection.execute("UPDATE documents SET document = ? WHERE number = 3", (zlib.compress(b'{"turns": 3}'),))
        connection.execute("UPDATE documents SET ledger = ? WHERE number = 4", (b"\x09",))
    connection.close()
    with RunReader.read(many_rows / "run.db") as reader:
        for number in (2, 3):
            with pytest.raises(InputError, match=f"text of trajectory {number} cannot be read"):
                reader.document(reader.entry(number))
        with pytest.raises(InputError, match="tokens of trajectory 4"):
            reader.ledger(reader.entry(4))
        assert reader.page(TrajectoryFilter(text="passed 2"), 50).num_searched == 40
