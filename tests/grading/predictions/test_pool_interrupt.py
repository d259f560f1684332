"""Ctrl-C while grading: what ended is kept, and the same command resumes there."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repairgym.diffs.make import unified_diff
from repairgym.tasks.store import TaskStore

COMMAND = [sys.executable, "-c", "from repairgym.cli.main import main; main()", "grade"]


@pytest.mark.slow
def test_an_interrupted_call_is_continued(place, tmp_path):
    names = [f"i{number}" for number in range(6)]
    TaskStore(tmp_path / "tasks").save([place.task.model_copy(update={"id": name}) for name in names], {}, {})
    patch = unified_diff(place.task.base_files, place.task.gold_files)
    entries = [{"instance_id": name, "model_name_or_path": "m", "model_patch": patch} for name in names]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, entries)))
    command = [*COMMAND, str(tmp_path / "tasks"), str(tmp_path / "p.jsonl"), "num_workers=1"]
    environment = {**os.environ, "REPAIRGYM_CACHE": str(place.cache_root)}
    instances = tmp_path / "p-graded" / "instances"

    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(instances.glob("*.json")):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "the same command resumes there" in said
    before = stamps(instances)
    assert 0 < len(before) < len(names)
    assert not (tmp_path / "p-graded" / "report.json").exists()

    subprocess.run(command, env=environment, check=True)
    after = stamps(instances)
    assert before.items() <= after.items()
    assert json.loads((tmp_path / "p-graded" / "report.json").read_text())["resolved_ids"] == names


def stamps(folder: Path) -> dict[str, int]:
    """When each result was written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}
