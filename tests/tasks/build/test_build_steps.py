"""Steps that a build chooses for its tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.records import BuildStep, Environment, Task, TestOutcome, TestRequest, TestResult, TestRun
from repairgym.sandbox.base import SandboxLimits
from repairgym.tasks.build.build_steps import with_build_steps
from repairgym.tasks.layers.store import LayerStore
from repairgym.testing.scripted import Files, ScriptedBackend, scripted_task


def task(path: str) -> Task:
    return scripted_task(
        path,
        source="imported",
        base_tree="t" * 64,
        environment=Environment(lock="", python="3.12", digest="e" * 64),
        base_files={path: "broken\n"},
        gold_files={path: "gold\n"},
    )


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    layers = LayerStore(tmp_path / "layers")
    layers.build_once("trees", "t" * 64, lambda place: None)
    layers.build_once("environments", "e" * 64, lambda place: None)
    return layers


@pytest.mark.asyncio
async def test_a_step_about_changed_files_is_tried_with_those_of_each_task(store: LayerStore) -> None:
    asked: list[tuple[str, ...]] = []

    def answer(files: Files, request: TestRequest) -> TestRun:
        asked.append(request.compiled_paths or request.imported_modules)
        is_broken = "pkg/b.py" in request.compiled_paths
        result = TestResult(outcome=TestOutcome.FAILED if is_broken else TestOutcome.PASSED)
        return TestRun(results={}, checks=dict.fromkeys(("compile", "import"), result), exit_status=0)

    tasks = [task("pkg/a.py"), task("pkg/b.py"), task("pkg/a.py")]
    made, dropped = await with_build_steps(tasks, store, ScriptedBackend(answer), SandboxLimits())
    own, imports = BuildStep(kind="compile"), BuildStep(kind="import", modules=("pkg",))
    assert [one.build for one in made] == [(own, imports), (imports,), (own, imports)]
    assert dropped == {"no_compile_step": 1}
    # An import is about the whole gold state, which they share.
    assert asked == [("pkg/a.py",), ("pkg",), ("pkg/b.py",)]
    again, _ = await with_build_steps(made[:1], store, ScriptedBackend(answer), SandboxLimits())
    assert (again, len(asked)) == (made[:1], 3)
