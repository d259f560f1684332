"""Faulty sandboxes: attempts of episodes draw equal faults everywhere; the runner makes none a reward of 0."""

import inspect
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from repairgym.agent.scripted import ScriptedPolicy
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import SandboxError, SandboxLostError
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.records import Task, TestRequest, VerdictKind
from repairgym.rollout.jobs import make_group
from repairgym.rollout.runner import Runner
from repairgym.sandbox.base import Sandbox, SandboxSpec
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


def operations(sandbox: Sandbox) -> dict[str, Callable[[], Coroutine[Any, Any, object]]]:
    return {
        "exec": lambda: sandbox.exec(("true",), timeout_s=1.0),
        "run_python": lambda: sandbox.run_python("", timeout_s=1.0),
        "open_session": sandbox.open_session,
        "run_tests": lambda: sandbox.run_tests(TestRequest(test_ids=("a",))),
        "read_file": lambda: sandbox.read_file("m.py"),
        "write_file": lambda: sandbox.write_file("m.py", b""),
        "changed_files": sandbox.changed_files,
        "list_files": sandbox.list_files,
        "diff": sandbox.diff,
        "listen": lambda: sandbox.listen(1),
        "snapshot": sandbox.snapshot,
        "fork": sandbox.fork,
    }


@pytest.mark.asyncio
async def test_every_operation_can_lose_the_sandbox_for_good(task: Task, tmp_path: Path) -> None:
    faults = Faults(FaultPlan(storm=0.0, slow_start=0.0, hang=0.0, lost=0.0, no_space=0.0, work_s=0.0))
    backend = FaultyBackend(faults)
    spec = SandboxSpec(environment=tmp_path, tree=tmp_path, files=task.base_files)
    named = {name for name, value in vars(Sandbox).items() if inspect.iscoroutinefunction(value)}
    assert operations(await backend.create(spec)).keys() == named - {"close"}
    calm = faults.plan
    for name in operations(await backend.create(spec)):
        parent = await backend.create(spec)
        (child,) = await parent.fork()
        for sandbox in (parent, child):
            session = await sandbox.open_session()
            faults.plan = calm.model_copy(update={"lost": 1.0})
            with pytest.raises(SandboxLostError, match="connection lost"):
                await operations(sandbox)[name]()
            faults.plan = calm
            for again in (*operations(sandbox).values(), partial(session.run, "true", timeout_s=1.0)):
                with pytest.raises(SandboxLostError, match="is gone"):
                    await again()
            await sandbox.close()


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
