from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from repairgym.cli.main import main
from repairgym.cli.reports import _as_run
from repairgym.rollout.store import RunStore
from repairgym.view.app import create_app


def test_report_of_a_run(tmp_path, capsys):
    RunStore.create(tmp_path / "run.db").close()
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path)])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert (tmp_path / "summary.json").is_file()


def test_report_of_no_run_is_an_input_error(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path)])
    assert ended.value.code == 3
    assert "has no run.db" in capsys.readouterr().err


def test_a_dump_of_another_trainer_is_viewed_as_a_run(tmp_path):
    dump = tmp_path / "12.jsonl"
    dump.write_text('{"input": "f is wrong", "output": "edit < => <=", "score": 1.0}\n{"nothing": 1}\n')
    with _as_run(dump) as root, TestClient(create_app(root), base_url="http://localhost") as client:
        pages = [client.get(f"/r/{root.name}/t/1{page}").text for page in ("", "/tokens")]
    assert "edit &lt; =&gt; &lt;=" in re.sub("<[^>]+>", "", pages[0])
    assert "f is wrong" in pages[0]
    assert "edit" in pages[1]
    assert not root.exists()


def test_a_file_without_trajectories_is_an_input_error(tmp_path, capsys):
    notes = tmp_path / "notes.json"
    notes.write_text("[]")
    with pytest.raises(SystemExit) as ended:
        main(["view", str(notes)])
    assert ended.value.code == 3
    assert "none of the 1 documents" in capsys.readouterr().err
