from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from repairgym.cli.tasks import read_solve_rates
from repairgym.errors import InputError
from repairgym.records import Trajectory, VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.tasks.solve_rates import SolveRate


def test_solve_rates_leave_invalid_samples_out(tmp_path: Path, trajectory_maker: Callable[..., Trajectory]) -> None:
    kinds = [VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.EXPLOITED, VerdictKind.INVALID]
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        with RunStore.create(tmp_path / run / "run.db") as store:
            for number, kind in enumerate(kinds):
                one = trajectory_maker(f"{run}-{number}", "solved", kind=kind)
                store.add_trajectory(one, phase="rl", step=0, split="train")
            other = trajectory_maker(f"{run}-x", "invalid", kind=VerdictKind.INVALID, group_id="g2")
            store.add_trajectory(other, phase="rl", step=0, split="train")
    rates = read_solve_rates([tmp_path / "a", tmp_path / "b"], "rl")
    assert rates == {"solved": SolveRate(num_passed=2, num_valid=6)}
    with pytest.raises(InputError, match="phase own"):
        read_solve_rates([tmp_path / "a"], "own")
