"""The scan finds answers where an agent could read them."""

import shutil

import pytest
from typer.testing import CliRunner

from repairgym.cli.tasks import app
from repairgym.config.tasks import CurationConfig
from repairgym.errors import InputError, TaskError
from repairgym.tasks.build.validation import pinned_tree
from repairgym.tasks.curation.curate import curate
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sight.scan import ScanReport, distinctive_lines, module_file, scan_tasks
from repairgym.tasks.store import TaskStore

_BROKEN = "def total(values, start=0):\n    return sum(values) - start\n\n\ndef one():\n    return 1\n"


def test_distinctive_lines_are_added_and_long():
    gold = _BROKEN.replace("- start", "+ start")
    line = "return sum(values) + start"
    found = distinctive_lines(gold, _BROKEN)
    assert ("def total(values, start=0):", line) in found
    assert all(line in window and added == {line} for window, added in found.items())
    moved = "\n".join(reversed(["first = values[0]", "second = values[1]", "third = values[2]", _BROKEN]))
    assert distinctive_lines(moved, "\n".join(reversed(moved.splitlines())))
    assert distinctive_lines(_BROKEN, _BROKEN) == {}
    assert distinctive_lines("x = 1\n", "x = 2\n") == {}
    long = f"    assert start < {'x' * 60}\n"
    assert (long.strip(),) in distinctive_lines(_BROKEN + long, _BROKEN)


def pick(built):
    """A task with a distinctive line and a hidden test, and its gold file."""
    for task in built.load():
        (path, gold), *_ = task.gold_files.items()
        if distinctive_lines(gold or "", task.base_files[path] or "") and len(task.fail_to_pass) > 1:
            return task, gold
    raise AssertionError("the fixture's tasks have no distinctive line")


async def scan(tasks, store, backend):
    return [seen async for _, _, _, found in scan_tasks(tasks, store, backend, has_system=False) for seen in found]


@pytest.mark.asyncio
async def test_an_answer_in_another_file_is_seen(built, seeded_layers, backend):
    task, gold = pick(built)
    hidden = task.test_paths[0]
    tests = (pinned_tree(task, seeded_layers) / hidden).read_text()
    open_gold = {"id": "gold", "base_files": {**task.base_files, "notes/old.txt": gold}}
    open_tests = {"id": "tests", "base_files": {**task.base_files, "notes/tests.txt": tests}}
    tasks = [task, *(task.model_copy(update=update) for update in (open_gold, open_tests))]
    sightings = await scan(tasks, seeded_layers, backend)
    assert {(seen.task_id, seen.kind, seen.path) for seen in sightings} == {
        ("gold", "gold", "notes/old.txt"),
        ("tests", "hidden test", "notes/tests.txt"),
    }
    assert [seen.share for seen in sightings if seen.task_id == "gold"] == [1.0]


def with_own_environment(layers, task, root):
    """The same layers with a copy of the environment, which all processes of the tests share."""
    for kind in layers.root.iterdir():
        if kind.name != "environments":
            (root / kind.name).symlink_to(kind)
    place = root / "environments" / task.environment.digest
    shutil.copytree((layers.root / "environments" / task.environment.digest).resolve(), place, symlinks=True)
    return LayerStore(root), place


@pytest.mark.asyncio
async def test_an_answer_in_the_environment_is_seen(built, seeded_layers, backend, tmp_path):
    task, gold = pick(built)
    layers, environment = with_own_environment(seeded_layers, task, tmp_path)
    folder = environment / "lib" / "repairgym-sight-test"
    folder.mkdir()
    (folder / "copy.py").write_text(gold)
    seen = await scan([task], layers, backend)
    assert [(place.kind, place.path.endswith("repairgym-sight-test/copy.py")) for place in seen] == [("gold", True)]
    assert await scan([task], seeded_layers, backend) == []


def test_tasks_with_an_answer_in_sight_leave_the_catalogue(built, seeded_layers, tmp_path, monkeypatch):
    task, gold = pick(built)
    open_task = task.model_copy(update={"id": "open", "base_files": {**task.base_files, "notes/old.txt": gold}})
    TaskStore(tmp_path / "tasks").save([task, open_task], {}, {})
    monkeypatch.setenv("REPAIRGYM_CACHE", str(seeded_layers.root))
    report = tmp_path / "sightings.json"
    done = CliRunner().invoke(app, ["scan", str(tmp_path / "tasks"), "--no-system", "--out", str(report)])
    assert isinstance(done.exception, TaskError)
    assert "answer_in_sight open: notes/old.txt" in done.output
    shown = {task.id: "", **ScanReport.read(report).reasons()}
    config = CurationConfig(filters=("answer_in_sight",))
    funnel = curate(TaskStore(tmp_path / "tasks"), tmp_path / "kept", config, sightings=shown)
    assert [kept.id for kept in TaskStore(tmp_path / "kept").load()] == [task.id]
    assert "notes/old.txt" in funnel.filters[0].removed["open"]


def test_byte_code_belongs_to_its_module():
    assert module_file("x/__pycache__/dicts.cpython-311.pyc") == module_file("x/dicts.py") == "dicts.py"
    assert module_file("x/dicts.txt") == module_file("setup.py.in") == ""


def test_a_report_of_something_else_is_an_error(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    for name in ("x.json", "missing.json"):
        with pytest.raises(InputError, match="repairgym tasks scan"):
            ScanReport.read(tmp_path / name)
