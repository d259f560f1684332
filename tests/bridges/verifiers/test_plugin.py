"""verifiers runs our tasks through its own loader, environment and interception server, against our model server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer

pytestmark = [pytest.mark.verifiers, pytest.mark.network]
ROOT = Path(__file__).resolve().parents[3]
NUM_TASKS = 2
LONG = ["pipeline.max_len_tokens=16000", "engine.max_len_tokens=16000", "pipeline.max_action_tokens=8000"]
"""The oracle writes whole files."""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real tasks: those of the folder in ``REPAIRGYM_TEST_TASKS``, or of a package that is fetched."""
    if given := os.environ.get("REPAIRGYM_TEST_TASKS"):
        return Path(given)
    folder = tmp_path_factory.mktemp("built") / "tasks"
    command = [sys.executable, "-c", "import sys; from repairgym.cli.main import main; main(sys.argv[1:])"]
    build = ('packages=["funcy"]', 'sources=["mutations"]', "mutations.num_per_package=2", "num_workers=1")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([*command, "tasks", "build", str(folder), *build], check=True, env=environment)
    return folder


@pytest.fixture
def serve(tasks: Path) -> Iterator:
    """``serve(script)``: base URL of a scripted policy behind our server, in a thread of this process."""
    import uvicorn

    from repairgym.agent.pipelines.registry import make_pipeline
    from repairgym.config.agent import ShellScriptConfig
    from repairgym.config.commands import ServeConfig
    from repairgym.config.pipeline import PipelineConfig
    from repairgym.sandbox.cache import ExecutionCache
    from repairgym.serving.app import ModelServer
    from repairgym.serving.models import ScriptModel
    from repairgym.serving.scripts import make_script
    from repairgym.tasks.store import TaskStore

    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(script: str) -> str:
        pipeline = make_pipeline(PipelineConfig(), ExecutionCache())
        answer = make_script(script, TaskStore(tasks).load(), pipeline, ShellScriptConfig())
        model = ScriptModel(answer, ChatRenderer(load_tokenizer(shipped_base())))
        app = ModelServer(model, script, ServeConfig()).app()
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
        running.append((server, threading.Thread(target=server.run)))
        running[-1][1].start()
        while not server.started:
            running[-1][1].join(0.1)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join()


def play(tasks: Path, url: str, model: str, num_tasks: int = NUM_TASKS) -> list:
    """Traces of one episode per task."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    harness = {"id": "repairgym-verifiers", "overrides": LONG}
    taskset = {"id": "repairgym-verifiers", "tasks": str(tasks)}
    env = load_environment(resolve_env_config({"taskset": taskset, "agent": {"harness": harness}}))
    context = vf.ModelContext(model=model, client=vf.EvalClientConfig(base_url=url, api_key_var="NONE"))

    async def run() -> list:
        async with env.serving():
            slots = [slot for task in env.taskset.take(num_tasks) for slot in env.slots(task)]
            episodes = await asyncio.gather(*(env.run_slot(slot, context) for slot in slots))
        return [trace for episode in episodes for trace in episode.traces]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("script", "verdict", "reward"), [("oracle", "passed", 1.0), ("submit-at-once", "failed", 0.0)]
)
def test_rewards_are_verdicts(tasks: Path, serve, script: str, verdict: str, reward: float) -> None:
    traces = play(tasks, serve(script), script)
    assert [trace.last_error for trace in traces] == [None] * NUM_TASKS
    assert [trace.info["repairgym"]["verdict"] for trace in traces] == [verdict] * NUM_TASKS
    assert [trace.reward for trace in traces] == [reward] * NUM_TASKS
    assert all(trace.num_turns == trace.info["repairgym"]["num_turns"] for trace in traces)
    assert all(trace.num_branches == 1 for trace in traces)  # each prompt extends the previous one


def test_a_dead_server_is_an_error_and_no_reward(tasks: Path) -> None:
    (trace,) = play(tasks, "http://127.0.0.1:9/v1", "nobody", num_tasks=1)
    assert not trace.ok
    assert trace.last_error.type == "ProviderError"
    assert not any(trace.rewards.values())


def test_the_taskset_loads_by_its_id_and_hides_the_repair(tasks: Path) -> None:
    from verifiers.v1.utils.loaders import load_taskset, resolve_env_config

    config = resolve_env_config({"taskset": {"id": "repairgym-verifiers", "tasks": str(tasks)}})
    for task in load_taskset(config.taskset).take(NUM_TASKS):
        assert set(task.data.model_dump(exclude_defaults=True)) == {"idx", "id", "prompt", "tasks"}
    assert config.agent.runtime.type == "subprocess"


def test_tasks_are_validated_by_the_oracle(tasks: Path) -> None:
    from repairgym.bridges.verifiers.episodes import close_runners
    from repairgym_verifiers import RepairTaskset, RepairTasksetConfig

    async def validate() -> bool:
        task = next(iter(RepairTaskset(RepairTasksetConfig(tasks=tasks))))
        try:
            return await task.validate(None)
        finally:
            await close_runners()

    assert asyncio.run(validate())


def test_the_example_evaluates(tasks: Path, serve) -> None:
    command = [sys.executable, str(ROOT / "examples" / "verifiers_eval.py"), str(tasks), *LONG]
    command += ["--base-url", serve("oracle"), "--model", "oracle", "--split", "train"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, "--num-tasks", "1", "--num-samples", "1"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Pass@1 1.000 over 1 valid episodes of 1" in done.stdout
