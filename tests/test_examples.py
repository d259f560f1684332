"""The examples stay short, and the shortest one runs."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(("name", "max_lines"), [("hello", 45), ("your_package", 60), ("rl_loop", 250)])
def test_examples_fit_their_size(name, max_lines):
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= max_lines
    assert not [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]


@pytest.mark.network
@pytest.mark.slow
def test_hello_runs(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / "hello.py"), str(tmp_path / "hello")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    assert "graded again in a fresh process and sandbox: passed" in result.stdout
