from __future__ import annotations

import sqlite3
import zlib

import pytest

from repairgym.errors import InputError
from repairgym.records import VerdictKind
from repairgym.rollout.connection import APPLICATION_ID, SCHEMA_VERSION
from repairgym.rollout.store import RunStore
from repairgym.view.lists import COUNTED, TrajectoryFilter
from repairgym.view.reader import CountKey, RunCounts, RunReader


def test_reading_leaves_no_file_behind(many_rows):
    before = {path.name: path.stat().st_mtime_ns for path in many_rows.iterdir()}
    with RunReader.read(many_rows / "run.db") as reader:
        reader.page(TrajectoryFilter(), 5)
    assert {path.name: path.stat().st_mtime_ns for path in many_rows.iterdir()} == before
    with RunReader.read(many_rows / "run.db") as reader, pytest.raises(InputError, match="read-only"):
        reader.add_event("kind", "message")


def test_older_newer_and_foreign_files_are_rejected(tmp_path):
    for version, message in (
        (2, "earlier, unreleased version"),
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


def test_an_update_counts_new_rows(many_rows, trajectory_maker):
    counts = RunCounts()
    with RunReader.read(many_rows / "run.db") as reader:
        counts.update(reader)
    assert counts.total().num == 40
    assert counts.total(step=2, phase="rl").by_verdict[VerdictKind.FAILED] == 3
    with RunStore.open(many_rows / "run.db") as store:
        invalid = trajectory_maker("new", kind=VerdictKind.INVALID)
        store.add_trajectory(invalid, phase="eval/x/y", step=0, split="test")
        with RunReader.read(many_rows / "run.db") as reader:
            counts.update(reader)
            counts.update(reader)
            assert counts.matching(TrajectoryFilter(q="x")) is None
    assert counts.total().num == 41
    assert counts.total(phase="eval/x/y").pass_rate == 0.0
    assert counts.matching(TrajectoryFilter(split="test")).num == 1


def test_counts_agree_with_queries(many_rows):
    assert CountKey._fields == COUNTED
    counts = RunCounts()
    with RunReader.read(many_rows / "run.db") as reader:
        counts.update(reader)
        for conditions in ({"verdict": "passed"}, {"step": 1}, {"verdict": "failed", "phase": "rl"}, {}):
            wanted = TrajectoryFilter(**conditions)
            assert counts.matching(wanted).num == reader.count(wanted)[0]


def test_dropped_and_repeated_rows_are_counted_once(many_rows, trajectory_maker):
    counts = RunCounts()

    def add(names, kind):
        with RunStore.open(many_rows / "run.db") as store:
            for name in names:
                store.add_trajectory(trajectory_maker(name, kind=kind), phase="eval/x/y", step=0, split="test")

    def counted():
        with RunReader.read(many_rows / "run.db") as reader:
            counts.update(reader)
        return {str(kind): num for kind, num in counts.total(phase="eval/x/y").by_verdict.items() if num}

    add(["a", "b"], VerdictKind.INVALID)
    assert counted() == {"invalid": 2}
    for names in (["a", "b"], ["a", "b", "c", "d"]):  # as many as were dropped, and more
        with RunStore.open(many_rows / "run.db") as store:
            store.drop_invalid(phase="eval/x/y", step=0)
        add(names, VerdictKind.PASSED)
        assert counted() == {"passed": len(names)}
        with sqlite3.connect(many_rows / "run.db") as connection:
            connection.execute("UPDATE trajectories SET verdict = 'invalid', reward = NULL WHERE phase = 'eval/x/y'")
        connection.close()
