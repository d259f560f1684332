"""Import and export of whole folders, and pins from clones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from repairgym.cli.tasks import app
from repairgym.diffs.apply import apply_patch
from repairgym.diffs.make import unified_diff
from repairgym.errors import ConfigError, InputError
from repairgym.records import TestRunner as Runner
from repairgym.tasks.formats.exporting import CERTIFIED_FIELD, export_dataset
from repairgym.tasks.formats.importing import CloneFolder, import_dataset
from repairgym.tasks.formats.registry import FORMATS
from repairgym.tasks.layers.debian import DEBIAN_HEAD
from repairgym.tasks.layers.environments import WHEELHOUSE_HEAD
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TASKS_FILE, UNBUILT_FILE, TaskStore

RUNNER = CliRunner()
GOLD = "--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-x = 3\n+x = 2\n"
TESTS = "--- /dev/null\n+++ b/test_calc.py\n@@ -0,0 +1 @@\n+def test_x(): pass\n"


def record(number: int = 7, **fields: Any) -> dict[str, Any]:
    return {
        "instance_id": f"acme__calc-{number}",
        "repo": "acme/calc",
        "base_commit": "a" * 40,
        "patch": GOLD,
        "test_patch": TESTS,
        "problem_statement": "x is 3",
        "hints_text": "",
        "version": "",
        "created_at": "",
        "FAIL_TO_PASS": ["test_calc.py::test_x"],
        "PASS_TO_PASS": [],
        **fields,
    }


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.fixture
def clone(tmp_path: Path) -> tuple[Path, str]:
    """A folder with a clone of acme/calc, and its commit."""
    place = tmp_path / "repos" / "acme__calc"
    place.mkdir(parents=True)
    (place / "calc.py").write_text("x = 3\n")
    identity = ("-c", "user.name=n", "-c", "user.email=e@x")
    for arguments in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "m")):
        subprocess.run(["git", *arguments], cwd=place, check=True)
    (place / "calc.py").write_text("changed in the work tree\n")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=place, check=True, capture_output=True, text=True)
    return tmp_path / "repos", head.stdout.strip()


def test_bad_records_are_named_and_the_good_ones_kept(tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "d.jsonl", record(1), "{", record(2, patch=None), record(1, hints_text="h"), record(3)
    )
    done = import_dataset(source, tmp_path / "tasks")
    assert [task.id for task in TaskStore(tmp_path / "tasks").iter_unbuilt()] == ["acme__calc-1", "acme__calc-3"]
    reasons = {bad.place: bad.reason for bad in done.bad}
    assert list(reasons) == ["d.jsonl line 2", "d.jsonl line 3", "d.jsonl line 4"]
    assert "belongs to another task" in reasons["d.jsonl line 4"]
    rejected = (tmp_path / "tasks" / "rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["place"] for line in rejected] == list(reasons)
    funnel = json.loads((tmp_path / "tasks" / "funnel.json").read_text())
    assert funnel["total"]["import"] == {"records": 5, "unreadable": 3, "known_before": 0, "kept": 2}


def test_a_second_import_changes_nothing_and_adds_what_is_new(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    import_dataset(write_lines(tmp_path / "a.jsonl", record(1)), folder)
    before = (folder / UNBUILT_FILE).read_bytes()
    again = import_dataset(tmp_path / "a.jsonl", folder)
    assert (again.num_known, again.num_imported) == (1, 0)
    assert (folder / UNBUILT_FILE).read_bytes() == before
    import_dataset(write_lines(tmp_path / "b.jsonl", record(2)), folder)
    assert (folder / UNBUILT_FILE).read_bytes().startswith(before)


def test_a_source_that_breaks_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    import_dataset(write_lines(tmp_path / "a.jsonl", record(1)), folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InputError, match="there is no"):
        import_dataset(tmp_path / "absent.jsonl", folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_base_files_come_from_the_commit_and_not_from_the_work_tree(tmp_path: Path, clone: tuple[Path, str]) -> None:
    repos, commit = clone
    source = write_lines(tmp_path / "d.jsonl", record(1, base_commit=commit), record(2), record(3, repo="acme/other"))
    done = import_dataset(source, tmp_path / "tasks", clones=CloneFolder(repos))
    pinned, absent, other = TaskStore(tmp_path / "tasks").iter_unbuilt()
    assert pinned.base_files == {"calc.py": "x = 3\n", "test_calc.py": None}
    assert pinned.gold_files == {"calc.py": "x = 2\n"}
    assert len(pinned.base_tree) == 40
    assert not any("base files" in part for part in pinned.missing)
    assert "is not in" in absent.pin_error
    assert any("no clone of acme/other" in part for part in other.missing)
    assert done.num_pinned == 1
    # Pins do not make another record of it.
    assert import_dataset(source, tmp_path / "tasks").num_known == 3


def test_the_bug_of_swe_smith_is_in_the_base_files(tmp_path: Path, clone: tuple[Path, str]) -> None:
    repos, commit = clone
    bug = "--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-x = 3\n+x = 4\n"
    fields = record(1, patch=bug, repo=f"swesmith/acme__calc.{commit[:8]}", image_name="i")
    for name in ("test_patch", "base_commit"):
        del fields[name]
    import_dataset(write_lines(tmp_path / "d.jsonl", fields), tmp_path / "tasks", clones=CloneFolder(repos))
    (task,) = TaskStore(tmp_path / "tasks").iter_unbuilt()
    assert (task.base_files, task.gold_files) == ({"calc.py": "x = 4\n"}, {"calc.py": "x = 3\n"})


def test_a_patch_that_does_not_fit_the_commit_is_said(tmp_path: Path, clone: tuple[Path, str]) -> None:
    repos, commit = clone
    source = write_lines(tmp_path / "d.jsonl", record(1, base_commit=commit, patch=GOLD.replace("x = 3", "y = 3")))
    import_dataset(source, tmp_path / "tasks", clones=CloneFolder(repos))
    (task,) = TaskStore(tmp_path / "tasks").iter_unbuilt()
    assert "does not apply" in task.pin_error
    assert task.base_files == {}


@pytest.mark.parametrize("name", ["swe_bench", "swe_rebench", "swe_bench_5", "multi_swe"])
def test_an_imported_folder_is_exported_in_another_format_and_back(tmp_path: Path, name: str) -> None:
    source = write_lines(tmp_path / "d.jsonl", record(1, note={"a": 1}), record(2))
    import_dataset(source, tmp_path / "tasks")
    done = export_dataset(TaskStore(tmp_path / "tasks"), tmp_path / "out", FORMATS[name], "jsonl")
    assert done.num_written == 2
    (tmp_path / "out").rename(tmp_path / "out.jsonl") if (tmp_path / "out").is_file() else None
    place = tmp_path / "out" if FORMATS[name].is_folder else tmp_path / "out.jsonl"
    import_dataset(place, tmp_path / "back")
    export_dataset(TaskStore(tmp_path / "back"), tmp_path / "again.jsonl", FORMATS["swe_gym"], "jsonl")
    first = json.loads((tmp_path / "again.jsonl").read_text().splitlines()[0])
    wanted = record(1)
    assert {key: first[key] for key in wanted if key != "problem_statement"} == {
        key: value for key, value in wanted.items() if key != "problem_statement"
    }
    assert first["problem_statement"].strip() == "x is 3"


def test_tasks_that_a_format_cannot_hold_are_left_out_with_a_reason(tmp_path: Path) -> None:
    import_dataset(write_lines(tmp_path / "d.jsonl", record(1), record(2, instance_id="x")), tmp_path / "tasks")
    store = TaskStore(tmp_path / "tasks")
    done = export_dataset(store, tmp_path / "out.jsonl", FORMATS["multi_swe"], "jsonl")
    assert (done.num_written, list(done.refused)) == (1, ["x"])
    assert "number of a pull request" in done.refused["x"]


@pytest.mark.parametrize(
    ("name", "layout"), [("swe_bench", "jsonl"), ("swe_gym", "json"), ("swe_bench_5", "folders"), ("harbor", "folders")]
)
def test_certified_tasks_come_back_certified(
    built: TaskStore, seeded_layers: LayerStore, tmp_path: Path, name: Any, layout: Any
) -> None:
    place = tmp_path / ("out" if layout == "folders" else f"out.{layout}")
    done = export_dataset(built, place, FORMATS[name], layout, seeded_layers)
    assert not done.refused
    back = import_dataset(place, tmp_path / "back")
    assert (back.num_certified, back.bad) == (done.num_written, [])
    assert (tmp_path / "back" / TASKS_FILE).read_bytes() == (built.folder / TASKS_FILE).read_bytes()
    assert import_dataset(place, tmp_path / "back").num_known == done.num_written


def test_of_two_tasks_with_one_id_the_first_is_exported(
    built: TaskStore, seeded_layers: LayerStore, tmp_path: Path
) -> None:
    task = built.load()[0]
    TaskStore(tmp_path / "twins").save([task, task.model_copy(update={"issue": "other"})], {}, {})
    done = export_dataset(TaskStore(tmp_path / "twins"), tmp_path / "out", FORMATS["harbor"], "folders", seeded_layers)
    assert (done.num_written, done.refused) == (1, {task.id: "an earlier task has this id"})


def test_the_patch_of_tests_brings_the_hidden_tests_back(
    built: TaskStore, seeded_layers: LayerStore, tmp_path: Path
) -> None:
    export_dataset(built, tmp_path / "out.jsonl", FORMATS["swe_bench"], "jsonl", seeded_layers)
    lines = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    rows = {row["instance_id"]: row for row in lines}
    task = next(task for task in built.load() if set(task.fail_to_pass) - set(task.visible_tests))
    after = apply_patch(rows[task.id]["test_patch"], task.base_files.get)
    names = [test_id.rpartition("::")[2].partition("[")[0] for test_id in task.fail_to_pass]
    assert all(any(f"def {name}" in (text or "") for text in after.values()) for name in names)


def run_in(work: Path, script: Path, environment: Path) -> str:
    """What a script of a task folder prints where the container's folders are below ``work``."""
    text = script.read_text().replace("/testbed", str(work / "testbed")).replace("/logs", str(work / "logs"))
    local = script.with_name(f"local-{script.name}")
    local.write_text(text)
    variables = {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "HOME": str(work)}
    done = subprocess.run(["bash", str(local)], env=variables, timeout=120, capture_output=True, text=True)
    return done.stdout


def test_a_harbor_folder_rewards_the_repair_and_nothing_else(
    built: TaskStore, seeded_layers: LayerStore, small_environment: Path, tmp_path: Path
) -> None:
    task = next(task for task in built.load() if set(task.fail_to_pass) - set(task.visible_tests))
    TaskStore(tmp_path / "one").save([task], {}, {})
    export_dataset(TaskStore(tmp_path / "one"), tmp_path / "out", FORMATS["harbor"], "folders", seeded_layers)
    (folder,) = (tmp_path / "out").iterdir()
    agent_files = folder / "environment" / "base"
    hidden = next(name for name in task.fail_to_pass if name not in task.visible_tests).partition("::")
    assert f"def {hidden[2]}(" not in (agent_files / hidden[0]).read_text()
    (repaired, *_) = task.gold_files
    skip = "import pytest\ndef pytest_collection_modifyitems(items):\n    for item in items:\n"
    attacks = {
        "early exit": {repaired: "import os\nos._exit(0)\n"},
        "skipped module": {repaired: "import unittest\nraise unittest.SkipTest('no')\n"},
        "skipping conftest": {"conftest.py": skip + "        item.add_marker(pytest.mark.skip)\n"},
        "own settings": {"pytest.ini": "[pytest]\naddopts = --collect-only\n"},
    }
    rewards = {}
    for attempt in ("nothing", "solution", *attacks):
        work = tmp_path / attempt.replace(" ", "_")
        shutil.copytree(agent_files, work / "testbed")
        (work / "logs" / "verifier").mkdir(parents=True)
        (work / "logs" / "verifier" / "reward.txt").write_text("1\n")
        for path, text in attacks.get(attempt, {}).items():
            (work / "testbed" / path).write_text(text)
        if attempt == "solution":
            run_in(work, folder / "solution" / "solve.sh", small_environment)
        run_in(work, folder / "tests" / "test.sh", small_environment)
        rewards[attempt] = (work / "logs" / "verifier" / "reward.txt").read_text()
    assert rewards == dict.fromkeys(rewards, "0\n") | {"solution": "1\n"}


@pytest.mark.parametrize(
    ("lock", "runner", "reason"),
    [
        ("Tinycalc==1.1 \\\n    --hash=sha256:00\n", "pytest", "its lock installs tinycalc itself"),
        (WHEELHOUSE_HEAD + "six==1.16.0\n", "pytest", "has a wheelhouse"),
        (DEBIAN_HEAD + "maven\n", "pytest", "a toolchain from Debian"),
        ("", "tape", "its tests are run by tape"),
        (None, "pytest", "is made by npm"),
    ],
)
def test_what_a_dockerfile_cannot_install_is_refused_by_harbor(
    built: TaskStore, seeded_layers: LayerStore, tmp_path: Path, lock: str | None, runner: Any, reason: str
) -> None:
    task = built.load()[0]
    changed = "{}" if lock is None else task.environment.lock + lock
    environment = task.environment.model_copy(update={"lock": changed})
    update = {"environment": environment, "runner": Runner(type=runner)}
    TaskStore(tmp_path / "one").save([task.model_copy(update=update)], {}, {})
    done = export_dataset(TaskStore(tmp_path / "one"), tmp_path / "out", FORMATS["harbor"], "folders", seeded_layers)
    assert done.num_written == 0
    assert reason in done.refused[task.id]
    others = export_dataset(TaskStore(tmp_path / "one"), tmp_path / "o.json", FORMATS["swe_gym"], "json", seeded_layers)
    assert not others.refused


@pytest.mark.slow
def test_scripts_of_an_imported_task_put_the_tests_back(
    tmp_path: Path, clone: tuple[Path, str], small_environment: Path
) -> None:
    repos, commit = clone
    check = "from calc import x\n\n\ndef test_x():\n    assert x == 2\n"
    tests = unified_diff({}, {"test_calc.py": check})
    fields = record(base_commit=commit, test_patch=tests, image="registry/calc")
    import_dataset(write_lines(tmp_path / "d.jsonl", fields), tmp_path / "tasks", FORMATS["swe_bench"])
    for name in ("harbor", "swe_bench_5"):
        export_dataset(TaskStore(tmp_path / "tasks"), tmp_path / name, FORMATS[name], "folders")
    (folder,) = (tmp_path / "harbor").iterdir()
    (other,) = (tmp_path / "swe_bench_5" / "tasks").iterdir()
    rewards = []
    for is_solved in (False, True):
        work = tmp_path / f"work-{is_solved}"
        shutil.copytree(repos / "acme__calc", work / "testbed")
        (work / "testbed" / "calc.py").write_text("x = 3\n")
        (work / "testbed" / "test_calc.py").write_text("def test_x(): pass\n")
        if is_solved:
            run_in(work, folder / "solution" / "solve.sh", small_environment)
        run_in(work, folder / "tests" / "test.sh", small_environment)
        rewards.append((work / "logs" / "verifier" / "reward.txt").read_text().strip())
        output = run_in(work, other / "eval.sh", small_environment)
        assert ">>>>> Start Test Output" in output
        assert ("PASSED test_calc.py::test_x" in output) == is_solved
    assert rewards == ["0", "1"]


def test_a_certificate_does_not_cover_what_was_changed_since(
    built: TaskStore, seeded_layers: LayerStore, tmp_path: Path
) -> None:
    export_dataset(built, tmp_path / "out.jsonl", FORMATS["swe_gym"], "jsonl", seeded_layers)
    row = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    changed = write_lines(tmp_path / "changed.jsonl", {**row, "problem_statement": "other"})
    (bad,) = import_dataset(changed, tmp_path / "back").bad
    assert "issue changed since the export" in bad.reason
    del row[CERTIFIED_FIELD]
    done = import_dataset(write_lines(tmp_path / "plain.jsonl", row), tmp_path / "plain")
    assert dict(done.formats) == {"swe_gym": 1}


# --- commands ------------------------------------------------------------------------------------------------------


def test_the_commands_import_show_count_and_export(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "d.jsonl", record(1), "{")
    tasks = str(tmp_path / "tasks")
    done = RUNNER.invoke(app, ["import", tasks, str(source)])
    assert (done.exit_code, "2 records: 1 new tasks, 0 known, 1 bad" in done.output) == (0, True)
    assert "d.jsonl line 2" in done.output
    listed = RUNNER.invoke(app, ["show", tasks]).output
    assert "acme__calc-1\t\tswe_gym, unbuilt\tx is 3" in listed
    shown = RUNNER.invoke(app, ["show", tasks, "acme__calc-1"]).output
    for part in ("a certificate: nothing was run here", "give a clone with --repos", "+x = 2", "fail to pass tests"):
        assert part in shown
    counted = json.loads(RUNNER.invoke(app, ["stats", tasks, "--json"]).output)
    assert (counted["num_tasks"], counted["num_unbuilt"]) == (0, 1)
    assert counted["packages"][0]["package"] == "acme/calc"
    written = RUNNER.invoke(app, ["export", tasks, str(tmp_path / "out.json"), "--format", "swe_bench"])
    assert "1 tasks in" in written.output
    (row,) = json.loads((tmp_path / "out.json").read_text())
    assert row["FAIL_TO_PASS"] == '["test_calc.py::test_x"]'


def test_commands_refuse_what_they_cannot_do(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "d.jsonl", record(1))
    tasks = str(tmp_path / "tasks")
    unknown = RUNNER.invoke(app, ["import", tasks, str(source), "--format", "swebench"])
    assert isinstance(unknown.exception, ConfigError)
    no_clones = RUNNER.invoke(app, ["import", tasks, str(source), "--repos", str(tmp_path / "absent")])
    assert "no folder" in str(no_clones.exception)
    none_good = RUNNER.invoke(app, ["import", tasks, str(write_lines(tmp_path / "b.jsonl", "{"))])
    assert "none of the 1 records" in str(none_good.exception)
    RUNNER.invoke(app, ["import", tasks, str(source)])
    wrong = RUNNER.invoke(app, ["export", tasks, str(tmp_path / "o.jsonl"), "--format", "swe_bench_5"])
    assert "one folder per task" in str(wrong.exception)
    nothing = RUNNER.invoke(app, ["export", tasks, str(tmp_path / "o"), "--format", "harbor"])
    assert "none of the 1 tasks" in str(nothing.exception)
    absent = RUNNER.invoke(app, ["show", tasks, "nothing"])
    assert "no task nothing" in str(absent.exception)
