"""Kill -9 at random moments of an RL run: same trajectories, none twice, none lost, same weights bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "kill_and_resume.py"


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_like_an_unbroken_one():
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[1] / "src")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills", "20"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["runs killed"] == 20
    assert found["num_trajectories"] >= 32  # four iterations of at least two groups of four
