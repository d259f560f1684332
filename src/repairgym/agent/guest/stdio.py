"""A client of programs that speak JSON-RPC over standard input and output, one message per line; runs in sandboxes.

Reads arguments: ``acp PROMPT COMMAND...`` gives a prompt to an agent of the Agent Client Protocol (version 1) and ends
with its turn; ``mcp REQUEST COMMAND...`` lists the tools of a server of the Model Context Protocol, or calls one, and
prints the result as JSON. Guarantees: nothing but the standard library of Python 3.8 is needed; the program ends with
this one; an agent may do in the sandbox whatever it asks for.
"""

import json
import os
import subprocess
import sys
from typing import Any, Callable, Dict, List, Optional

Answer = Callable[[Dict[str, Any]], Dict[str, Any]]
_ACP_VERSION, _MCP_VERSION = 1, "2025-06-18"
_NO_METHOD, _FAILED = -32601, -32000
_NAME = {"name": "repairgym", "version": "1"}
_NUM_EXPLAINED_CHARS = 500
_END_S = 5.0
_ENDED = frozenset({"end_turn", "max_tokens", "max_turn_requests"})
"""Reasons of an agent's end that leave a result."""


class RemoteError(Exception):
    """The program answered with an error, or ended."""


class Peer:
    """A program and the requests between it and us."""

    def __init__(self, command: List[str], answers: Dict[str, Answer], show: Callable[[Dict[str, Any]], None]) -> None:
        """Start ``command``. ``answers`` are for its requests by their methods, ``show`` is for its notifications."""
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answers = answers
        self._show = show
        self._num_requests = 0

    def request(self, method: str, params: Dict[str, Any]) -> Dict[str, Any]:
        """Return the result; answers what the program asks for meanwhile."""
        self._num_requests += 1
        number = self._num_requests
        self._send({"id": number, "method": method, "params": params})
        while True:
            message = self._receive(method)
            if "method" in message:
                self._serve(message)
            elif message.get("id") == number:
                if message.get("error"):
                    raise RemoteError("{}: {}".format(method, _explain(message["error"])))
                result = message.get("result")
                return result if isinstance(result, dict) else {}

    def notify(self, method: str, params: Dict[str, Any]) -> None:
        """Send a notification."""
        self._send({"method": method, "params": params})

    def close(self) -> None:
        """End the program."""
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _send(self, message: Dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(dict(message, jsonrpc="2.0")).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise RemoteError("the program reads nothing any more") from None

    def _receive(self, method: str) -> Dict[str, Any]:
        assert self._process.stdout is not None
        while True:
            line = self._process.stdout.readline()
            if not line:
                raise RemoteError("{}: the program ended with status {}".format(method, self._process.wait()))
            try:
                message = json.loads(line.decode("utf-8", "replace"))
            except ValueError:
                message = None
            if isinstance(message, dict):
                return message
            sys.stderr.write("no message of the protocol: {!r}\n".format(line[:200]))

    def _serve(self, message: Dict[str, Any]) -> None:
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        if "id" not in message:
            self._show(params)
            return
        answer = self._answers.get(message["method"])
        if answer is None:
            self._send({"id": message["id"], "error": {"code": _NO_METHOD, "message": "there is no such method"}})
            return
        try:
            self._send({"id": message["id"], "result": answer(params)})
        except (OSError, KeyError, TypeError, ValueError) as error:
            self._send({"id": message["id"], "error": {"code": _FAILED, "message": repr(error)}})


def _explain(error: Any) -> str:
    text = json.dumps(error) if isinstance(error, dict) else str(error)
    return text[:_NUM_EXPLAINED_CHARS]


# --- Agent Client Protocol -----------------------------------------------------------------------------------------


def run_agent(prompt: str, command: List[str]) -> int:
    """Give ``prompt`` to an agent; return the exit status: 0 where its turn ended with a result."""
    answers: Dict[str, Answer] = {
        "session/request_permission": _permit,
        "fs/read_text_file": _read,
        "fs/write_text_file": _write,
    }
    peer = Peer(command, answers, _show_update)
    try:
        able = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": False}
        asked = {"protocolVersion": _ACP_VERSION, "clientCapabilities": able, "clientInfo": _NAME}
        version = peer.request("initialize", asked).get("protocolVersion")
        if version != _ACP_VERSION:
            raise RemoteError("the agent speaks version {} of ACP, expected {}".format(version, _ACP_VERSION))
        session = peer.request("session/new", {"cwd": os.getcwd(), "mcpServers": []})["sessionId"]
        content = [{"type": "text", "text": prompt}]
        reason = peer.request("session/prompt", {"sessionId": session, "prompt": content}).get("stopReason")
        print("\n[stop reason: {}]".format(reason), flush=True)
        return 0 if reason in _ENDED else 1
    finally:
        peer.close()


def _permit(params: Dict[str, Any]) -> Dict[str, Any]:
    """Allow what the agent asks for; the sandbox is the boundary."""
    options = sorted(params["options"], key=lambda option: option.get("kind") != "allow_always")
    for option in options:
        if str(option.get("kind", "")).startswith("allow"):
            return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
    return {"outcome": {"outcome": "cancelled"}}


def _read(params: Dict[str, Any]) -> Dict[str, Any]:
    with open(params["path"], encoding="utf-8", newline="") as file:
        text = file.read()
    start, limit = params.get("line"), params.get("limit")
    if start is None and limit is None:
        return {"content": text}
    first = max(0, (start or 1) - 1)
    lines = text.splitlines(True)[first : None if limit is None else first + limit]
    return {"content": "".join(lines)}


def _write(params: Dict[str, Any]) -> Dict[str, Any]:
    os.makedirs(os.path.dirname(params["path"]) or ".", exist_ok=True)
    with open(params["path"], "w", encoding="utf-8", newline="") as file:
        file.write(params["content"])
    return {}


def _show_update(params: Dict[str, Any]) -> None:
    """Print what the agent says and does; the trajectory keeps the end of it."""
    update = params.get("update") or {}
    kind = update.get("sessionUpdate")
    content = update.get("content")
    if kind == "agent_message_chunk" and isinstance(content, dict):
        sys.stdout.write(str(content.get("text", "")))
    elif kind == "tool_call":
        sys.stdout.write("\n[{}]\n".format(update.get("title", "")))
    sys.stdout.flush()


# --- Model Context Protocol ----------------------------------------------------------------------------------------


def ask_server(request: Dict[str, Any], command: List[str]) -> Dict[str, Any]:
    """Return ``tools`` of a server; where ``request`` has a ``name``, ``text`` and ``is_error`` of that call."""
    peer = Peer(command, {"ping": lambda params: {}, "roots/list": lambda params: {"roots": []}}, lambda params: None)
    try:
        peer.request("initialize", {"protocolVersion": _MCP_VERSION, "capabilities": {}, "clientInfo": _NAME})
        peer.notify("notifications/initialized", {})
        if "name" not in request:
            return {"tools": _list_tools(peer)}
        result = peer.request("tools/call", {"name": request["name"], "arguments": request["arguments"]})
        return {"text": result_text(result)[: request["max_chars"]], "is_error": bool(result.get("isError"))}
    finally:
        peer.close()


def _list_tools(peer: Peer) -> List[Dict[str, Any]]:
    tools: List[Dict[str, Any]] = []
    cursor: Optional[str] = None
    while True:
        page = peer.request("tools/list", {"cursor": cursor} if cursor else {})
        tools += page.get("tools", [])
        cursor = page.get("nextCursor")
        if not cursor:
            return tools


def result_text(result: Dict[str, Any]) -> str:
    """Return the text of a call's result; other content is named."""
    parts = [block.get("text", "[{}]".format(block.get("type"))) for block in result.get("content", [])]
    if not parts and "structuredContent" in result:
        parts = [json.dumps(result["structuredContent"])]
    return "\n".join(map(str, parts))


def main(arguments: List[str]) -> int:
    """Run one of the two clients."""
    kind, text, command = arguments[0], arguments[1], arguments[2:]
    try:
        if kind == "acp":
            return run_agent(text, command)
        print(json.dumps(ask_server(json.loads(text), command)))
    except (RemoteError, OSError, KeyError) as error:
        sys.stderr.write("{}\n".format(error if isinstance(error, RemoteError) else repr(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
