"""Keyset paging, filters, text search: every row once, in order, whatever is added meanwhile."""

from __future__ import annotations

import sqlite3
import zlib

import pytest

from repairgym.errors import InputError
from repairgym.records import VerdictKind
from repairgym.rollout.connection import APPLICATION_ID, SCHEMA_VERSION
from repairgym.rollout.store import RunStore
from repairgym.view.counts import CountKey, RunCounts
from repairgym.view.folders import RunFolders
from repairgym.view.lists import COUNTED, TrajectoryFilter, parse_filter
from repairgym.view.reader import RunReader


def walk(reader, wanted, size=7, **options):
    """Row numbers of each page, forward."""
    pages, after = [], None
    while True:
        page = reader.page(wanted, size, after=after, **options)
        pages.append([one.number for one in page.rows])
        after = page.after
        if after is None:
            return pages


@pytest.mark.parametrize("order", ["newest", "oldest", "most_turns", "most_tokens"])
def test_pages_hold_every_row_once_in_order(many_rows, order):
    with RunReader.read(many_rows / "run.db") as reader:
        pages = walk(reader, TrajectoryFilter(order=order))
        numbers = [number for page in pages for number in page]
        assert sorted(numbers) == list(range(1, 41))
        assert [len(page) for page in pages] == [7, 7, 7, 7, 7, 5]
        values = [reader.entry(number).row.num_turns for number in numbers]
        if order == "most_turns":
            assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("order", ["newest", "most_turns"])
def test_backward_is_forward_turned_round(many_rows, order):
    wanted = TrajectoryFilter(order=order)
    with RunReader.read(many_rows / "run.db") as reader:
        forward = walk(reader, wanted)
        page = reader.page(wanted, 7, after=reader.page(wanted, 7, after=reader.page(wanted, 7).after).after)
        backward = [[one.number for one in page.rows]]
        while page.before:
            page = reader.page(wanted, 7, before=page.before)
            backward.append([one.number for one in page.rows])
        assert backward[::-1] == forward[:3]


def test_rows_added_while_paging_shift_nothing(many_rows, trajectory_maker):
    with RunReader.read(many_rows / "run.db") as reader:
        first = reader.page(TrajectoryFilter(), 7)
    with RunStore.open(many_rows / "run.db") as store:
        store.add_trajectory(trajectory_maker("new"), phase="eval/x/y", step=0, split="test")
        with RunReader.read(many_rows / "run.db") as reader:
            second = reader.page(TrajectoryFilter(), 7, after=first.after)
            assert [one.number for one in second.rows] == list(range(33, 26, -1))


def test_filters_narrow(many_rows):
    with RunReader.read(many_rows / "run.db") as reader:

        def ids(**conditions):
            return {one.row.id for one in reader.page(TrajectoryFilter(**conditions), 100).rows}

        failed = {f"t{index:02d}" for index in range(0, 40, 3)}
        assert ids(verdict="failed") == failed
        assert ids(verdict="failed", step=2) == {"t21", "t24", "t27"}
        assert ids(group_id="g3", min_turns=3) == {"t32", "t35", "t38"}
        assert ids(max_turns=1, phase="rl") == failed
        assert ids(q="T0") == {f"t0{digit}" for digit in range(10)}
        assert ids(q="%") == set()
        assert ids(q="_") == ids(q="t_") == set()
        assert ids(phase="nowhere") == set()


def test_text_is_searched_in_values_not_in_field_names(many_rows):
    with RunReader.read(many_rows / "run.db") as reader:
        assert reader.page(TrajectoryFilter(text="observation"), 50).rows == []
        found = reader.page(TrajectoryFilter(text="PASSED 2"), 50)
        assert {one.row.num_turns for one in found.rows} == {2, 3}
        assert found.num_searched == 40
        assert found.after is None


def test_a_search_that_runs_out_of_time_goes_on_where_it_stopped(many_rows):
    wanted = TrajectoryFilter(text="passed 2")
    with RunReader.read(many_rows / "run.db") as reader:
        page = reader.page(wanted, 50, text_budget_s=-1.0)
        assert page.is_cut
        assert page.num_searched == 1
        whole = [number for found in walk(reader, wanted, 7) for number in found]
        piecewise = [number for found in walk(reader, wanted, 7, text_budget_s=-1.0) for number in found]
        assert whole == piecewise
        assert len(whole) == 26


def test_counts_stop_at_a_bound_only(many_rows):
    with RunReader.read(many_rows / "run.db") as reader:
        assert reader.count(TrajectoryFilter(q="t1")) == (10, False)


def test_neighbours_are_those_of_the_list(many_rows):
    wanted = TrajectoryFilter(verdict="failed", order="oldest")
    with RunReader.read(many_rows / "run.db") as reader:
        assert reader.neighbors(wanted, reader.entry(4)) == (1, 7)
        assert reader.neighbors(wanted, reader.entry(1)) == (None, 4)


def test_the_tally_counts_what_is_new(many_rows, trajectory_maker):
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


def test_a_tally_agrees_with_counting(many_rows):
    assert CountKey._fields == COUNTED
    counts = RunCounts()
    with RunReader.read(many_rows / "run.db") as reader:
        counts.update(reader)
        for conditions in ({"verdict": "passed"}, {"step": 1}, {"verdict": "failed", "phase": "rl"}, {}):
            wanted = TrajectoryFilter(**conditions)
            assert counts.matching(wanted).num == reader.count(wanted)[0]


def test_rows_that_were_dropped_and_tried_again_are_counted_once(many_rows, trajectory_maker):
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


def test_reading_leaves_no_file_behind(many_rows):
    before = {path.name: path.stat().st_mtime_ns for path in many_rows.iterdir()}
    with RunReader.read(many_rows / "run.db") as reader:
        reader.page(TrajectoryFilter(), 5)
    assert {path.name: path.stat().st_mtime_ns for path in many_rows.iterdir()} == before
    with RunReader.read(many_rows / "run.db") as reader, pytest.raises(InputError, match="read-only"):
        reader.add_event("kind", "message")


def test_a_filter_comes_back_from_its_address():
    wanted = TrajectoryFilter(phase="eval/a b/c&d", step=0, verdict="failed", q="ä=1", order="oldest", max_turns=3)
    from urllib.parse import parse_qsl

    assert parse_filter(parse_qsl(wanted.query())) == wanted
    assert wanted.query(verdict=None, phase="") == "step=0&max_turns=3&q=%C3%A4%3D1&order=oldest"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([("color", "red")], "filters nothing"),
        ([("step", "two")], "step='two'"),
        ([("verdict", "great")], "verdict='great'"),
        ([("step", "1"), ("step", "2")], "twice"),
        ([("min_turns", "99999999999999999999")], "min_turns"),
    ],
)
def test_an_address_that_cannot_be_is_refused(items, message):
    with pytest.raises(InputError, match=message):
        parse_filter(items)


def test_empty_fields_of_a_form_do_not_narrow():
    assert parse_filter([("phase", ""), ("step", " "), ("q", "x")]) == TrajectoryFilter(q="x")


def test_older_newer_and_foreign_files_are_refused(tmp_path):
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


def test_runs_are_found_below_a_folder(tmp_path):
    for name in ("b", "deep/er/a", "tasks/no", ".hidden", "too/deep/to/find"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.db").touch()
    folders = RunFolders(tmp_path)
    assert [one.key for one in folders.all()] == ["b", "deep~er~a"]
    assert folders.get("deep~er~a").name == "deep/er/a"
    for key in ("..", "../b", "b/../b", ".hidden"):
        with pytest.raises(InputError, match="no run"):
            folders.get(key)
    assert [one.key for one in RunFolders(tmp_path / "b").all()] == ["b"]
