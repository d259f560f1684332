"""Our tasks as an OpenEnv environment: reset, step and state over a WebSocket, one session per connection.

Reads the messages of OpenEnv's clients, whose package is not needed here; makes observations, rewards and ends. An
action is a tool call in OpenEnv's form (``call_tool``), or asks for the tools (``list_tools``). Guarantees: the reward
comes with the end of an episode only and is the grader's; an episode without a verdict ends with no reward, never 0;
what a client sends wrongly is an answer with the reason, and the session stays usable.
"""

import json
from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from repairgym import __version__
from repairgym.bridges.clients.certificate import certify
from repairgym.bridges.clients.episodes import Session, TaskServer, describe_verdict
from repairgym.errors import InputError, RepairGymError
from repairgym.rollout.external.clients import Observed

NAME = "repairgym"
_ACTION_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"enum": ["call_tool", "list_tools"]},
        "tool_name": {"type": "string", "description": "of call_tool"},
        "arguments": {"type": "object", "description": "of call_tool"},
    },
    "required": ["type"],
}
_OBSERVATION_SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "of reset: the issue, as the agent reads it"},
        "task_id": {"type": "string", "description": "of reset"},
        "tools": {"type": "array", "description": "of reset and list_tools"},
        "tool_name": {"type": "string", "description": "of call_tool"},
        "result": {"type": "string", "description": "of call_tool: what the tool said"},
        "error": {"description": "of call_tool: none, or why no tool ran"},
        "verdict": {"type": "object", "description": "of the last observation"},
    },
}
_STATE_SCHEMA = {
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer"},
        "task_id": {"type": ["string", "null"]},
        "is_done": {"type": "boolean"},
    },
}


class MessageError(ValueError):
    """A message that is not understood, with OpenEnv's code for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def make_app(server: TaskServer) -> Starlette:
    """Return the application: ``/ws``, and what describes it."""

    async def serve(websocket: WebSocket) -> None:
        await websocket.accept()
        connection = _Connection(server)
        try:
            while (answer := await connection.answer(await _receive_text(websocket))) is not None:
                await websocket.send_text(json.dumps(answer))
            await websocket.close()
        except WebSocketDisconnect:
            pass
        finally:
            await connection.session.close()

    def health(request: Request) -> Response:
        return JSONResponse({"status": "healthy"})

    def metadata(request: Request) -> Response:
        about = f"{len(server.tasks)} repair tasks with a sandbox each, graded by hidden tests"
        return JSONResponse({"name": NAME, "description": about, "version": __version__})

    def schema(request: Request) -> Response:
        return JSONResponse({"action": _ACTION_SCHEMA, "observation": _OBSERVATION_SCHEMA, "state": _STATE_SCHEMA})

    def tasks(request: Request) -> Response:
        return JSONResponse([{"id": task.id, "split": task.split, "source": task.source} for task in server.tasks])

    def certificate(request: Request) -> Response:
        try:
            task = server.find(request.query_params.get("task_id", ""))
        except InputError as error:
            return JSONResponse({"error": str(error)}, 404)
        return JSONResponse(certify(task, server.config.rollout, server.tools, server.runner.backend))

    return Starlette(
        routes=[
            WebSocketRoute("/ws", serve),
            Route("/health", health),
            Route("/metadata", metadata),
            Route("/schema", schema),
            Route("/tasks", tasks),
            Route("/certificate", certificate),
        ]
    )


class _Connection:
    """One client and its session."""

    def __init__(self, server: TaskServer) -> None:
        self.session = Session(server)
        self._server = server
        self._episode_id: str | None = None
        self._task_id: str | None = None
        self._num_steps = 0
        self._is_done = False

    async def answer(self, text: str | None) -> dict[str, Any] | None:
        """Return the answer to a message, whose text is None where it holds bytes; None: the client leaves."""
        try:
            kind, data = _read_message(text)
            if kind == "close":
                return None
            if kind == "state":
                return {"type": "state", "data": self._state()}
            if kind == "reset":
                return {"type": "observation", "data": await self._reset(data)}
            return {"type": "observation", "data": await self._step(data)}
        except MessageError as error:
            return _error(error.code, str(error))
        except InputError as error:
            code = "CAPACITY_REACHED" if "max_episodes" in str(error) else "EXECUTION_ERROR"
            return _error(code, str(error))
        except RepairGymError as error:
            return _error("EXECUTION_ERROR", str(error))

    async def _reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        seed, task_id, episode_id = data.get("seed"), data.get("task_id"), data.get("episode_id")
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 1 << 32):
            raise MessageError("VALIDATION_ERROR", f"seed is {seed!r}, expected a number of 32 bits")
        if not isinstance(task_id or "", str) or not isinstance(episode_id or "", str):
            raise MessageError("VALIDATION_ERROR", "task_id and episode_id are texts")
        if unknown := sorted(set(data) - {"seed", "task_id", "episode_id"}):
            raise MessageError(
                "VALIDATION_ERROR", f"reset takes seed, task_id and episode_id, got {', '.join(unknown)}"
            )
        task, observed = await self.session.begin(task_id or "", seed)
        self._task_id, self._num_steps, self._is_done = task.id, 0, False
        self._episode_id = episode_id or (self.session.episode.id if self.session.episode else None)
        return self._result({"text": observed.text, "task_id": task.id, "tools": self._tools()}, observed)

    async def _step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        if data.get("type") == "list_tools":
            return {"observation": {"tools": self._tools()}, "reward": None, "done": self._is_done}
        name, arguments = data.get("tool_name"), data.get("arguments", {})
        if data.get("type") != "call_tool" or not isinstance(name, str) or not isinstance(arguments, dict):
            raise MessageError(
                "VALIDATION_ERROR",
                'an action is {"type": "call_tool", "tool_name": NAME, "arguments": {...}} or {"type": "list_tools"}',
            )
        observed = await self.session.call(name, arguments)
        self._num_steps += 1
        error = {"error_type": "invalid_args", "message": observed.text} if observed.error == "format" else None
        return self._result({"tool_name": name, "result": observed.text, "error": error}, observed)

    def _result(self, observation: dict[str, Any], observed: Observed) -> dict[str, Any]:
        if observed.trajectory is None:
            return {"observation": observation, "reward": None, "done": False}
        self._is_done = True
        told = describe_verdict(observed.trajectory)
        return {"observation": observation | {"verdict": told}, "reward": told["reward"], "done": True}

    def _state(self) -> dict[str, Any]:
        return {
            "episode_id": self._episode_id,
            "step_count": self._num_steps,
            "task_id": self._task_id,
            "is_done": self._is_done,
        }

    def _tools(self) -> list[dict[str, Any]]:
        return [
            {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
            for tool in self._server.tools
        ]


async def _receive_text(websocket: WebSocket) -> str | None:
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1000))
    text: str | None = message.get("text")
    return text


def _read_message(text: str | None) -> tuple[str, Mapping[str, Any]]:
    if text is None:
        raise MessageError("INVALID_JSON", "the message holds bytes, expected text")
    try:
        message = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        raise MessageError("INVALID_JSON", "the message is no JSON") from None
    kind = message.get("type") if isinstance(message, dict) else None
    if kind not in ("reset", "step", "state", "close"):
        raise MessageError("UNKNOWN_TYPE", f"type is {kind!r}, expected reset, step, state or close")
    data = message.get("data") or {}
    if not isinstance(data, dict):
        raise MessageError("VALIDATION_ERROR", "data is no object")
    return str(kind), data


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}
