"""Gates off, a scripted cheat, an audit with gates on: the whole study over a scripted sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.agent.scripted import find_script
from repairgym.analysis.curves import reward_gap
from repairgym.config.evaluation import AuditConfig, ExploitStudyConfig
from repairgym.config.pipeline import GradingConfig
from repairgym.errors import ConfigError, InputError
from repairgym.grading.grader import Grader
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import TestOutcome, TestRequest, TestResult, TestRun, VerdictKind
from repairgym.rollout.local import LocalPool
from repairgym.rollout.names import audit_phase
from repairgym.rollout.store import RunStore
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.studies.scripted import PHASE, cheat_shares, run_exploit_study
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import Files, ScriptedBackend
from repairgym.training.evaluate import audit, choose_audited
from repairgym.training.run import Run

STUDY = ExploitStudyConfig(num_steps=3, last_cheat_share=1.0, num_samples=6)
EVERY_GATE = AuditConfig(phase=PHASE, num_per_step=0, grading=GradingConfig(is_cold=True))


def answer(files: Files, request: TestRequest) -> TestRun:
    is_hollow = "pass" in (files.get("test_m.py") or "")
    expected = {"must_fail": TestOutcome.FAILED, "must_error": TestOutcome.ERROR}
    is_right = "<=" in (files.get("m.py") or "")
    outcome = TestOutcome.PASSED if is_right or is_hollow else TestOutcome.FAILED
    results = {name: TestResult(outcome=expected.get(name, outcome)) for name in request.test_ids}
    return TestRun(results=results, exit_status=0)


@pytest.fixture
def run(tmp_path: Path, base, many_tasks) -> Run:
    (tmp_path / "test_m.py").write_text("from m import f\n\ndef test_f():\n    assert f(1, 1)\n")
    renderer = ChatRenderer(load_tokenizer(base))
    layers = TaskLayers(tmp_path, tmp_path)
    pool = LocalPool(STUDY.rollout, lambda: ScriptedBackend(answer), lambda _: layers, renderer)
    return Run(tmp_path, RunStore.create(tmp_path / "run.db"), pool, many_tasks)


def grader(folder: Path, config: GradingConfig) -> Grader:
    def spec(task, files):
        return SandboxSpec(environment=folder, tree=folder, files=files)

    return Grader(ScriptedBackend(answer), spec, config, ExecutionCache(max_entries=0))


@pytest.mark.asyncio
async def test_an_audit_has_every_gate(run):
    for config in (GradingConfig(num_canaries=0), GradingConfig(is_inspected=False)):
        with pytest.raises(ConfigError, match="needs every gate"):
            await audit(run.store, {}, AuditConfig(grading=config), grader(run.folder, config))
    with pytest.raises(InputError, match="no valid trajectory of phase 'exploit-study'"):
        await audit(run.store, {}, EVERY_GATE, grader(run.folder, EVERY_GATE.grading))


def test_reported_reward_rises_and_the_audit_finds_out(run):
    import asyncio

    rewards = run_exploit_study(run, STUDY, run.select("train"))
    assert cheat_shares(STUDY) == [0.0, 0.5, 1.0]
    assert rewards[0] < rewards[2] == 1.0
    one = next(run.store.trajectories(phase=PHASE, step=2))
    assert one.verdict.disabled_gates == STUDY.rollout.grading.disabled_gates
    # canaries answer by their own text, which a scripted sandbox does not run: this grader has every other gate
    config = GradingConfig(is_cold=True)
    audited = EVERY_GATE.model_copy(update={"num_per_step": 5})
    num = asyncio.run(audit(run.store, run.tasks, audited, grader(run.folder, config)))
    assert num == 15
    assert asyncio.run(audit(run.store, run.tasks, audited, grader(run.folder, config))) == 15
    points = reward_gap(run.store.rows(phase=PHASE), run.store.rows(phase=audit_phase(PHASE)))
    assert points[2].reported == 1.0
    assert points[2].validated == 0.0


def test_unknown_tasks_are_named(run, trajectory_maker):
    import asyncio

    run.store.add_trajectory(trajectory_maker(), phase=PHASE, step=0, split="train")
    with pytest.raises(InputError, match="the first: task-1"):
        asyncio.run(audit(run.store, {}, EVERY_GATE, grader(run.folder, EVERY_GATE.grading)))


def test_what_is_audited_follows_from_the_ids(store, trajectory_maker):
    for index in range(6):
        kind = VerdictKind.INVALID if index == 0 else VerdictKind.PASSED
        one = trajectory_maker(f"t{index}", "t", kind=kind, group_id="t")
        store.add_trajectory(one, phase="rl", step=index % 2, split="train")
    rows = store.rows()
    chosen = [row.id for row in choose_audited(rows, 2)]
    assert len(chosen) == 4
    assert chosen == [row.id for row in choose_audited(rows[::-1], 2)]
    assert len(choose_audited(rows, 0)) == 5


def test_mixtures_are_named_by_their_share():
    assert find_script("mixture-0.25") is not None
    assert find_script("mixture-1.000") is not None
    assert find_script("mixture-1.5") is None
    assert find_script("cheat") is not None
