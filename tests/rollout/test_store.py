from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from repairgym.errors import DiskFullError, InputError
from repairgym.ledger import Branch, Parent, TokenLedger
from repairgym.records import VerdictKind
from repairgym.rollout.connection import SCHEMA_VERSION
from repairgym.rollout.rows import pack_ledger, unpack_ledger
from repairgym.rollout.store import RunStore

LEDGER_FIELDS = ("token_id", "is_action", "log_prob", "policy_version")


def assert_equal(got, expected):
    for name in LEDGER_FIELDS:
        array = getattr(got.ledger, name)
        assert array.dtype == getattr(expected.ledger, name).dtype
        np.testing.assert_array_equal(array, getattr(expected.ledger, name))
    names = [name for name in vars(expected) if name != "ledger"]
    assert {name: getattr(got, name) for name in names} == {name: getattr(expected, name) for name in names}


def test_trajectory_round_trip(store, trajectory_maker):
    expected = trajectory_maker()
    assert store.add_trajectory(expected, phase="rl", step=3, split="train")
    (got,) = store.trajectories(phase="rl", step=3)
    assert_equal(got, expected)
    assert_equal(store.trajectory("t-1"), expected)


def test_row_says_what_the_trajectory_says(store, trajectory_maker):
    trajectory = trajectory_maker()
    store.add_trajectory(trajectory, phase="rl", step=3, split="train")
    (row,) = store.rows()
    assert (row.phase, row.step, row.split, row.reward, row.num_turns) == ("rl", 3, "train", 1.0, 3)
    assert row.num_tokens == len(trajectory.ledger)
    assert row.num_action_tokens == trajectory.ledger.is_action.sum() > 0


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 1000])
def test_ledger_round_trip_is_bitwise(length):
    generator = np.random.default_rng(length)
    ledger = TokenLedger(
        token_id=generator.integers(0, 2**31 - 1, length).astype(np.int32),
        is_action=generator.random(length) < 0.3,
        log_prob=np.where(generator.random(length) < 0.1, np.nan, generator.normal(size=length)).astype(np.float32),
        policy_version=generator.integers(-1, 9, length).astype(np.int32),
    )
    forked = replace(ledger, branches=(Branch(0, ((0, length),)), Branch(length, ((0, length // 2), (1, length)))))
    assert unpack_ledger(pack_ledger(forked)).branches == forked.branches
    got = unpack_ledger(pack_ledger(ledger))
    assert got.branches == ()
    for name in LEDGER_FIELDS:
        np.testing.assert_array_equal(getattr(got, name), getattr(ledger, name))


def test_adding_twice_changes_nothing(store, trajectory_maker):
    store.add_trajectory(trajectory_maker(), phase="rl", step=1, split="train")
    assert not store.add_trajectory(trajectory_maker(), phase="rl", step=1, split="train")
    assert len(store.rows()) == 1


def test_an_id_of_another_phase_is_refused(store, trajectory_maker):
    store.add_trajectory(trajectory_maker(), phase="rl", step=1, split="train")
    with pytest.raises(InputError, match="already stored"):
        store.add_trajectory(trajectory_maker(), phase="eval/rl/test", step=1, split="test")


def test_a_group_holds_one_task(store, trajectory_maker):
    store.add_trajectory(trajectory_maker("a", "task-1"), phase="rl", step=1, split="train")
    with pytest.raises(InputError, match="holds task 'task-1'"):
        store.add_trajectory(trajectory_maker("b", "task-2"), phase="rl", step=1, split="train")
    assert store.trajectory_ids(phase="rl") == {"a"}
    store.add_trajectory(trajectory_maker("c", "task-2"), phase="rl", step=2, split="train")


def test_invalid_has_no_reward(store, trajectory_maker):
    store.add_trajectory(trajectory_maker(kind=VerdictKind.INVALID), phase="rl", step=1, split="train")
    (row,) = store.rows()
    assert row.reward is None
    assert row.verdict is VerdictKind.INVALID


def test_filters(store, trajectory_maker):
    for index, (phase, step) in enumerate([("rl", 1), ("rl", 2), ("eval/a/x", 0), ("eval/b/x", 0)]):
        trajectory = trajectory_maker(f"t{index}", f"task{index}", group_id=f"g{index}")
        store.add_trajectory(trajectory, phase=phase, step=step, split="train")
    assert [row.id for row in store.rows(phase="rl")] == ["t0", "t1"]
    assert [row.id for row in store.rows(phase="rl", step=2)] == ["t1"]
    assert [row.id for row in store.rows(phase_prefix="eval/")] == ["t2", "t3"]
    assert [row.id for row in store.rows(task_ids=["task0", "task3"])] == ["t0", "t3"]
    assert [row.id for row in store.rows(task_ids=[])] == []
    assert [t.id for t in store.trajectories(task_ids={"task2"})] == ["t2"]


def test_group_status(store, trajectory_maker):
    store.add_trajectory(trajectory_maker(), phase="rl", step=1, split="train")
    store.set_group_status("group-1", phase="rl", step=1, task_id="task-1", status="trained")
    store.set_group_status("lost", phase="rl", step=1, task_id="task-2", status="failed")
    assert {group.id: group.status for group in store.groups(phase="rl")} == {"group-1": "trained", "lost": "failed"}


def test_metrics_overwrite_and_keep_nan(store):
    store.add_metrics("rl", 2, {"entropy": 0.5, "loss": math.nan})
    store.add_metrics("rl", 1, {"entropy": math.inf})
    store.add_metrics("rl", 2, {"entropy": 0.25})
    assert store.metrics("rl", "entropy") == [(1, math.inf), (2, 0.25)]
    assert math.isnan(store.metrics("rl", "loss")[0][1])
    assert store.metric_names("rl") == ["entropy", "loss"]


def test_phases_add_up(store):
    store.plan_phases(["rft", "rl"])
    assert store.phase_status("rl") == "planned"
    for cpu_s, peak in ((2.0, 300), (3.0, 100)):
        store.start_phase("rl", {"seed": 1})
        assert store.phase_status("rl") == "running"
        store.end_phase("rl", cpu_s=cpu_s, peak_rss_bytes=peak, detail={"cpu": cpu_s})
    rft, dapo = store.phases()
    assert (rft.name, rft.status) == ("rft", "planned")
    assert (dapo.cpu_s, dapo.peak_rss_bytes, dapo.detail) == (5.0, 300, {"seed": 1, "cpu": 3.0})
    assert dapo.ended_at >= dapo.started_at


def test_phase_that_raises_is_failed_and_can_resume(store):
    with pytest.raises(ZeroDivisionError), store.phase("rft"):
        raise ZeroDivisionError
    assert store.phase_status("rft") == "failed"
    with pytest.raises(KeyboardInterrupt), store.phase("rft"):
        raise KeyboardInterrupt
    assert store.phase_status("rft") == "interrupted"
    with store.phase("rft") as detail:
        detail["digest"] = "abc"
    (phase,) = store.phases()
    assert (phase.status, phase.detail) == ("done", {"digest": "abc"})
    assert phase.peak_rss_bytes > 1 << 20


KILLED = """
import os, signal, sys, time
from pathlib import Path
from repairgym.rollout.store import RunStore
store = RunStore.open(Path(sys.argv[1]))
with store.phase("rl"):
    started = time.process_time()
    while time.process_time() - started < 0.3:
        pass
    store.add_metrics("rl", 0, {"loss": 1.0})
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_seconds_of_a_killed_phase_count_up_to_its_last_note(store):
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(store.path)], check=False)
        assert store.phase_status("rl") == "running"
    with store.phase("rl"):
        pass
    (phase,) = store.phases()
    assert (phase.status, phase.detail) == ("done", {})
    assert phase.cpu_s > 0.6
    assert 0.6 < phase.wall_s < 60.0
    assert phase.peak_rss_bytes > 1 << 20


def test_ending_a_phase_that_does_not_run_is_refused(store):
    with pytest.raises(InputError, match="unknown, not running"):
        store.end_phase("rl")


def test_events(store):
    store.add_event("sandbox_lost", "spawner ended", phase="rl")
    (event,) = store.events()
    assert (event.kind, event.message, event.phase) == ("sandbox_lost", "spawner ended", "rl")


def test_create_and_open_refuse_what_they_cannot_use(tmp_path):
    path = tmp_path / "run.db"
    with pytest.raises(InputError, match="does not exist"):
        RunStore.open(path)
    with pytest.raises(InputError, match="no folder"):
        RunStore.create(tmp_path / "none" / "run.db")
    RunStore.create(path).close()
    with pytest.raises(InputError, match="exists"):
        RunStore.create(path)
    (tmp_path / "text").write_text("no database, and longer than a header of one hundred bytes " * 3)
    with pytest.raises(InputError, match="cannot be read as a run store"):
        RunStore.open(tmp_path / "text")


def test_a_file_of_another_program_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE t (x)")
    with pytest.raises(InputError, match="another program"):
        RunStore.open(tmp_path / "other.db")


def test_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "run.db"
    RunStore.create(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(InputError, match=f"schema version {SCHEMA_VERSION + 1}"):
        RunStore.open(path)


def test_a_store_of_version_3_is_read_as_it_is_and_becomes_5_where_it_is_written(tmp_path, trajectory_maker):
    path = tmp_path / "run.db"
    with RunStore.create(path) as store:
        store.add_trajectory(trajectory_maker(), phase="rl", step=1, split="train")
    with sqlite3.connect(path) as connection:
        document = json.loads(zlib.decompress(connection.execute("SELECT document FROM documents").fetchone()[0]))
        for turn in document["turns"]:
            del turn["state"]
        connection.execute("UPDATE documents SET document = ?", (zlib.compress(json.dumps(document).encode()),))
        connection.executescript("DROP TABLE parents; DROP TABLE costs")
        connection.execute("PRAGMA user_version = 3")
    for is_read_only, version in ((True, 3), (False, SCHEMA_VERSION)):
        with RunStore.open(path, is_read_only) as store:
            assert {turn.state for turn in store.trajectory("t-1").turns} == {""}
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (version,)


def test_branches_keep_their_parent_also_in_a_store_that_was_of_version_4(tmp_path, trajectory_maker):
    path, parent = tmp_path / "run.db", Parent(trajectory_id="t-1", num_turns=2)
    with RunStore.create(path) as store:
        store.add_trajectory(trajectory_maker(), phase="rl", step=1, split="train")
    with sqlite3.connect(path) as connection:
        connection.executescript("DROP TABLE parents; DROP TABLE costs")
        connection.execute("PRAGMA user_version = 4")
    with RunStore.open(path, is_read_only=True) as store:
        assert store.trajectory("t-1").parent is None
    with RunStore.open(path) as store:
        store.add_trajectory(replace(trajectory_maker("t-2"), parent=parent), phase="rl", step=1, split="train")
    with RunStore.open(path, is_read_only=True) as store:
        assert [one.parent for one in store.trajectories(phase="rl")] == [None, parent]
    with RunStore.open(path) as store:
        store.drop_steps(phase="rl", first_step=1)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM parents").fetchone() == (0,)


def test_a_store_killed_at_birth_opens(tmp_path):
    (tmp_path / "run.db").touch()
    with pytest.raises(InputError, match="open it once for writing"):
        RunStore.open(tmp_path / "run.db", is_read_only=True)
    with RunStore.open(tmp_path / "run.db") as store:
        assert store.rows() == []


@pytest.mark.parametrize("application_id", [0x4D454E44, 0x5247594D])
def test_an_older_store_is_rejected(tmp_path, application_id):
    path = tmp_path / "run.db"
    RunStore.create(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA application_id = {application_id}")
        connection.execute("PRAGMA user_version = 2")
    for is_read_only in (True, False):
        with pytest.raises(InputError, match="written by an earlier, unreleased version; start a new run"):
            RunStore.open(path, is_read_only)


def test_a_reader_sees_what_a_writer_committed(store, trajectory_maker):
    with RunStore.open(store.path, is_read_only=True) as reader:
        assert reader.rows() == []
        store.add_trajectory(trajectory_maker(), phase="rl", step=1, split="train")
        assert [row.id for row in reader.rows()] == ["t-1"]
        with pytest.raises(InputError, match="read-only"):
            reader.add_event("kind", "message")


def test_iteration_survives_writes(store, trajectory_maker):
    for index in range(3):
        store.add_trajectory(trajectory_maker(f"t{index}"), phase="rl", step=1, split="train")
    seen = []
    for trajectory in store.trajectories(phase="rl"):
        seen.append(trajectory.id)
        store.add_trajectory(trajectory_maker(f"new-{trajectory.id}"), phase="rl", step=1, split="train")
    assert seen == ["t0", "t1", "t2"]
    assert len(store.rows()) == 6


def test_what_a_resumed_run_forgets_meanwhile_is_left_out(store, trajectory_maker):
    for index, kind in enumerate(("failed", "invalid", "failed")):
        one = trajectory_maker(f"t{index}", kind=VerdictKind(kind))
        store.add_trajectory(one, phase="rl", step=1, split="train")
    whole, texts = store.trajectories(phase="rl"), store.documents(phase="rl")
    assert (next(whole).id, next(texts)[0].id) == ("t0", "t0")
    store.drop_invalid(phase="rl", step=1)
    assert [one.id for one in whole] == ["t2"]
    assert [row.id for row, _ in texts] == ["t2"]


def test_branches_of_a_forked_history_are_stored(store, trajectory_maker):
    expected = trajectory_maker()
    length = len(expected.ledger)
    branches = (Branch(0, ((0, 11),)), Branch(11, ((0, 3), (7, 9), (11, length))), Branch(length, ()))
    expected = replace(expected, ledger=replace(expected.ledger, branches=branches))
    store.add_trajectory(expected, phase="rl", step=1, split="train")
    got = store.trajectory("t-1")
    assert got.ledger.branches == branches
    assert_equal(got, expected)


def test_a_full_disk_is_said_and_what_was_stored_stays(store, trajectory_maker):
    store.add_trajectory(trajectory_maker("t0"), phase="rl", step=1, split="train")
    ((num_pages,),) = store._fetch("PRAGMA page_count", ())
    store._fetch(f"PRAGMA max_page_count = {num_pages}", ())
    large = trajectory_maker("t1", final_patch="".join(map(str, range(50_000))))
    with pytest.raises(DiskFullError, match="what was stored before is intact"):
        store.add_trajectory(large, phase="rl", step=1, split="train")
    assert store.trajectory_ids(phase="rl") == {"t0"}
    store._fetch("PRAGMA max_page_count = 1000000", ())
    assert store.add_trajectory(large, phase="rl", step=1, split="train")


def test_invalid_trajectories_of_a_step_can_be_forgotten(store, trajectory_maker):
    for index, (step, kind) in enumerate([(1, "invalid"), (1, "failed"), (2, "invalid")]):
        one = trajectory_maker(f"t{index}", kind=VerdictKind(kind))
        store.add_trajectory(one, phase="rl", step=step, split="train")
    assert store.drop_invalid(phase="rl", step=1) == 1
    assert store.trajectory_ids(phase="rl") == {"t1", "t2"}
    assert store.num_trajectories() == {"rl": 2}
    assert store._fetch("SELECT count(*) FROM documents", ()) == [(2,)]
    assert store.add_trajectory(trajectory_maker("t0"), phase="rl", step=1, split="train")


WRITER = """
import sys
import zlib
from pathlib import Path
import numpy as np
from repairgym.ledger import TokenLedger
from repairgym.records import StopReason, Trajectory, Verdict
from repairgym.rollout.store import RunStore
ledger = TokenLedger(np.arange(50, dtype=np.int32), np.ones(50, bool), np.zeros(50, np.float32), np.zeros(50, np.int32))
verdict = Verdict(kind="failed", reason="r", grader_version="1")
with RunStore.open(Path(sys.argv[1])) as store:
    for i in range(10**9):
        ids = str(i), "task", "g", "p", "m", "s"
        trajectory = Trajectory(*ids, (), ledger, StopReason.SUBMITTED, {}, "x" * 5000, verdict, i)
        store.add_trajectory(trajectory, phase="rl", step=1, split="train")
        print(i, flush=True)
"""


def test_a_killed_writer_loses_nothing_that_it_reported(tmp_path):
    RunStore.create(tmp_path / "run.db").close()
    arguments = [sys.executable, "-c", WRITER, str(tmp_path / "run.db")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
    reported = [process.stdout.readline().strip() for _ in range(25)]
    process.send_signal(signal.SIGKILL)
    reported += process.stdout.read().splitlines()[:-1]  # the last line may be cut
    process.wait()
    with RunStore.open(tmp_path / "run.db") as store:
        stored = [trajectory.id for trajectory in store.trajectories(phase="rl")]
        assert set(reported) <= set(stored)
        assert len(stored) <= len(reported) + 2
        assert store._fetch("PRAGMA integrity_check", ()) == [("ok",)]
        assert store._fetch("PRAGMA foreign_key_check", ()) == []
