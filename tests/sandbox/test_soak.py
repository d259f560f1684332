"""A short form of `benchmarks/sandbox_soak.py`: nothing grows, whatever is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_nothing_grows():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    script = ROOT / "benchmarks" / "sandbox_soak.py"
    done = subprocess.run(
        [sys.executable, str(script), "--cycles", "200"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
