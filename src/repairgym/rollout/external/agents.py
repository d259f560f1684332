"""Episodes of black-box agents: a program of others in the sandbox of the task, with the gateway as its model.

Reads an `ExternalAgentConfig`; makes an :class:`~repairgym.agent.episode.Episode` with the exact token ledger.
Guarantees: the program reaches nothing but the gateway of its own episode; a failure of the policy or the sandbox is
infrastructure, and so is an agent that ends before it has asked anything; an agent that ends with an error afterwards
has failed, and its changes are not graded; one that the time limit ends is not graded where infrastructure took more
than a tenth of its time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from repairgym.agent.episode import Episode
from repairgym.agent.guest import stdio_client
from repairgym.agent.tools.base import ToolContext
from repairgym.agent.tools.repository import make_repository
from repairgym.agent.tools.workspace import Files, Workspace
from repairgym.config.agent import ExternalAgentConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.errors import (
    ConfigError,
    ModelServerError,
    RepairInSightError,
    SandboxContentError,
    SandboxError,
    ServerRejectedError,
    install_hint,
)
from repairgym.inference.base import Policy
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import AgentRun, StopReason, Task
from repairgym.sandbox.base import ExecResult, Sandbox, SandboxSpec
from repairgym.serving.gateway import EpisodeModel, open_gateway
from repairgym.tasks.layers.agents import agent_layer, has_distribution
from repairgym.tasks.layers.store import LayerStore

PORT = 47_111
_URL = f"http://127.0.0.1:{PORT}"
_HOME, LAYER = "/tmp", "/opt/agent"
_PATH = f"/opt/env/bin:/usr/local/bin:/usr/bin:/bin:{LAYER}/bin:{LAYER}/node_modules/.bin"
"""The environment of the task comes first: ``python`` is the project's, not the agent's."""
_KEY = "gateway"
_ENVIRONMENT = {
    "PATH": _PATH,
    "OPENAI_BASE_URL": f"{_URL}/v1",
    "OPENAI_API_KEY": _KEY,
    "ANTHROPIC_BASE_URL": _URL,
    "ANTHROPIC_API_KEY": _KEY,
}
_WRITE = 'mkdir -p "$(dirname "$1")" && cat > "$1"'
_WRITE_TIMEOUT_S = 30.0
_NUM_REASON_CHARS = 500
_MAX_WAIT_SHARE = 0.1
"""Of the time limit: the clock of a program cannot be stopped while its model waits for a place."""


class ExternalAgent:
    """One configured agent of others; holds nothing of an episode."""

    def __init__(self, config: ExternalAgentConfig, renderer: ChatRenderer, store: LayerStore | None) -> None:
        """Install nothing yet; ConfigError where the extra `serve` is missing."""
        if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
            raise ConfigError(f"agent.type='external' needs {' and '.join(missing)}: {install_hint('serve')}")
        self._config = config
        self._renderer = renderer
        self._store = store
        self._layer: asyncio.Future[Path] | None = None

    async def workspace(
        self,
        task: Task,
        tree: Path,
        spec: Callable[[Files], SandboxSpec],
        create: Callable[[SandboxSpec], Awaitable[Sandbox]],
    ) -> Workspace:
        """Return the files of an episode; their sandbox shows the agent. RepairInSightError: also the repair."""
        mounts: dict[str, Path] = {}
        if self._config.requirements or self._config.npm:
            layer = await self._install()
            check_unseen(layer, task, "the agent's environment holds")
            mounts[LAYER] = layer

        async def make(files: Files) -> Sandbox:
            return await create(spec(files).model_copy(update={"mounts": mounts}))

        return Workspace(tree, task.base_files, make, make_repository if self._config.has_git else None)

    async def _install(self) -> Path:
        # Episodes share one installation; what failed (an index that did not answer) is tried again by the next one.
        if self._layer is None or (self._layer.done() and (self._layer.cancelled() or self._layer.exception())):
            store = self._store or LayerStore()
            work = asyncio.to_thread(agent_layer, store, self._config.requirements, self._config.npm)
            self._layer = asyncio.ensure_future(work)
        return await asyncio.shield(self._layer)

    async def run(
        self,
        session_id: str,
        context: ToolContext,
        policy: Policy,
        limits: PipelineConfig,
        *,
        seed: int,
        temperature: float,
    ) -> Episode:
        """Run one episode; see :meth:`repairgym.agent.pipelines.base.EpisodeRunner.run`."""
        model = EpisodeModel(policy, self._renderer, limits, session_id=session_id, seed=seed, temperature=temperature)
        try:
            sandbox = await context.workspace.sandbox()
            started = time.monotonic()
            words = _words(context.task, limits)
            await self._write_files(sandbox, words)
            async with open_gateway(model, await sandbox.listen(PORT)):
                done = await context.workspace.run_program(
                    self._argv(words),
                    env=_ENVIRONMENT | {name: _fill(text, words) for name, text in self._config.env.items()},
                    timeout_s=limits.time_limit_s,
                )
                waited_s = model.waited_s()
        finally:
            await policy.end_session(session_id)
        if isinstance(model.failure, ServerRejectedError):
            raise model.failure
        tool_s = max(0.0, time.monotonic() - started - model.generate_s)
        durations_s = {"generate": model.generate_s, "tool": tool_s}
        if done.is_timed_out and waited_s > _MAX_WAIT_SHARE * limits.time_limit_s:
            model.failure = ModelServerError(
                f"the time limit of {limits.time_limit_s:g} s ended the agent after {waited_s:.1f} s "
                "of waits for its model"
            )
        return await self._end(model, done, context, limits, durations_s)

    async def _end(
        self,
        model: EpisodeModel,
        done: ExecResult,
        context: ToolContext,
        limits: PipelineConfig,
        durations_s: dict[str, float],
    ) -> Episode:
        stop_reason, failure = _stop_reason(model, done), ""
        if model.failure is not None:
            stop_reason, failure = StopReason.INFRASTRUCTURE, str(model.failure)
        elif not model.turns:
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-_NUM_REASON_CHARS:]
            failure = f"the agent asked its model nothing and ended with exit status {done.exit_status}: {said}"
            stop_reason = StopReason.INFRASTRUCTURE
        is_graded = stop_reason is StopReason.SUBMITTED or (
            stop_reason is not StopReason.AGENT_FAILED and limits.is_unsubmitted_scored
        )
        return Episode(
            turns=tuple(model.turns),
            ledger=model.histories.ledger.build(),
            stop_reason=stop_reason,
            files=await _changes(context.workspace) if is_graded else {},
            durations_s=durations_s,
            failure=failure,
            agent_run=self._describe(model, done),
        )

    def _describe(self, model: EpisodeModel, done: ExecResult) -> AgentRun:
        num = self._config.max_output_chars
        return AgentRun(
            exit_status=done.exit_status,
            signal=done.signal,
            is_timed_out=done.is_timed_out,
            stdout_tail=done.stdout.decode("utf-8", "replace")[-num:],
            stderr_tail=done.stderr.decode("utf-8", "replace")[-num:],
            **asdict(model.histories.counts),
        )

    async def _write_files(self, sandbox: Sandbox, words: Mapping[str, str]) -> None:
        for path, text in self._config.files.items():
            content = _fill(text, words).encode()
            await write_file(sandbox, f"{_HOME}/{path}", content, f"agent.files: {path}", timeout_s=_WRITE_TIMEOUT_S)

    def _argv(self, words: Mapping[str, str]) -> tuple[str, ...]:
        command = tuple(_fill(text, words) for text in self._config.command)
        if self._config.protocol == "command":
            return command
        return stdio_client("acp", _fill(self._config.prompt, words), command)


def _words(task: Task, limits: PipelineConfig) -> dict[str, str]:
    """Return what is replaced in the texts of a configuration; the report last, since it may hold such words."""
    return {
        "{url}": _URL,
        "{home}": _HOME,
        "{max_len_tokens}": str(limits.max_len_tokens),
        "{max_action_tokens}": str(limits.max_action_tokens),
        "{issue}": task.issue,
    }


def _fill(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def check_unseen(layer: Path, task: Task, holds: str) -> None:
    """Raise `RepairInSightError` where the package of ``task`` is in ``layer``; ``holds`` begins the sentence."""
    if has_distribution(layer, task.provenance.package):
        raise RepairInSightError(
            f"{holds} {task.provenance.package}, in which the repair of {task.id} could be read; leave the tasks of "
            "this package out (select.packages)"
        )


async def write_file(sandbox: Sandbox, path: str, content: bytes, name: str, *, timeout_s: float) -> None:
    """Write a file, relative to the tree or anywhere; `SandboxError`, which says ``name``, where it cannot be."""
    done = await sandbox.exec(("/bin/sh", "-c", _WRITE, "sh", path), timeout_s=timeout_s, stdin=content)
    if done.exit_status != 0:
        raise SandboxError(f"{name} could not be written: {done.stderr.decode('utf-8', 'replace').strip()[-300:]}")


def _stop_reason(model: EpisodeModel, done: ExecResult) -> StopReason:
    if done.is_timed_out:
        return StopReason.TIME_LIMIT
    if model.limit is not None:
        return model.limit
    return StopReason.SUBMITTED if done.exit_status == 0 else StopReason.AGENT_FAILED


async def _changes(workspace: Workspace) -> Files:
    """Return the agent's changes; none if they are too much to read."""
    with suppress(SandboxContentError):
        await workspace.refresh()
    return dict(workspace.changes)
