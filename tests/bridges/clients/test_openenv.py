"""OpenEnv's messages over a WebSocket: reset, step, state, and errors that leave the session usable."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from repairgym.bridges.clients.guard import ClientGuard
from repairgym.bridges.clients.openenv import make_app
from repairgym.records import Accuracy

REPAIR = {"path": "m.py", "content": "def f(a, b):\n    return a <= b\n"}


class Env:
    """The messages of a client."""

    def __init__(self, socket):
        self.socket = socket

    def ask(self, message):
        self.socket.send_text(message if isinstance(message, str) else json.dumps(message))
        return self.socket.receive_json()

    def reset(self, **data):
        return self.ask({"type": "reset", "data": data})

    def call(self, tool, **arguments):
        return self.ask({"type": "step", "data": {"type": "call_tool", "tool_name": tool, "arguments": arguments}})

    def state(self):
        return self.ask({"type": "state"})["data"]


@pytest.fixture
def server(make_server):
    return make_server()


@pytest.fixture
def env(server):
    with TestClient(make_app(server)) as client, client.websocket_connect("/ws") as socket:
        yield Env(socket)


def test_reset_step_and_state(env):
    assert env.state() == {"episode_id": None, "step_count": 0, "task_id": None, "is_done": False}
    opened = env.reset(task_id="tiny-2", seed=3, episode_id="e-7")["data"]
    assert (opened["done"], opened["reward"]) == (False, None)
    assert "f in m.py is wrong" in opened["observation"]["text"]
    assert "submit" in [tool["name"] for tool in opened["observation"]["tools"]]
    listed = env.ask({"type": "step", "data": {"type": "list_tools"}})["data"]["observation"]
    assert listed["tools"] == opened["observation"]["tools"]
    step = env.call("write_file", **REPAIR)["data"]
    assert (step["done"], step["reward"], step["observation"]["error"]) == (False, None, None)
    ended = env.call("submit")["data"]
    assert (ended["done"], ended["reward"], ended["observation"]["verdict"]["verdict"]) == (True, 1.0, "passed")
    assert env.state() == {"episode_id": "e-7", "step_count": 2, "task_id": "tiny-2", "is_done": True}
    assert env.call("test")["type"] == "error"
    env.reset()
    assert env.state()["step_count"] == 0
    assert env.call("submit")["data"]["reward"] == 0.0


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "INVALID_JSON"),
        ("[1]", "UNKNOWN_TYPE"),
        ({"type": "explode"}, "UNKNOWN_TYPE"),
        ({"type": "step", "data": 1}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"type": "call_tool"}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"type": "call_tool", "tool_name": "test"}}, "EXECUTION_ERROR"),
        ({"type": "reset", "data": {"task_id": "absent"}}, "EXECUTION_ERROR"),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"difficulty": "easy"}}, "VALIDATION_ERROR"),
    ],
)
def test_errors_leave_the_session_usable(env, message, code):
    answer = env.ask(message)
    assert (answer["type"], answer["data"]["code"]) == ("error", code)
    assert env.reset()["type"] == "observation"


def test_bytes_are_an_error_and_the_session_stays(env):
    env.socket.send_bytes(b"{}")
    assert env.socket.receive_json()["data"]["code"] == "INVALID_JSON"
    assert env.reset()["type"] == "observation"


def test_a_certificate_takes_no_task(server):
    with TestClient(make_app(server)) as client:
        for _ in range(3):
            assert client.get("/certificate").status_code == 200
        with client.websocket_connect("/ws") as socket:
            assert Env(socket).reset()["data"]["observation"]["task_id"] == "tiny-1"


def test_a_client_that_leaves_frees_its_place(make_server):
    server = make_server("max_episodes=1")
    with TestClient(make_app(server)) as client:
        with client.websocket_connect("/ws") as first, client.websocket_connect("/ws") as second:
            Env(first).reset()
            assert Env(second).reset()["data"]["code"] == "CAPACITY_REACHED"
        with client.websocket_connect("/ws") as third:
            assert Env(third).reset()["type"] == "observation"
    assert server.num_running == 0


def test_pages_of_other_sites_and_clients_without_the_token_get_nothing(server):
    with TestClient(ClientGuard(make_app(server), "127.0.0.1", "secret"), "http://127.0.0.1") as client:
        allowed = {"authorization": "Bearer secret"}
        assert client.get("/health").status_code == 401
        assert client.get("/health", headers=allowed).json() == {"status": "healthy"}
        assert client.get("/health", headers=allowed | {"host": "evil.example"}).status_code == 421
        assert client.get("/health", headers=allowed | {"origin": "http://evil.example"}).status_code == 403
        for headers in ({}, allowed | {"origin": "http://evil.example"}):
            with pytest.raises(WebSocketDisconnect), client.websocket_connect("ws://127.0.0.1/ws", headers=headers):
                pass
        with client.websocket_connect("ws://127.0.0.1/ws", headers=allowed) as socket:
            assert Env(socket).reset()["type"] == "observation"


def test_the_certificate_rests_on_what_was_measured(make_server):
    server = make_server()
    weak = server.tasks[1].certificate.model_copy(
        update={"num_gold_passed": 2, "accuracy": Accuracy(num_wrong=10, num_accepted=1)}
    )
    server.tasks = [server.tasks[0], server.tasks[1].model_copy(update={"certificate": weak})]
    with TestClient(make_app(server)) as client:
        assert client.get("/certificate", params={"task_id": "absent"}).status_code == 404
        certificates = [client.get("/certificate", params={"task_id": f"tiny-{k}"}).json() for k in (1, 2)]
    statuses = [
        {check["check_id"]: check["status"] for checks in each["properties"].values() for check in checks}
        for each in certificates
    ]
    assert (statuses[0]["semantic.oracle_max"], statuses[1]["semantic.oracle_max"]) == ("pass", "fail")
    assert (statuses[0]["semantic.canary_floor"], statuses[1]["semantic.canary_floor"]) == ("skip", "fail")
    assert (statuses[0]["semantic.floor_gap"], statuses[1]["semantic.verifier_determinism"]) == ("pass", "fail")
    assert statuses[0]["static.dependency_pinning"] == "fail"  # a scripted task has no environment
    assert "a <= b" not in str(certificates)
