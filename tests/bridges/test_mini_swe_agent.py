"""mini-swe-agent, as it comes from PyPI, on a task made here, against a real server, graded."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPAIRGYM = [sys.executable, "-c", "import sys; from repairgym.cli.main import main; main(sys.argv[1:])"]


def run(*command: str | Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.network
@pytest.mark.slow
def test_it_repairs_our_tasks_and_is_graded(tmp_path: Path) -> None:
    tasks, out = tmp_path / "tasks", tmp_path / "out"
    build = ('packages=["inflection"]', 'sources=["mutations"]', "mutations.num_per_package=2", "num_workers=1")
    run(*REPAIRGYM, "tasks", "build", tasks, *build)
    venv.create(tmp_path / "mini", with_pip=True)
    run(tmp_path / "mini" / "bin" / "pip", "install", "-q", "mini-swe-agent", "mcp")
    serve = [*REPAIRGYM, "serve", "--policy", "shell-oracle", "--tasks", str(tasks), "port=0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[3]
            mini = tmp_path / "mini" / "bin" / "mini"
            script = [sys.executable, ROOT / "examples" / "mini_swe_agent.py", tasks, out, "--mini", mini]
            run(*script, "--base-url", url, "--model", "shell-oracle", "--num-tasks", "1")
        finally:
            server.terminate()
    said = run(*REPAIRGYM, "grade", tasks, out / "preds.json")
    assert said.startswith("1 resolved, 0 failed")
    imported = run(
        *REPAIRGYM, "trajectories", "import", tmp_path / "run", out, "--tasks", tasks, "--graded", out / "preds-graded"
    )
    assert imported.startswith("1 trajectories stored (1 passed)")
