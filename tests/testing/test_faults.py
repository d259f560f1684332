"""Faulty sandboxes: attempts of episodes draw equal faults everywhere; the runner makes none a reward of 0."""

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


def draws(faults: Faults, episode_id: str) -> list[bool]:
    faults.begin(episode_id)
    return [faults.hits(0.5) for _ in range(40)]


def test_an_attempt_of_an_episode_draws_the_same_in_any_process(tmp_path: Path) -> None:
    one, other = Faults(FaultPlan(seed=1), tmp_path), Faults(FaultPlan(seed=1))
    first, second = draws(one, "rl/0/a#0"), draws(one, "rl/0/b#0")
    assert (second, first) == (draws(other, "rl/0/b#0"), draws(other, "rl/0/a#0"))
    assert first != second
    assert first != draws(Faults(FaultPlan(seed=2)), "rl/0/a#0")
    # A process that goes on with the episode makes the second attempt.
    again = draws(Faults(FaultPlan(seed=1), tmp_path), "rl/0/a#0")
    assert first != again == draws(other, "rl/0/a#0")


@pytest.mark.asyncio
async def test_a_storm_hits_the_starts_of_all() -> None:
    faults = Faults(FaultPlan(storm=1.0, storm_s=1000.0, slow_start=0.0, work_s=0.0))
    with pytest.raises(SandboxError):
        await faults.start()
    faults.plan = FaultPlan(storm=0.0, slow_start=0.0, work_s=0.0)
    with pytest.raises(SandboxError):
        await faults.start()


@pytest.mark.asyncio
async def test_no_fault_is_a_reward_of_0(task: Task, tmp_path: Path) -> None:
    plan = FaultPlan(storm=0.6, storm_s=0.0, slow_start=0.1, hang=0.2, lost=0.4, no_space=0.2, skew=0.5, hang_s=0.0)
    renderer = ChatRenderer(train_tokenizer(["user assistant edit test undo submit"] * 9, 400, 40))
    backend = FaultyBackend(Faults(plan))
    runner = Runner(RolloutConfig(backoff_s=0.0), backend, lambda _: TaskLayers(tmp_path, tmp_path), renderer)
    jobs = make_group("phase", 0, task.id, 30, seed=1)
    policy = ScriptedPolicy("oracle", renderer)
    tasks = [task.model_copy(update={"id": f"t{number}"}) for number in range(len(jobs))]
    kinds = Counter[VerdictKind]()
    for job, own in zip(jobs, tasks, strict=True):  # a task each, so that no run is shared
        kinds[(await runner.run_job(job, own, policy, 1.0)).verdict.kind] += 1
    assert set(kinds) == {VerdictKind.PASSED, VerdictKind.INVALID}
