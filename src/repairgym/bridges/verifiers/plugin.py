"""Our tasks as a taskset of verifiers, our agent as its harness and environment: our sandboxes, verifiers' model calls.

Harnesses of verifiers play them as well, in our sandbox as their runtime (`SandboxRuntime`).

Guarantees:

- The data of a task, which verifiers writes into every trace, hold the issue text and the id, never the gold patch or
  hidden tests.
- The reward is our grader's verdict; an invalid episode is a `SandboxError`, which verifiers retries up to
  `NUM_RETRIES` times with a new trace and never scores.
- Code of the task, and of an agent, runs in our sandboxes only, never in verifiers' runtime (a plain subprocess that
  runs nothing); sandboxes live as long as verifiers serves the environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import verifiers.v1 as vf
from pydantic_config import BaseConfig
from verifiers.v1.runtimes.subprocess import SubprocessRuntimeInfo

from repairgym.agent.scripted import ScriptedPolicy
from repairgym.bridges.verifiers.boxes import Box, script_requirements
from repairgym.bridges.verifiers.episodes import InterceptedPolicy, close_runners, find_task, open_runner
from repairgym.config.loading import load_config
from repairgym.config.models import EndpointConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.selection import DataSetSelection
from repairgym.errors import ConfigError, RepairGymError
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.loading import shipped_base
from repairgym.records import Verdict, VerdictKind
from repairgym.rollout.external.agents import LAYER
from repairgym.tasks.selection import select_tasks
from repairgym.tasks.store import TaskStore

PLUGIN_ID = "repairgym-verifiers"
NUM_RETRIES = 2
_NUM_ATTEMPTS = 4
_UNBOUNDED_S = 1e6
"""Both of one model call; verifiers sets its time limit."""
INFO_KEY = "repairgym"
"""Key of the episode's result in a trace's ``info``."""


class SandboxConfig(BaseConfig):
    """Says of a runtime that it is ours."""

    type: Literal["repairgym"] = "repairgym"


class SandboxRuntime(vf.Runtime):
    """Our sandbox of one task, for one run of a harness."""

    is_local = True

    def __init__(self, box: Box) -> None:
        super().__init__()
        self.config = SandboxConfig()
        # What a trace can hold is one of verifiers' own kinds; the id says which sandbox it was.
        self.info = SubprocessRuntimeInfo(id=f"repairgym-sandbox:{self.name}")
        self.box = box

    async def start(self) -> None:
        """Do nothing: the sandbox starts with its first command."""

    async def teardown(self) -> None:
        """End the sandbox."""
        await self.box.close()

    async def run(self, argv: list[str], env: dict[str, str]) -> vf.ProgramResult:
        """Run a command in the tree; `vf.SandboxError` where the sandbox is lost."""
        with _sandbox_errors():
            done = await self.box.run(tuple(argv), self.process_env(env))
        status = done.exit_status if done.exit_status is not None else 128 + (done.signal or 0)
        said = done.stderr.decode(errors="replace") + ("\nout of time" if done.is_timed_out else "")
        return vf.ProgramResult(status, done.stdout.decode(errors="replace"), said)

    async def prepare_uv_script(
        self, script: str | bytes, env: dict[str, str] | None = None, *, activate: bool = True
    ) -> list[str]:
        """Install what a script needs into a layer, write the script, and return its command."""
        text = script if isinstance(script, str) else script.decode()
        path = f"{self.scripts_dir}/{sha256(text.encode()).hexdigest()}.py"
        with _sandbox_errors():
            if requirements := script_requirements(text):
                await self.box.install(requirements)
            await self.box.write(path, text.encode())
        return [f"{LAYER}/bin/python" if requirements else "python3", path]

    async def write(self, path: str, data: bytes) -> None:
        """Write a file."""
        with _sandbox_errors():
            await self.box.write(path, data)

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        with _sandbox_errors():
            return await self.box.read(path, max_bytes)

    def host_url(self, url: str) -> str:
        """Return where the sandbox reaches ``url`` of this machine."""
        return self.box.forward(url)

    async def prepare_execution(self, routes: list[str] | None) -> None:
        """Open the ways to the model and to tool servers, just before the agent starts."""
        with _sandbox_errors():
            await self.box.open_ports()


@contextmanager
def _sandbox_errors() -> Iterator[None]:
    """Turn our errors into verifiers' `SandboxError`, which never scores."""
    try:
        yield
    except RepairGymError as error:
        raise vf.SandboxError(str(error)) from error


class RepairData(vf.TaskData):
    """The data of a task for verifiers; its ``prompt`` is the issue text."""

    tasks: Path
    """Folder that holds the task; ``id`` names it there."""


class RepairTask(vf.Task[RepairData]):
    """One task."""

    @property
    def key(self) -> str:
        """Return the task's id."""
        return str(self.data.id)

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Grade the tree that another harness left; ours has graded its episode already."""
        if not isinstance(runtime, SandboxRuntime):
            return
        verdict, patch = await runtime.box.grade()
        if not verdict.is_valid:
            raise vf.SandboxError(f"the episode is invalid: {verdict.reason}")
        trace.info[INFO_KEY] = _describe(verdict, patch) | {"num_turns": trace.num_turns}

    @vf.reward
    async def repaired(self, trace: vf.Trace) -> float:
        """Return 1.0 when the verdict is *passed*, else 0.0; without a verdict verifiers records a `KeyError`."""
        return float(trace.info[INFO_KEY]["reward"])

    @vf.metric
    async def exploited(self, trace: vf.Trace) -> float:
        """Return 1.0 when the verdict is *exploited*, else 0.0."""
        return float(trace.info[INFO_KEY]["verdict"] == VerdictKind.EXPLOITED.value)

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Return whether the oracle's repair passes (`vf-validate`)."""
        task = find_task(self.data.tasks, self.key)
        runner = open_runner(RolloutConfig(), shipped_base())
        trajectory = await runner.run(task, ScriptedPolicy("oracle", runner.renderer), f"validate/{task.id}")
        return trajectory.verdict.kind is VerdictKind.PASSED


class RepairTasksetConfig(vf.TasksetConfig):
    """Selection of tasks."""

    tasks: Path = Path("tasks")
    """Folder of `repairgym tasks build`."""
    select: DataSetSelection = DataSetSelection()
    """``splits`` of ``test`` and ``validation`` are for evaluation only."""


class RepairTaskset(vf.Taskset[RepairTask, RepairTasksetConfig]):
    """The chosen tasks, in an order that mixes the packages."""

    def load(self) -> Iterator[RepairTask]:
        """Yield one `RepairTask` per task; `InputError` or `ConfigError` where there is none."""
        folder = self.config.tasks.absolute()
        for task in select_tasks(TaskStore(folder).load(), self.config.select).tasks:
            yield RepairTask(RepairData(id=task.id, prompt=task.issue, tasks=folder), self.config.task)


class RepairHarnessConfig(vf.HarnessConfig):
    """Configuration of episodes."""

    id: vf.ID = PLUGIN_ID
    rollout: Path | None = None
    """TOML file of a `RolloutConfig`: pipeline, limits, grading, sandbox; None: its defaults."""
    overrides: list[str] = []
    """``a.b=value`` over that file, e.g. ``pipeline.max_turns=20``."""
    tokenizer: Path | None = None
    """Model folder of the tokenizer for our record and its limits; None: the shipped base's."""

    def rollout_config(self) -> RolloutConfig:
        """Return the configuration with one attempt per episode: verifiers retries, with a new trace."""
        return load_config(RolloutConfig, self.rollout, self.overrides).model_copy(update={"max_attempts": 1})


class RepairHarness(vf.Harness[RepairHarnessConfig]):
    """Runs one episode and grades it, in this process."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: RepairData,
    ) -> vf.ProgramResult:
        """Run the episode of ``data`` with the model behind ``endpoint``; `vf.SandboxError` if it is invalid."""
        if data.system_prompt is not None or mcp_urls:
            raise ValueError(
                "system prompts and tools of our agent come from its pipeline: set "
                "harness.overrides=['pipeline.system_prompt=...'] instead"
            )
        runner = open_runner(self.config.rollout_config(), self.config.tokenizer or shipped_base())
        task = find_task(data.tasks, str(data.id))
        server = EndpointConfig(
            base_url=endpoint, model=ctx.model, has_seed=False, timeout_s=_UNBOUNDED_S, max_attempts=_NUM_ATTEMPTS
        )
        async with EndpointClient(server, key=secret) as client:
            policy = InterceptedPolicy(client, runner.renderer, lambda: trace.stop_condition is not None)
            trajectory = await runner.run(task, policy, trace.id)
        verdict = trajectory.verdict
        if not verdict.is_valid:
            raise vf.SandboxError(f"the episode is invalid: {verdict.reason}")
        trace.info[INFO_KEY] = _describe(verdict, trajectory.final_patch) | {
            "stop_reason": trajectory.stop_reason.value,
            "num_turns": len(trajectory.turns),
        }
        return vf.ProgramResult(0, "", "")


def _describe(verdict: Verdict, patch: str) -> dict[str, Any]:
    return {"verdict": verdict.kind.value, "reward": verdict.reward, "reason": verdict.reason, "patch": patch}


class RepairEnvConfig(vf.EnvConfig):
    """One seat: the agent that is evaluated or trained."""

    rollout: Path | None = None
    """TOML file of a `RolloutConfig` for harnesses of verifiers: sandbox, grading, ``pipeline.time_limit_s``; ours has
    its own setting of this name."""
    overrides: list[str] = []
    """``a.b=value`` over that file."""

    agent: vf.AgentConfig = vf.AgentConfig(
        runtime=vf.SubprocessConfig(),
        retries=vf.RetryConfig(rules=[vf.RetryRule(type="SandboxError", max_retries=NUM_RETRIES)]),
    )


class RepairEnv(vf.Env[RepairEnvConfig]):
    """One agent on one task."""

    async def run(self, task: RepairTask, agents: vf.Agents) -> None:
        """Run one episode; `ConfigError` for settings that this harness would ignore."""
        agent, config = agents.agent, self.config
        if agent.harness.config.id == PLUGIN_ID:
            if config.rollout or config.overrides:
                raise ConfigError("env.rollout and env.overrides are for other harnesses; use env.agent.harness.*")
            await agent.run(task)
            return
        if not isinstance(config.agent.runtime, vf.SubprocessConfig):
            raise ConfigError(
                f"env.agent.runtime.type={config.agent.runtime.type!r}: agents on these tasks run in our sandbox; "
                "leave it out"
            )
        runner = open_runner(load_config(RolloutConfig, config.rollout, config.overrides), shipped_base())
        runtime = SandboxRuntime(runner.open_box(find_task(task.data.tasks, task.key)))
        try:
            await agent.run(task, runtime=runtime)
        finally:
            await runtime.stop()

    async def stop(self) -> None:
        """End the sandboxes."""
        await close_runners()
