"""Kill -9 at random moments of an RL run: same trajectories, none twice, none lost, same weights bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "kill_and_resume.py"


@pytest.mark.parametrize("num_kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_run_ends_like_an_unbroken_one(num_kills):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[1] / "src")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills", str(num_kills)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["num_kills"] == num_kills
    assert found["num_trajectories"] >= 32  # four iterations of at least two groups of four
