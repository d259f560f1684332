"""`repairgym knowledge`: add, search, show, and what they say to mistakes."""

import pytest

from repairgym.cli.main import main
from repairgym.records import Provenance
from repairgym.rollout.store import RunStore
from repairgym.tasks.store import TaskStore


def cli(capsys, *args):
    with pytest.raises(SystemExit) as ended:
        main(["knowledge", *map(str, args)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out + captured.err


@pytest.fixture
def run(task, tmp_path, trajectory_maker):
    """A run whose two tasks, one of training and one of test, are solved."""
    held_out = task.model_copy(
        update={"id": "held-out", "split": "test", "provenance": Provenance(package="secret", version="1")}
    )
    TaskStore(tmp_path / "tasks").folder.mkdir()
    TaskStore(tmp_path / "tasks").save([task, held_out], {}, {})
    with RunStore.create(tmp_path / "run.db") as store:
        for one in (task, held_out):
            made = trajectory_maker(f"t-{one.id}", one.id, group_id=f"g-{one.id}")
            store.add_trajectory(made, phase="rollout", step=0, split=one.split)
    return tmp_path


def test_fixes_are_added_found_and_counted(run, capsys):
    fixes = run / "fixes.db"
    code, said = cli(capsys, "add", fixes, run, "--tasks", run / "tasks")
    assert (code, said) == (0, f"{fixes}: 1 fixes; of this run 1 added, 1 held out\n")
    assert "1 known" in cli(capsys, "add", fixes, run, "--tasks", run / "tasks")[1]
    code, said = cli(capsys, "search", fixes, "f in m.py is wrong")
    assert code == 0
    assert said.startswith("# score 0.75: relevance 1.00, 0 of 0 episodes that were offered it passed\nfix ")
    assert "no past fix" in cli(capsys, "search", fixes, "zebra")[1]
    code, said = cli(capsys, "show", fixes)
    assert said.startswith("tiny\t1\nguarded by package; held out: ")
    assert "secret" in said


def test_mistakes_are_told(run, capsys):
    assert cli(capsys, "search", run / "absent.db", "x")[0] == 3
    assert cli(capsys, "show", run / "run.db")[0] == 3
    assert cli(capsys, "add", run / "fixes.db", run / "tasks", "--tasks", run / "tasks")[0] == 3
    assert not (run / "fixes.db").exists()


def test_starts_take_the_shared_selection(run, capsys):
    """Both are settings that do not fit the folder, as an unknown key is one that fits nothing: the same exit code."""
    command = ("starts", run / "tasks", run / "starts.jsonl")
    for override, message in (
        ("select.sources=history", "no task is left by sources=history: the folder has 2"),
        ("select.ids=absent", "1 of 1 ids are not in the task folder: absent"),
        ("select.origins=history", "origins"),
    ):
        code, said = cli(capsys, *command, override)
        assert (code, message in said) == (2, True), said
    assert not (run / "starts.jsonl").exists()
