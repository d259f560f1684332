"""Quick starts of outside clients, each run by an environment that has the client and nothing of this project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.quickstarts

HERE = Path(__file__).parent
PYTHON = HERE.parents[2] / ".venv-quickstarts" / "bin" / "python"
CLIENTS = sorted(path.stem.removeprefix("run_") for path in HERE.glob("run_*.py"))
NAMES = ["claude-sonnet-4-20250514", "claude-sonnet-4-5", "gpt-6-luna", "gpt-6.1-sol"]
LAUNCH = "import sys; from repairgym.cli.main import main; main(sys.argv[1:])"
SERVE = ["-c", LAUNCH, "serve", "port=0", "model_name=gpt-4o", f"model_aliases={json.dumps(NAMES)}"]
MODEL = [*SERVE, "default_reply_tokens=48", "engine.max_len_tokens=4090"]


@contextmanager
def started(arguments: list[str]) -> Iterator[str]:
    """The address of a server of this project, without ``/v1``."""
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            yield next(word for word in words if word.startswith("http")).removesuffix("/v1")
        finally:
            process.kill()


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """Kind of quick start -> address of what it talks to."""
    with started(MODEL) as model, started([str(HERE / "scripted_server.py")]) as script:
        yield {"model": model, "agent": script}


@pytest.mark.parametrize("kind", ["model", "agent"])
@pytest.mark.parametrize("client", CLIENTS)
def test_quick_starts_run_unchanged(addresses: dict[str, str], client: str, kind: str) -> None:
    url = addresses[kind]
    environment = os.environ | {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "any",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "any",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [str(PYTHON), str(HERE / f"run_{client}.py"), kind]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"name"')]
    assert rows, run.stderr[-4000:]
    assert {row["name"]: row["error"] for row in rows} == {row["name"]: "" for row in rows}
