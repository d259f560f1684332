"""The back-test: which versions move, which repairs are tried, what is counted. No index is asked."""

from dataclasses import replace

from repairgym.records import VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.studies.backtest import (
    BackTest,
    Trial,
    changed_versions,
    count_outcomes,
    declared_bounds,
    stored_repairs,
    top_requirements,
)

LOCK = "flit-core==3.12.0 \\\n    --hash=sha256:aa\npytest==8.3.5\nold==1 ; sys_platform == 'win32'\n"


def test_only_what_no_other_package_needs_is_asked_for(tmp_path):
    requires = {
        "hatchling": ["pathspec>=0.10", "gone; python_version < '3'"],
        "pathspec": [],
        "gone": [],
        "Some.Name": ["hatchling; extra == 'dev'"],
        "pytest": ["pluggy"],
        "pluggy": [],
    }
    for name, needed in requires.items():
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1", *(f"Requires-Dist: {one}" for one in needed)]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")
    assert top_requirements(tmp_path) == ["gone", "hatchling", "some-name"]


def test_versions_that_differ_here_are_named():
    newer = LOCK.replace("3.12.0", "4.2.0").replace("old==1", "old==2") + "added==1\n"
    assert changed_versions(LOCK, newer) == {"added": "none -> 1", "flit-core": "3.12.0 -> 4.2.0"}
    assert changed_versions(LOCK, LOCK) == {}


def test_a_runs_passed_patches_are_repairs_once_each(task, tmp_path, trajectory_maker):
    with RunStore.create(tmp_path / "run.db") as store:
        patches = {"a": "+ x", "b": "+ x", "c": "+ y", "d": "+ z"}
        for name, patch in patches.items():
            kind = VerdictKind.FAILED if name == "d" else VerdictKind.PASSED
            made = trajectory_maker(name, task.id, group_id="g", kind=kind, final_patch=patch)
            made = replace(made, final_files={"m.py": patch})
            store.add_trajectory(made, phase="rollout", step=0, split="train")
        repairs = list(stored_repairs({task.id: task}, store))
        assert list(stored_repairs({}, store)) == []
    assert [(one.gold_patch, one.gold_files) for one in repairs] == [("+ x", {"m.py": "+ x"}), ("+ y", {"m.py": "+ y"})]
    assert {one.id for one in repairs} == {task.id}


def test_pins_keep_what_validates_with_them_only():
    def result(source, pinned, unpinned, changes):
        trials = {"pinned": Trial(outcome=pinned), "unpinned": Trial(outcome=unpinned)}
        return BackTest(task_id="t", source=source, package="p", patch="", changes=changes, **trials)

    moved = {"x": "1 -> 2"}
    results = [
        result("breakages", "valid", "no_repair", moved),
        result("breakages", "valid", "valid", moved),
        result("releases", "valid", "no_versions", {}),
        result("releases", "no_repair", "no_failure", moved),
    ]
    counts = count_outcomes(results)
    assert counts["breakages"]["kept_by_pins"] == counts["releases"]["kept_by_pins"] == 1
    assert counts["all"]["kept_by_pins"] == 2
    assert (counts["all"]["repairs"], counts["all"]["changed"], counts["all"]["pinned/valid"]) == (4, 3, 3)
    assert counts["releases"]["unpinned/no_failure"] == 1


def test_the_bounds_are_those_of_the_repaired_project(task, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[build-system]\nrequires = ["flit_core >=9"]\n')
    (tmp_path / "setup.cfg").write_text("[options]\ninstall_requires =\n    six>=1\n")
    assert declared_bounds(task, tmp_path) == ("flit_core >=9", "six>=1")
    repaired = {"pyproject.toml": '[build-system]\nrequires = ["flit_core <4"]\n', "setup.cfg": None}
    assert declared_bounds(task.model_copy(update={"gold_files": repaired}), tmp_path) == ("flit_core <4",)
