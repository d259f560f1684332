"""The record of calls, the log and the lock of a run folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from repairgym.errors import InputError
from repairgym.rollout.calls import CALLS_FILE, LOG_FILE, is_locked, locked, read_calls, this_call

HOLD = """
import sys, time
from pathlib import Path
from repairgym.rollout.calls import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_call_is_recorded_with_what_its_numbers_depend_on(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["/usr/bin/repairgym", "rollout", "tasks", "a b", "endpoint.base_url=http://u:secret@host/v1"]
    )
    with locked(tmp_path):
        pass
    (call,) = read_calls(tmp_path)
    assert call.command == "repairgym rollout tasks 'a b' endpoint.base_url=http://***@host/v1"
    assert call.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert call.packages["torch"]
    assert len(call.commit) in (0, 40)
    assert call.num_cpus >= 1
    assert "secret" not in (tmp_path / CALLS_FILE).read_text() + (tmp_path / LOG_FILE).read_text()


def test_the_log_ends_with_the_reason(tmp_path, monkeypatch, request):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    request.addfinalizer(time.tzset)
    with pytest.raises(InputError), locked(tmp_path):
        raise InputError("no such task\nat all")
    assert (tmp_path / LOG_FILE).read_text().splitlines()[-1].endswith("stopped: InputError: no such task at all")
    with locked(tmp_path):
        pass
    line = (tmp_path / LOG_FILE).read_text().splitlines()[-1]
    assert line.endswith(" UTC ended")
    written = datetime.strptime(line.partition(" UTC")[0], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - written).total_seconds()) < 60


def test_a_killed_process_holds_nothing(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    assert is_locked(tmp_path)
    with pytest.raises(InputError, match="another process"), locked(tmp_path):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not is_locked(tmp_path)
    assert len(read_calls(tmp_path)) == 1


def test_lines_of_other_versions_are_left_out(tmp_path):
    line = this_call().model_dump_json()
    (tmp_path / CALLS_FILE).write_text(f"{line}\n{{broken\n{json.dumps({'time': 'x', 'new': 1})}\n")
    assert len(read_calls(tmp_path)) == 1
    assert read_calls(tmp_path / "none") == []
