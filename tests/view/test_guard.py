"""Who is let in, and what a page may do."""

from __future__ import annotations

import socket

import pytest
from starlette.testclient import TestClient

from repairgym.cli.main import main
from repairgym.errors import InputError
from repairgym.view.app import create_app, serve
from repairgym.view.guard import POLICY, is_loopback

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def guarded(run_folder):
    return TestClient(create_app(run_folder, hosts=("box.example",), token=TOKEN), base_url="http://box.example")


def test_every_answer_forbids_other_origins(client):
    for path in ("/", "/r/small", "/r/nope", "/static/view.js", "/pulse"):
        headers = client.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY


def test_an_unknown_host_name_is_rejected(client):
    for host in ("evil.example", "localhost.evil.example", ""):
        assert client.get("/", headers={"host": host}).status_code == 421
    for host in ("localhost:8320", "127.0.0.1", "[::1]:8320"):
        assert client.get("/", headers={"host": host}).status_code == 200


def test_nothing_but_reading_is_answered(client):
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert client.request(method, "/r/small").status_code == 405
    own = {"origin": "http://localhost", "content-type": "application/x-www-form-urlencoded"}
    for path in ("/r/small", "/r/small/t/1", "/compare", "/api/runs.json"):
        assert client.post(path, headers=own).status_code == 405


def test_a_form_of_another_page_is_rejected_before_anything_is_read(client):
    form = {"content-type": "application/x-www-form-urlencoded"}
    for headers in (
        form,
        {**form, "origin": "null"},
        {**form, "origin": "http://evil.example"},
        {**form, "origin": "http://localhost:9"},
        {**form, "origin": "http://localhost", "sec-fetch-site": "same-site"},
        {"content-type": "text/plain", "origin": "http://localhost"},
    ):
        answer = client.post("/r/small/t/1/review", content="note=x", headers=headers)
        assert answer.status_code == 403, headers


def test_without_the_token_nothing_is_shown(guarded):
    for path in ("/", "/r/small", "/static/view.css", "/pulse", "/?token=", "/?token=wrong"):
        answer = guarded.get(path)
        assert answer.status_code == 401
        assert "small" not in answer.text
    assert guarded.get("/", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert guarded.get("/", headers={"cookie": 'repairgym_view="x"; a=b; =;;'}).status_code == 401


def test_the_token_becomes_a_cookie_and_leaves_the_address(guarded):
    answer = guarded.get(f"/r/small/trajectories?q=a&token={TOKEN}", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/r/small/trajectories?q=a"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert guarded.get("/r/small").status_code == 200


def test_the_token_does_not_lead_elsewhere(guarded):
    answer = guarded.get(f"http://box.example//evil.example/?token={TOKEN}", follow_redirects=False)
    assert not answer.headers.get("location", "/").startswith(("//", "http"))


def test_a_program_may_send_the_token_as_a_header(guarded):
    assert guarded.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_loopback_hosts_are_recognized():
    assert [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "127.8.8.8")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "::", "box", "")] == [False] * 5


def test_invalid_arguments_are_input_errors(run_folder, tmp_path):
    with pytest.raises(InputError, match="not a folder"):
        serve(tmp_path / "none", host="127.0.0.1", port=0, token="", tell=print)
    with pytest.raises(InputError, match="expected 16 or more"):
        serve(run_folder, host="127.0.0.1", port=0, token="short", tell=print)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="cannot listen"):
        serve(run_folder, host="127.0.0.1", port=taken.getsockname()[1], token="", tell=print)


def test_the_command_reports_errors(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["view", str(tmp_path / "none")])
    assert ended.value.code == 3
    assert "is not a folder" in capsys.readouterr().err
