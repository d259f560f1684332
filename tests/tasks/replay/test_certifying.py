"""Real tasks of a tiny package: the command records them, and what it can tell stands in their certificates."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from repairgym.cli.tasks import app
from repairgym.config.pipeline import GradingConfig
from repairgym.grading.contradictions import compare
from repairgym.grading.grader import Grader
from repairgym.grading.replayed import ReplayJudge
from repairgym.records import Task, VerdictKind
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.build.validation import graded_files, task_layers
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.replay.making import SandboxRecorder
from repairgym.tasks.replay.stored import OracleStore
from repairgym.tasks.replay.trees import replay_spec
from repairgym.tasks.store import TaskStore


def test_the_command_writes_into_certificates(
    built: TaskStore, seeded_layers: LayerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPAIRGYM_CACHE", str(seeded_layers.root))
    tasks = built.load(source="mutations")[:2]
    TaskStore(tmp_path).save(tasks, {}, {})
    done = CliRunner().invoke(app, ["replay", str(tmp_path), tasks[0].id], catch_exceptions=False)
    assert "can tell 1 of 1 tasks" in done.output
    by_id = {task.id: task for task in TaskStore(tmp_path).load()}
    strength = by_id[tasks[0].id].certificate.replay
    assert strength is not None
    assert strength.num_deciding_steps > 0
    assert strength.num_scripts == strength.num_tests == len(tasks[0].fail_to_pass + tasks[0].pass_to_pass)
    assert by_id[tasks[1].id] == tasks[1]


@pytest.mark.asyncio
async def test_a_real_task_is_told_by_its_answers(built: TaskStore, seeded_layers: LayerStore) -> None:
    task = built.load(source="mutations")[0]
    backend, oracles = NamespaceBackend(), OracleStore(seeded_layers)

    def make_spec(task: Task, files: dict[str, str | None]) -> SandboxSpec:
        return task_layers(task, seeded_layers).spec(files)

    recorder = SandboxRecorder(backend)
    judge = ReplayJudge(recorder, make_spec, oracles)
    grader = Grader(backend, make_spec, GradingConfig(), ExecutionCache(), replay_judge=judge)
    path = next(iter(task.gold_files))
    try:
        passed = await grader.grade(task, {**task.gold_files, path: f"{task.gold_files[path]}\n_done = 1\n"})
        assert (passed.kind, passed.num_replayed_steps > 0) == (VerdictKind.PASSED, True), passed.reason
        oracle = oracles.load(task)
        assert oracle is not None
        spec = replay_spec(task, make_spec, graded_files(task))
        scripts = [script for group in oracle.scripts.values() for script in group]
        replay = await recorder.replay(spec, scripts, task.source_paths, timeout_s=60.0)
        assert compare(oracle, scripts, replay).consequence == "exploited"
    finally:
        await backend.close()
