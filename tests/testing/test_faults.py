"""Faulty sandboxes: equal seeds draw equal faults, and the runner makes none of them a reward of 0."""

from collections import Counter
from pathlib import Path

import pytest

from repairgym.agent.scripted import ScriptedPolicy
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import SandboxError
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.records import Task, VerdictKind
from repairgym.rollout.jobs import make_group
from repairgym.rollout.runner import Runner
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.faults import FaultPlan, Faults, FaultyBackend


@pytest.mark.asyncio
async def test_equal_seeds_draw_equal_faults() -> None:
    async def starts(seed: int) -> list[bool]:
        faults, failed = Faults(FaultPlan(storm=0.2, storm_size=2, slow_start=0.0, work_s=0.0, seed=seed)), []
        for _ in range(40):
            try:
                await faults.start()
                failed.append(False)
            except SandboxError:
                failed.append(True)
        return failed

    first = await starts(1)
    assert first == await starts(1) != await starts(2)
    assert 0 < sum(first) < 40


@pytest.mark.asyncio
async def test_no_fault_is_a_reward_of_0(task: Task, tmp_path: Path) -> None:
    plan = FaultPlan(storm=0.2, storm_size=3, slow_start=0.1, hang=0.2, lost=0.4, no_space=0.2, skew=0.5, hang_s=0.0)
    renderer = ChatRenderer(train_tokenizer(["user assistant edit test undo submit"] * 9, 400, 40))
    backend = FaultyBackend(Faults(plan))
    runner = Runner(RolloutConfig(), backend, lambda _: TaskLayers(tmp_path, tmp_path), renderer)
    jobs = make_group("phase", 0, task.id, 30, seed=1)
    policy = ScriptedPolicy("oracle", renderer)
    tasks = [task.model_copy(update={"id": f"t{number}"}) for number in range(len(jobs))]
    kinds = Counter[VerdictKind]()
    for job, own in zip(jobs, tasks, strict=True):  # a task each, so that no run is shared
        kinds[(await runner.run_job(job, own, policy, 1.0)).verdict.kind] += 1
    assert set(kinds) == {VerdictKind.PASSED, VerdictKind.INVALID}
