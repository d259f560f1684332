"""Our agent behind the Agent Client Protocol: an editor sends a prompt, the agent repairs a copy of its folder.

Reads prompts through the official SDK (extra `acp`). Makes an episode for each, in a sandbox over a copy of the folder;
its turns are shown as calls of tools while it runs. Guarantees: the folder is written only after the user has seen the
patch and allowed it; a file that was changed meanwhile, or lies outside of the folder, is not written; what deceived
the grader is not offered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from repairgym import __version__
from repairgym.agent.conversation import InitialPrompt
from repairgym.agent.tools.workspace import base_content
from repairgym.config.commands import AcpConfig
from repairgym.errors import ConfigError, RepairGymError, install_hint
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import StopReason, Task, Trajectory, Turn, VerdictKind
from repairgym.rollout.jobs import PolicyRef, make_group
from repairgym.rollout.policies import PolicyCache
from repairgym.rollout.runner import Runner
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.probe import create_backend
from repairgym.solving.repositories import Repair, pin_repository
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.layers.store import LayerStore

if TYPE_CHECKING:
    from acp.interfaces import Client
    from acp.schema import InitializeResponse, NewSessionResponse, PromptResponse

PHASE = "acp"
_INTERNAL_ERROR = -32603
_ENDS = {
    StopReason.TURN_LIMIT: "max_turn_requests",
    StopReason.TOOL_CALL_LIMIT: "max_turn_requests",
    StopReason.TOKEN_LIMIT: "max_tokens",
    StopReason.OUTPUT_TOKEN_LIMIT: "max_tokens",
}
"""Limit -> stop reason of the protocol; every other end is ``end_turn``."""
_KINDS = {
    "read": "read", "read_file": "read", "open": "read", "find_files": "search", "find_files_with_text": "search",
    "search": "search", "edit": "edit", "write": "edit", "write_file": "edit", "undo": "edit", "shell": "execute",
    "test": "execute",
}  # fmt: skip
"""Tool -> kind of the protocol, by which editors choose an icon."""


def require_acp() -> None:
    """Raise `ConfigError`, with what to install, unless the SDK is installed."""
    if find_spec("acp") is None:
        raise ConfigError(f"agent-client-protocol is not installed: {install_hint('acp')}")


class Repairer(Protocol):
    """Whatever makes tasks of folders and runs episodes on them."""

    async def pin(self, folder: Path, issue: str) -> Task:
        """Return the folder as it is now as a task."""

    async def run(self, task: Task, number: int, watcher: Narrator) -> Trajectory:
        """Return a graded episode."""

    def original(self, task: Task, path: str) -> bytes | None:
        """Return a file of the task before the episode; None: it was not there."""


class FolderRepairer:
    """Copies of folders, sandboxes, a grader and a policy, of one process."""

    def __init__(self, config: AcpConfig, request: Repair, policy: PolicyRef, renderer: ChatRenderer) -> None:
        """Start nothing yet; ``request`` has the test command and the environment of all folders."""
        self._config = config
        self._request = request
        self._policy = policy
        self._renderer = renderer
        self._layers = LayerStore(config=config.rollout.layers)
        self._policies = PolicyCache(config.rollout, renderer)
        self._backend: SandboxBackend | None = None

    async def pin(self, folder: Path, issue: str) -> Task:
        """Return the folder as a task, after its tests have run twice in a sandbox; raises as `pin_repository`."""
        request = Repair(folder, self._request.test, issue, self._request.python)
        return await asyncio.to_thread(pin_repository, request, self._config.rollout)

    async def run(self, task: Task, number: int, watcher: Narrator) -> Trajectory:
        """Return a graded episode of the policy; visible tests decide."""
        self._backend = self._backend or create_backend(self._config.rollout.sandbox)
        policy, layers = await self._policies.get(self._policy), self._layers
        runner = Runner(
            self._config.rollout,
            self._backend,
            lambda task: task_layers(task, layers),
            self._renderer,
            layers,
            watcher=watcher,
        )
        (job,) = make_group(PHASE, 0, task.id, 1, self._config.seed, number)
        try:
            return await runner.run_job(job, task, policy, self._policy.temperature)
        finally:
            await runner.close()

    def original(self, task: Task, path: str) -> bytes | None:
        """Return a file as it was copied."""
        return base_content(task_layers(task, self._layers).tree, task.base_files, path)

    async def close(self) -> None:
        """End the sandboxes and the engine."""
        await self._policies.close()
        if self._backend is not None:
            await self._backend.close()


class Narrator:
    """Shows the turns of one episode in their order."""

    def __init__(self, show: Callable[[int, Turn], Any]) -> None:
        """``show`` is a coroutine function that takes the number of a turn and the turn."""
        self._show = show
        self._turns = asyncio.Queue[Turn | None]()

    def opened(self, prompt: InitialPrompt) -> None:
        """Do nothing: the user wrote it."""

    def acted(self, turn: Turn) -> None:
        """Show a turn soon."""
        self._turns.put_nowait(turn)

    async def tell(self) -> None:
        """Show turns until `end`."""
        number = 0
        while (turn := await self._turns.get()) is not None:
            await self._show(number, turn)
            number += 1

    def end(self) -> None:
        """End `tell` behind the turns so far."""
        self._turns.put_nowait(None)


@dataclass
class _Session:
    folder: Path
    running: asyncio.Task[str] | None = None
    num_prompts: int = 0
    unused: list[str] = field(default_factory=list)
    """Names of the client's MCP servers, which no prompt was told of yet."""


class AcpAgent:
    """The agent's side of one connection; its methods are those of the SDK's `acp.Agent`."""

    def __init__(self, repairer: Repairer) -> None:
        self._repairer = repairer
        self._sessions: dict[str, _Session] = {}
        self._client: Client
        self._is_reading = self._is_writing = False

    def on_connect(self, conn: Client) -> None:
        """Keep the client."""
        self._client = conn

    async def initialize(
        self, protocol_version: int, client_capabilities: Any = None, client_info: Any = None, **_: Any
    ) -> InitializeResponse:
        """Return the version of the protocol and what prompts may hold."""
        from acp import PROTOCOL_VERSION
        from acp.schema import AgentCapabilities, Implementation, InitializeResponse, PromptCapabilities

        files = getattr(client_capabilities, "fs", None)
        self._is_reading = bool(getattr(files, "read_text_file", False))
        self._is_writing = bool(getattr(files, "write_text_file", False))
        return InitializeResponse(
            protocol_version=min(protocol_version, PROTOCOL_VERSION),
            agent_capabilities=AgentCapabilities(prompt_capabilities=PromptCapabilities(embedded_context=True)),
            agent_info=Implementation(name="repairgym", title="RepairGym", version=__version__),
        )

    async def new_session(self, cwd: str, mcp_servers: Any = None, **_: Any) -> NewSessionResponse:
        """Begin a session in a folder; nothing is read before its first prompt."""
        from acp import RequestError
        from acp.schema import NewSessionResponse

        if not Path(cwd).is_absolute() or not Path(cwd).is_dir():
            raise RequestError.invalid_params({"reason": f"cwd is {cwd!r}, expected an absolute path of a folder"})
        session_id = uuid4().hex
        self._sessions[session_id] = _Session(Path(cwd), unused=[server.name for server in mcp_servers or ()])
        return NewSessionResponse(session_id=session_id)

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> PromptResponse:
        """Repair what ``prompt`` describes, until the episode has ended and its patch was allowed or not."""
        from acp import RequestError
        from acp.schema import PromptResponse

        session = self._sessions.get(session_id)
        if session is None or session.running is not None:
            reason = "there is no such session" if session is None else "its last prompt is not done"
            raise RequestError.invalid_params({"reason": reason})
        session.running = asyncio.ensure_future(self._repair(session_id, session, prompt_text(prompt)))
        try:
            await asyncio.wait([session.running])
            if session.running.cancelled():
                return PromptResponse(stop_reason="cancelled")
            return PromptResponse.model_validate({"stopReason": session.running.result()})
        except RepairGymError as error:
            raise RequestError(_INTERNAL_ERROR, str(error)) from error
        finally:
            session.running.cancel()
            session.running = None

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Stop the running prompt; the folder stays as it is, or gets the whole patch where that is being written."""
        session = self._sessions.get(session_id)
        if session is not None and session.running is not None:
            session.running.cancel()

    async def _repair(self, session_id: str, session: _Session, issue: str) -> str:
        if session.unused:
            names, session.unused = ", ".join(session.unused), []
            await self._say(session_id, f"MCP servers of the editor are not used: {names} (set rollout.pipeline.mcp).")
        task = await self._repairer.pin(session.folder, issue)
        await self._say(session_id, f"{len(task.fail_to_pass)} tests fail, {len(task.pass_to_pass)} pass.")
        session.num_prompts += 1
        number = session.num_prompts
        narrator = Narrator(lambda index, turn: self._show(session_id, f"{number}-{index}", turn))
        telling = asyncio.ensure_future(narrator.tell())
        try:
            trajectory = await self._repairer.run(task, number, narrator)
            narrator.end()
            await telling
        finally:
            telling.cancel()
        await self._deliver(session_id, session, task, trajectory)
        return _ENDS.get(trajectory.stop_reason, "end_turn")

    async def _deliver(self, session_id: str, session: _Session, task: Task, trajectory: Trajectory) -> None:
        """Say what came out, and write the patch where the user allows it."""
        verdict, files = trajectory.verdict, trajectory.final_files
        if verdict.kind in (VerdictKind.INVALID, VerdictKind.EXPLOITED):
            await self._say(session_id, f"No patch: the episode is {verdict.kind.value}: {verdict.reason}.")
            return
        if not files:
            await self._say(session_id, f"No patch: nothing was changed ({trajectory.stop_reason.value}).")
            return
        is_passed = verdict.kind is VerdictKind.PASSED
        told = "The tests pass with this patch" if is_passed else f"The tests fail with this patch: {verdict.reason}"
        await self._say(session_id, told + ".")
        if not await self._is_allowed(session_id, session, task, files, is_passed):
            await self._say(session_id, "The patch was not applied.")
            return
        # A client that cancels now gets the whole patch that it has allowed, not half of it.
        writing = asyncio.ensure_future(self._apply(session_id, session, task, files))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing
            raise

    async def _apply(self, session_id: str, session: _Session, task: Task, files: dict[str, str | None]) -> None:
        rejected = [path for path in files if not await self._write(session_id, session, task, path, files[path])]
        written = len(files) - len(rejected)
        rest = f"; changed meanwhile or outside, so not written: {', '.join(rejected)}" if rejected else ""
        await self._say(session_id, f"{written} files were written{rest}.")

    async def _is_allowed(
        self, session_id: str, session: _Session, task: Task, files: dict[str, str | None], is_passed: bool
    ) -> bool:
        from acp import tool_diff_content
        from acp.schema import PermissionOption, ToolCallUpdate

        shown = [
            tool_diff_content(str(session.folder / path), text or "", _as_text(self._repairer.original(task, path)))
            for path, text in files.items()
        ]
        title = "Apply the patch" if is_passed else "Apply the patch, with which tests fail"
        call = ToolCallUpdate(tool_call_id=f"{session.num_prompts}-patch", title=title, kind="edit", content=shown)
        options = [
            PermissionOption(option_id="apply", name="Apply", kind="allow_once"),
            PermissionOption(option_id="discard", name="Discard", kind="reject_once"),
        ]
        answer = await self._client.request_permission(session_id=session_id, tool_call=call, options=options)
        return getattr(answer.outcome, "option_id", None) == "apply"

    async def _write(self, session_id: str, session: _Session, task: Task, path: str, text: str | None) -> bool:
        """Write one file; False where it is not as it was copied, or leads out of the folder."""
        place = session.folder / path
        is_inside = place.resolve().is_relative_to(session.folder.resolve())
        try:
            is_as_copied = await self._present(session_id, place) == self._repairer.original(task, path)
        except OSError:  # a folder is there, or it cannot be read: it has changed
            is_as_copied = False
        if not is_inside or not is_as_copied:
            return False
        if text is None:
            place.unlink(missing_ok=True)
        elif self._is_writing:
            await self._client.write_text_file(session_id=session_id, path=str(place), content=text)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text.encode())
        return True

    async def _present(self, session_id: str, place: Path) -> bytes | None:
        """Return a file as the editor has it, unsaved changes included; None: there is none."""
        if self._is_reading and place.is_file() and _as_text(place.read_bytes()) is not None:
            told = await self._client.read_text_file(session_id=session_id, path=str(place))
            return str(told.content).encode("utf-8", "surrogatepass")
        try:
            return place.read_bytes()
        except FileNotFoundError:
            return None

    async def _say(self, session_id: str, text: str) -> None:
        from acp import update_agent_message_text

        await self._client.session_update(session_id=session_id, update=update_agent_message_text(text + "\n\n"))

    async def _show(self, session_id: str, call_id: str, turn: Turn) -> None:
        from acp import start_tool_call, text_block, tool_content

        update = start_tool_call(
            call_id,
            turn.action.strip()[:200] or (turn.tool or "no action"),
            kind=_KINDS.get(turn.tool or "", "other"),  # type: ignore[arg-type, unused-ignore]
            status="failed" if turn.error else "completed",
            content=[tool_content(text_block(turn.observation))],
            raw_input=dict(turn.arguments),
        )
        await self._client.session_update(session_id=session_id, update=update)


def _as_text(content: bytes | None) -> str | None:
    """Return the text of a file; None: there is none, or it is no text."""
    if content is not None:
        with suppress(UnicodeDecodeError):
            return content.decode()
    return None


def prompt_text(blocks: list[Any]) -> str:
    """Return the text of a prompt; files that it mentions are named, embedded ones are quoted."""
    parts: list[str] = []
    for block in blocks:
        resource = getattr(block, "resource", None)
        if text := getattr(block, "text", None):
            parts.append(text)
        elif resource is not None and getattr(resource, "text", None) is not None:
            parts.append(f"{resource.uri}:\n{resource.text}")
        elif uri := getattr(block, "uri", None):
            parts.append(str(uri))
    return "\n\n".join(parts)


async def serve_acp(repairer: FolderRepairer) -> None:
    """Speak over standard input and output until the client closes them."""
    from acp import run_agent

    try:
        await run_agent(AcpAgent(repairer))  # type: ignore[arg-type, unused-ignore]
    finally:
        await repairer.close()
