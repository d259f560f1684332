from __future__ import annotations

import pytest

from repairgym.records import Task
from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.build.validation import check_tests
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest
from repairgym.tasks.sources.base import Drop
from repairgym.tasks.sources.failed_repairs import certified, combined_bug
from repairgym.tasks.store import TaskStore

PATH = "src/tinycalc/numbers.py"
FURTHER = (
    ("return high", "return low"),
    ("return total / len", "return len"),
    ("count += 1", "count += 2"),
    ("totals.append(last)", "totals.append(0)"),
)


@pytest.fixture
def task(built: TaskStore) -> Task:
    return built.load(source="mutations")[0]


def left_by(task: Task) -> dict[str, str | None]:
    """The file of a submission that broke what was whole, and repaired nothing."""
    text = task.base_files[PATH] or ""
    for old, new in FURTHER:
        text = text.replace(old, new)
    return {PATH: text}


@pytest.mark.asyncio
async def test_a_failed_repair_becomes_a_certified_task(
    task: Task, seeded_layers: LayerStore, backend: SandboxBackend
) -> None:
    combined = combined_bug(task, left_by(task))
    assert isinstance(combined, Task)
    made = await certified(combined, seeded_layers, backend)
    assert isinstance(made, Task), made
    check_tests(made)
    assert made.certificate.is_valid
    assert set(made.fail_to_pass) != set(task.fail_to_pass)
    assert made.pass_to_pass
    assert made.labels["operator"] == "failed_repair"
    assert int(made.labels["difficulty"]) > 1
    assert made.gold_files == task.gold_files
    assert {path: text for path, text in made.base_files.items() if path != PATH} == {
        path: text for path, text in task.base_files.items() if path != PATH
    }
    assert made.id != task.id


@pytest.mark.parametrize("kind", ["nothing", "tests", "other", "syntax", "gold", "same"])
def test_what_is_no_other_bug(task: Task, kind: str) -> None:
    broken = task.base_files[PATH] or ""
    files: dict[str, tuple[dict[str, str | None], str]] = {
        "nothing": ({}, "other_files"),
        "tests": ({task.test_paths[0]: ""}, "other_files"),
        "other": ({PATH: broken, "src/tinycalc/new.py": ""}, "other_files"),
        "syntax": ({PATH: "def f(:\n"}, "does_not_parse"),
        "gold": (dict(task.gold_files), "no_further_bug"),
        "same": ({PATH: broken}, "no_further_bug"),
    }
    changed, reason = files[kind]
    made = combined_bug(task, changed)
    assert isinstance(made, Drop)
    assert made.reason == reason


def test_no_manifest_holds_them(task: Task, tinycalc: Package, tmp_path) -> None:
    (tmp_path / "manifest.toml").write_text('entries = "real"\n')
    combined = combined_bug(task, left_by(task))
    assert isinstance(combined, Task)
    assert TaskManifest(tmp_path / "manifest.toml").add([combined], {"tinycalc": tinycalc}) == {"needs_its_episode": 1}
