from __future__ import annotations

import dataclasses
import json
import sqlite3

import pytest

from repairgym.errors import InputError
from repairgym.ledger import Parent
from repairgym.rollout.store import RunStore
from repairgym.view.lists import FOLDING, TrajectoryFilter, parse_filter
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
def test_paging_backward_is_the_reverse_of_forward(many_rows, order):
    wanted = TrajectoryFilter(order=order)
    with RunReader.read(many_rows / "run.db") as reader:
        forward = walk(reader, wanted)
        page = reader.page(wanted, 7, after=reader.page(wanted, 7, after=reader.page(wanted, 7).after).after)
        backward = [[one.number for one in page.rows]]
        while page.before:
            page = reader.page(wanted, 7, before=page.before)
            backward.append([one.number for one in page.rows])
        assert backward[::-1] == forward[:3]


def test_new_rows_do_not_shift_pages(many_rows, trajectory_maker):
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


def test_every_letter_that_folds_to_ascii_is_known():
    folding = [code for code in range(0x80, 0x110000) if any(map(str.isascii, chr(code).casefold()))]
    assert all(FOLDING.search(json.dumps(chr(code)).encode()) for code in folding)
    assert not FOLDING.search(json.dumps("é → ─").encode())


@pytest.mark.parametrize(
    ("said", "text", "is_there"),
    [
        ("Straße → 30 K", "STRASSE", True),
        ("at 30 \u212a", "30 k", True),
        ('two\nlines, "Quoted"', 'LINES, "quoted"', True),
        ("two\nlines", "two\\nlines", False),
        ("é", "É", True),
        ("plain", "action", False),
    ],
)
def test_a_search_ignores_case_and_reads_text_as_it_is(tmp_path, trajectory_maker, said, text, is_there):
    with RunStore.create(tmp_path / "run.db") as store:
        trajectory = trajectory_maker(steps=(("edit", said, "nothing", ""),))
        store.add_trajectory(trajectory, phase="rl", step=0, split="train")
    with RunReader.read(tmp_path / "run.db") as reader:
        assert len(reader.page(TrajectoryFilter(text=text), 5).rows) == is_there


def test_seconds_count_each_part_of_an_episode_once(many_rows, trajectory_maker):
    parts = {"queue": 50.0, "generate": 20.0, "prefill": 8.0, "decode": 10.0, "tool": 3.0, "grade": 1.0}
    with RunStore.open(many_rows / "run.db") as store:
        slow = dataclasses.replace(trajectory_maker("slow"), durations_s=parts)
        store.add_trajectory(slow, phase="eval/x/y", step=0, split="test")
    with RunReader.read(many_rows / "run.db") as reader:
        assert [entry.row.id for entry in reader.page(TrajectoryFilter(min_seconds=24), 9).rows] == ["slow"]
        assert reader.page(TrajectoryFilter(min_seconds=25), 9).rows == []


def test_trajectories_are_found_by_their_price(many_rows, trajectory_maker):
    one = trajectory_maker("paid")
    priced = [turn.model_copy(update={"cost_usd": 0.25}) for turn in one.turns]
    with RunStore.open(many_rows / "run.db") as store:
        store.add_trajectory(dataclasses.replace(one, turns=tuple(priced)), phase="eval/x/y", step=0, split="test")
        branch = Parent(trajectory_id="paid", num_turns=len(priced) - 1)
        child = dataclasses.replace(one, id="branch", turns=tuple(priced), parent=branch)
        store.add_trajectory(child, phase="eval/x/y", step=0, split="test")
    with RunReader.read(many_rows / "run.db") as reader:

        def ids(**conditions):
            return {entry.row.id for entry in reader.page(TrajectoryFilter(**conditions), 100).rows}

        assert ids(min_usd=0.0) == {"paid", "branch"}  # those without a price match neither bound
        assert ids(max_usd=0.3) == {"branch"}  # the parent paid for what both share
        assert ids(min_usd=0.26, max_usd=0.25 * len(priced)) == {"paid"}
        assert reader.cost_usd() == 0.25 * (len(priced) + 1)
        assert reader.cost_usd(1) == 0
    assert parse_filter([("min_usd", "0.05")]).query() == "min_usd=0.05"
    with pytest.raises(InputError, match="min_usd"):
        parse_filter([("min_usd", "nan")])


def test_a_store_of_an_older_version_has_no_prices(many_rows):
    with sqlite3.connect(many_rows / "run.db") as connection:
        connection.execute("DROP TABLE costs")
        connection.execute("PRAGMA user_version = 6")
    with RunReader.read(many_rows / "run.db") as reader:
        assert reader.page(TrajectoryFilter(min_usd=0.0), 5).rows == []
        assert reader.cost_usd() == 0
    with RunStore.open(many_rows / "run.db"), RunReader.read(many_rows / "run.db") as reader:
        assert reader.page(TrajectoryFilter(min_usd=0.0), 5).rows == []
        assert len(reader.page(TrajectoryFilter(), 100).rows) == 40


def test_a_search_that_runs_out_of_time_resumes_where_it_stopped(many_rows):
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


def test_neighbors_are_those_of_the_list(many_rows):
    wanted = TrajectoryFilter(verdict="failed", order="oldest")
    with RunReader.read(many_rows / "run.db") as reader:
        assert reader.around(wanted, reader.entry(4)) == (1, 7, (2, 14))
        assert reader.around(wanted, reader.entry(1)) == (None, 4, (1, 14))
        assert reader.around(wanted, reader.entry(2)) == (1, 4, None)  # it passed: not in the list
        assert reader.around(wanted.model_copy(update={"text": "x"}), reader.entry(4)) == (1, 7, None)


@pytest.mark.parametrize("order", ["newest", "oldest", "most_turns", "most_tokens"])
@pytest.mark.parametrize("q", ["", "t1"])
def test_every_row_has_its_place_in_every_order(many_rows, order, q):
    wanted = TrajectoryFilter(order=order, q=q)
    with RunReader.read(many_rows / "run.db") as reader:
        reader.chosen = frozenset(range(5, 30)) if q else None
        rows = reader.page(wanted, 100).rows
        numbers = [entry.number for entry in rows]
        assert len(numbers) == (10 if q else 40)
        for at, entry in enumerate(rows):
            sides = (numbers[at - 1] if at else None), (numbers[at + 1] if at + 1 < len(rows) else None)
            assert reader.around(wanted, entry) == (*sides, (at + 1, len(rows)))


def test_a_filter_survives_its_address():
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
def test_an_invalid_address_is_rejected(items, message):
    with pytest.raises(InputError, match=message):
        parse_filter(items)


def test_empty_fields_of_a_form_do_not_narrow():
    assert parse_filter([("phase", ""), ("step", " "), ("q", "x")]) == TrajectoryFilter(q="x")
