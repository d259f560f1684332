"""Export: what comes out is what was stored, and what a policy update would learn."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest

from repairgym.config.commands import TrajectoryTablesConfig
from repairgym.errors import ConfigError, InputError
from repairgym.ledger import Branch
from repairgym.records import VerdictKind
from repairgym.studies.trajectory_tables import export_run


@pytest.fixture
def filled(store, trajectory_maker):
    """A group of three and a group of equal rewards, stored in no order, and one evaluated trajectory."""
    for index, kind in [(2, "failed"), (0, "passed"), (1, "invalid")]:
        one = trajectory_maker(f"a#{index}", "task-a", group_id="a", kind=VerdictKind(kind))
        store.add_trajectory(one, phase="rl", step=0, split="train")
    for index in range(2):
        one = trajectory_maker(f"b#{index}", "task-b", group_id="b")
        store.add_trajectory(one, phase="rl", step=0, split="train")
    store.add_trajectory(trajectory_maker("e#0", "task-e", group_id="e"), phase="eval/x/y", step=0, split="test")
    return store


def test_trajectories_come_out_bit_for_bit(filled, tmp_path):
    assert export_run(filled, tmp_path / "t.parquet", TrajectoryTablesConfig(layout="parquet")) == 6
    rows = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert [row["id"] for row in rows] == ["e#0", "a#0", "a#1", "a#2", "b#0", "b#1"]
    for row in rows:
        stored = filled.trajectory(row["id"])
        for name in ("token_id", "is_action", "log_prob", "policy_version"):
            array = getattr(stored.ledger, name)
            assert np.array_equal(np.asarray(row[name], array.dtype), array)
        assert [turn["action"] for turn in row["turns"]] == [turn.action for turn in stored.turns]
        assert json.loads(row["verdict_json"])["kind"] == row["verdict"] == stored.verdict.kind
        assert {one["stage"]: one["seconds"] for one in row["durations"]} == stored.durations_s
    assert [row["reward"] for row in rows] == [1.0, 1.0, None, 0.0, 1.0, 1.0]


def test_a_data_set_folder_has_a_shard_per_split(filled, tmp_path):
    assert export_run(filled, tmp_path / "out", TrajectoryTablesConfig()) == 6
    files = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.parquet"))
    assert files == ["data/test-00000-of-00001.parquet", "data/train-00000-of-00001.parquet"]
    with pytest.raises(InputError, match="not empty"):
        export_run(filled, tmp_path / "out", TrajectoryTablesConfig())


def test_samples_are_those_of_an_update(filled, tmp_path):
    num_rows = export_run(
        filled, tmp_path / "s.parquet", TrajectoryTablesConfig(what="samples", layout="parquet", phase="rl")
    )
    rows = pyarrow.parquet.read_table(tmp_path / "s.parquet").to_pylist()
    # The invalid member has no reward and the group of equal ones teaches nothing.
    assert num_rows == 2
    assert [(row["trajectory_id"], row["advantage"]) for row in rows] == [
        ("a#0", pytest.approx(1.0, abs=1e-4)),
        ("a#2", pytest.approx(-1.0, abs=1e-4)),
    ]
    ledger = filled.trajectory("a#0").ledger
    weight = np.asarray(rows[0]["weight"])
    assert np.array_equal(weight > 0, ledger.is_action)
    assert np.array_equal(np.asarray(rows[0]["old_log_prob"], np.float32)[weight > 0], ledger.log_prob[weight > 0])


def test_advantages_are_those_of_the_whole_iteration(store, trajectory_maker, tmp_path):
    """reinforce_pp over equally long episodes of rewards (1, 0, 0, 0), (1, 1, 1, 0) and (1, 1, 1, 1): mean 2/3."""
    for name, rewards in {"a": "1000", "b": "1110", "c": "1111"}.items():
        for number, reward in enumerate(rewards):
            kind = VerdictKind.PASSED if reward == "1" else VerdictKind.FAILED
            one = trajectory_maker(f"{name}#{number}", f"task-{name}", group_id=name, kind=kind)
            store.add_trajectory(one, phase="rl", step=3, split="train")
    config = TrajectoryTablesConfig.model_validate(
        {"what": "samples", "layout": "parquet", "phase": "rl", "algorithm": {"advantage": {"type": "reinforce_pp"}}}
    )
    assert export_run(store, tmp_path / "s.parquet", config) == 12
    rows = pyarrow.parquet.read_table(tmp_path / "s.parquet").to_pylist()
    better, worse = 0.5**0.5, -(2.0**0.5)
    expected = [better, worse, worse, worse, better, better, better, worse, *[better] * 4]
    assert [row["advantage"] for row in rows] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["state_value", "tree_grpo", "tree_rl", "gae", "self_distillation"])
def test_advantages_that_are_no_number_are_rejected(kind, filled, tmp_path):
    algorithm = {"advantage": {"type": kind}, **({"loss": {"type": "ppo"}} if kind == "gae" else {})}
    config = TrajectoryTablesConfig.model_validate({"what": "samples", "phase": "rl", "algorithm": algorithm})
    with pytest.raises(ConfigError, match=f"advantage.type='{kind}' gives an advantage to each t"):
        export_run(filled, tmp_path / "out", config)
    assert not (tmp_path / "out").exists()


def test_a_forked_history_keeps_its_branches(store, trajectory_maker, tmp_path):
    one = trajectory_maker()
    branches = (Branch(0, ((0, 9),)), Branch(9, ((0, 3), (9, len(one.ledger)))))
    store.add_trajectory(replace(one, ledger=replace(one.ledger, branches=branches)), phase="rl", step=0, split="train")
    export_run(store, tmp_path / "t.parquet", TrajectoryTablesConfig(layout="parquet"))
    (row,) = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert row["branches"][1] == {"start": 9, "spans": [[0, 3], [9, len(one.ledger)]]}


def test_what_cannot_be_exported_is_an_error_before_anything_is_written(filled, tmp_path):
    with pytest.raises(ConfigError, match="phase=rl"):
        export_run(filled, tmp_path / "out", TrajectoryTablesConfig(what="samples"))
    with pytest.raises(InputError, match=r"no trajectory of phase 'rollout'; its phases: eval/x/y, rl"):
        export_run(filled, tmp_path / "out", TrajectoryTablesConfig(phase="rollout"))
    with pytest.raises(InputError, match="is a folder"):
        export_run(filled, tmp_path, TrajectoryTablesConfig(layout="parquet"))
    assert not (tmp_path / "out").exists()
