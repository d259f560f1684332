from __future__ import annotations

import sqlite3

from repairgym.records import VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.view.counts import CountKey, RunCounts
from repairgym.view.lists import COUNTED, TrajectoryFilter
from repairgym.view.reader import RunReader


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
