from __future__ import annotations

import re

import pytest
import torch
from starlette.testclient import TestClient

from repairgym.cli.main import main
from repairgym.cli.reports import _as_run
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
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


def test_a_dump_with_tokens_is_viewed_with_them(tmp_path, capsys):
    renderer = ChatRenderer(load_tokenizer(shipped_base()))
    prompt, answer = renderer.action_ids("f is wrong"), renderer.action_ids("submit")
    sample = {"prompt": "f is wrong", "response": "submit", "tokens": prompt + answer, "response_length": len(answer)}
    torch.save({"samples": [sample | {"rollout_log_probs": [-0.5] * len(answer)}]}, tmp_path / "7.pt")
    with _as_run(tmp_path / "7.pt", shipped_base()) as root, RunStore.open(root / "run.db", is_read_only=True) as store:
        (stored,) = store.trajectories()
    assert stored.ledger.token_id.tolist() == prompt + answer
    assert stored.ledger.log_prob.tolist() == [0.0] * len(prompt) + [-0.5] * len(answer)
    with pytest.raises(SystemExit) as ended:
        main(["view", str(tmp_path), "--model", str(shipped_base())])
    assert (ended.value.code, "--model is for a file" in capsys.readouterr().err) == (2, True)


def test_a_file_without_trajectories_is_an_input_error(tmp_path, capsys):
    notes = tmp_path / "notes.json"
    notes.write_text("[]")
    with pytest.raises(SystemExit) as ended:
        main(["view", str(notes)])
    assert ended.value.code == 3
    assert "none of the 1 documents" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "message"), [(("--compare", "--data"), "--data writes"), (("--set", "a=1"), "add")])
def test_options_that_would_be_ignored_are_errors(tmp_path, capsys, words, message):
    RunStore.create(tmp_path / "run.db").close()
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path), *words])
    assert (ended.value.code, message in capsys.readouterr().err) == (2, True)
    assert not (tmp_path / "report.html").exists()
