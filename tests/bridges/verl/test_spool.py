"""Trajectories on their way to the run store: read exactly as written."""

import numpy as np

from repairgym.bridges.verl.spool import SpooledTrajectory, read_spool, write_spool
from repairgym.records import VerdictKind


def test_trajectories_are_read_from_the_spool_as_written(trajectory_maker, tmp_path):
    written = [SpooledTrajectory(trajectory_maker(f"t-{k}", seed=k), "rl", k, "train") for k in range(3)]
    written.append(SpooledTrajectory(trajectory_maker("t-3", kind=VerdictKind.INVALID), "rl", 0, "train"))
    for spooled in written:
        write_spool(tmp_path, spooled)
    read = [spooled for _, spooled in read_spool(tmp_path)]
    assert [(f.trajectory.id, f.phase, f.step, f.split) for f in read] == [
        (f.trajectory.id, f.phase, f.step, f.split) for f in written
    ]
    for before, after in zip(written, read, strict=True):
        assert np.array_equal(before.trajectory.ledger.log_prob, after.trajectory.ledger.log_prob)
        assert before.trajectory.verdict == after.trajectory.verdict
        assert before.trajectory.durations_s == after.trajectory.durations_s
        assert before.trajectory.final_files == after.trajectory.final_files
