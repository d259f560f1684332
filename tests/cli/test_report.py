from __future__ import annotations

import pytest

from repairgym.cli.main import main
from repairgym.rollout.store import RunStore


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
