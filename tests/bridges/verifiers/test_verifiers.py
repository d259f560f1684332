"""verifiers runs our tasks: through its own loader, environment and interception server, against our own server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.verifiers, pytest.mark.network]
ROOT = Path(__file__).resolve().parents[3]
MEND = [sys.executable, "-c", "import sys; from mendwright.cli.main import main; main(sys.argv[1:])"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real tasks."""
    folder = tmp_path_factory.mktemp("built") / "tasks"
    build = ('packages=["inflection"]', 'sources=["mutations"]', "mutations.num_per_package=2", "num_workers=1")
    subprocess.run([*MEND, "tasks", "build", str(folder), *build], check=True, env=ENVIRONMENT)
    return folder


@pytest.fixture
def serve(tasks: Path) -> Iterator:
    """``serve(policy)``: the base URL of a script behind `mend serve`."""
    started: list[subprocess.Popen[str]] = []

    def start(policy: str) -> str:
        command = [*MEND, "serve", "--policy", policy, "--tasks", str(tasks), "port=0"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT))
        stdout = started[-1].stdout
        assert stdout is not None
        return stdout.readline().split()[3]

    yield start
    for server in started:
        server.terminate()
        server.wait()


def example(tasks: Path, url: str, model: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / "verifiers_eval.py"), str(tasks), "--base-url", url]
    command += ["--model", model, "--split", "train", "--num-samples", "1", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


@pytest.mark.parametrize(("policy", "pass_at_1"), [("oracle", "1.000"), ("submit-at-once", "0.000")])
def test_rewards_are_verdicts(tasks: Path, serve, policy: str, pass_at_1: str) -> None:
    done = example(tasks, serve(policy), policy, "pipeline.max_len_tokens=16000", "engine.max_len_tokens=16000")
    assert done.returncode == 0, done.stderr
    assert f"Pass@1 {pass_at_1} over 2 valid episodes of 2" in done.stdout


def test_a_dead_server_is_an_error_and_no_reward(tasks: Path) -> None:
    done = example(tasks, "http://127.0.0.1:9/v1", "nobody", "--num-tasks", "1")
    assert done.returncode == 1
    assert "reward None" in done.stdout
    assert "none of 1 episodes has a verdict" in done.stderr


def test_the_taskset_is_found_by_its_id_and_says_nothing_of_the_repair(tasks: Path) -> None:
    from verifiers.v1.utils.loaders import load_taskset, resolve_env_config

    config = resolve_env_config({"taskset": {"id": "mendwright-verifiers", "tasks": str(tasks), "split": "train"}})
    found = list(load_taskset(config.taskset))
    assert len(found) == 2
    for task in found:
        assert set(task.data.model_dump(exclude_defaults=True)) == {"idx", "id", "prompt", "tasks"}
    assert config.agent.runtime.type == "subprocess"


def test_tasks_are_validated_by_the_oracle(tasks: Path) -> None:
    from mendwright.bridges.verifiers.running import close_runners
    from mendwright_verifiers import RepairTaskset, RepairTasksetConfig

    async def validate() -> bool:
        task = next(iter(RepairTaskset(RepairTasksetConfig(tasks=tasks))))
        try:
            return await task.validate(None)
        finally:
            await close_runners()

    assert asyncio.run(validate())
