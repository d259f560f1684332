from __future__ import annotations

import pytest

from repairgym.errors import InputError
from repairgym.report.comparison import write_comparison
from repairgym.rollout.store import RunStore


def test_runs_are_compared_side_by_side(synthetic_run, tmp_path, trajectory_maker):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.toml").write_text('seed = 2\n[rl]\nlr = 1e-4\nlosses = ["rl"]\n')
    with RunStore.create(other / "run.db") as store:
        for index in range(12):
            one = trajectory_maker(f"x{index}", f"mut-{index:03d}", group_id=f"mut-{index:03d}")
            store.add_trajectory(one, phase="eval/rl/test-mutations", step=0, split="test")
    page = write_comparison([synthetic_run, other], tmp_path / "out" / "comparison.html").read_text()
    assert "RL of other solves more than RL of run on 12 held-out mutation tasks" in page
    assert "<td><code>seed</code></td>" in page
    assert "rl.lr" not in page
    with pytest.raises(InputError, match="expected two or more with different names"):
        write_comparison([other, other], tmp_path / "x.html")
