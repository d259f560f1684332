"""Branches that begin with a fork of a live episode: the state of the replay and of the chain, without its actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.rollout.test_resuming import JOB, PIPELINES, Backend, Machine, Sampler, Sandbox, content
from tests.rollout.test_resuming import renderer as renderer

from repairgym.agent.formats import Action
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.config.models import EngineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import SandboxError
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Task, Trajectory, VerdictKind
from repairgym.rollout.jobs import EpisodeJob, Prefix
from repairgym.rollout.runner import Runner
from repairgym.sandbox.base import SandboxSpec, Snapshot
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedSandbox, ScriptedSnapshot

KEPT = replace(JOB, is_kept=True)


class CountedSnapshot(ScriptedSnapshot):
    """Says how many are open."""

    num_open = 0

    async def close(self) -> None:
        if self.num_bytes == 0:
            self.num_bytes = 1
            CountedSnapshot.num_open -= 1


class ForkingSandbox(Sandbox):
    """Has snapshots, unless it is told to fail."""

    async def snapshot(self) -> CountedSnapshot:
        if self.machine.said == "cannot freeze":
            raise SandboxError("this back end has no snapshots")
        CountedSnapshot.num_open += 1
        return CountedSnapshot(dict(self.files), dict(self._base))


class ForkingBackend(Backend):
    """Makes such sandboxes, from snapshots too; the first ``num_broken`` forks fail."""

    def __init__(self, machine: Machine, num_broken: int = 0) -> None:
        super().__init__(machine)
        self.num_forked = 0
        self.num_broken = num_broken

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> ScriptedSandbox:
        if isinstance(snapshot, ScriptedSnapshot):
            assert snapshot.num_bytes == 0, "a closed snapshot"
            self.num_broken -= 1
            if self.num_broken >= 0:
                raise SandboxError("its zygote is gone")
            self.num_forked += 1
            made = ForkingSandbox(snapshot.files, self._answer, snapshot.base)
        else:
            made = ForkingSandbox(spec.files, self._answer)
        made.machine = self._sandbox_machine
        return made


class Episodes:
    """Episodes of one pipeline in one worker."""

    def __init__(
        self,
        name: str,
        task: Task,
        folder: Path,
        renderer: ChatRenderer,
        num_broken: int = 0,
        machine: Machine | None = None,
    ) -> None:
        pipeline, actions = PIPELINES[name]
        write = make_pipeline(pipeline, ExecutionCache()).format.write
        self._texts = tuple(one if isinstance(one, str) else write(Action(*one)) for one in actions)
        self._task, self._renderer = task, renderer
        self.machine = machine or Machine()
        self.backend = ForkingBackend(self.machine, num_broken)
        layers = TaskLayers(folder, folder)
        config = RolloutConfig(pipeline=pipeline, engine=EngineConfig(max_len_tokens=1 << 20))
        self.runner = Runner(config, self.backend, lambda _: layers, renderer)

    async def run(self, job: EpisodeJob) -> Trajectory:
        sampler = Sampler(self._renderer, self._texts, self.machine, 0)
        return await self.runner.run_job(job, self._task, sampler, 1.0)

    def counts(self) -> tuple[int, int]:
        """Episodes that began with a fork, and actions that were executed again."""
        counters = self.runner.counters()
        return int(counters["turns/num_forked_episodes"]), int(counters["turns/num_executed_again"])


@pytest.fixture
def episodes(task: Task, tmp_path: Path, renderer: ChatRenderer) -> Callable[..., Episodes]:
    return lambda name, num_broken=0, machine=None: Episodes(name, task, tmp_path, renderer, num_broken, machine)


def branch(parent: Trajectory, num_turns: int, **changes: object) -> EpisodeJob:
    """A branch in the parent's group and with its seed, which has to end like it."""
    job = EpisodeJob(
        f"{JOB.group_id}#b{num_turns}", JOB.group_id, parent.task_id, parent.seed, Prefix(parent, num_turns)
    )
    return replace(job, **changes)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_fork_is_the_replay_and_the_chain(name, episodes):
    async def play() -> None:
        here, elsewhere = episodes(name), episodes(name)
        parent = await here.run(KEPT)
        for num_turns in range(1, len(parent.turns)):
            forked = await here.run(branch(parent, num_turns))
            assert here.counts() == (num_turns, 0)
            replayed = await elsewhere.run(branch(parent, num_turns))
            assert content(replace(forked, ledger=parent.ledger)) == content(parent)
            assert content(replace(forked, ledger=parent.ledger)) == content(replace(replayed, ledger=parent.ledger))
            num_tokens = parent.turns[num_turns].action_span[0]
            assert not forked.ledger.is_action[:num_tokens].any()
            assert len(forked.ledger) == len(parent.ledger)
        assert elsewhere.counts()[0] == 0 < elsewhere.counts()[1]
        await here.runner.close()
        assert CountedSnapshot.num_open == 0

    asyncio.run(play())


def test_a_fork_shares_nothing_with_its_parent(episodes):
    """The parent goes on while the branch runs: each has its own files."""

    async def play() -> None:
        here = episodes("paper_b")
        parent = await here.run(KEPT)
        one, other = await asyncio.gather(here.run(branch(parent, 1)), here.run(branch(parent, 4)))
        assert one.final_files == other.final_files == parent.final_files
        assert here.counts() == (2, 0)
        await here.runner.close()

    asyncio.run(play())


def test_a_branch_of_a_branch_is_forked_too(episodes):
    async def play() -> None:
        here = episodes("paper_b")
        parent = await here.run(KEPT)
        first = await here.run(branch(parent, 2, is_kept=True))
        second = await here.run(branch(first, 3, trajectory_id=f"{JOB.group_id}#c"))
        assert here.counts() == (2, 0)
        assert content(replace(second, ledger=parent.ledger)) == content(parent)
        assert not second.ledger.is_action[: first.turns[3].action_span[0]].any()
        await here.runner.close()
        assert CountedSnapshot.num_open == 0

    asyncio.run(play())


def test_without_snapshots_a_branch_replays(episodes):
    async def play() -> None:
        here = episodes("paper_b")
        here.machine.said = "cannot freeze"
        parent = await here.run(KEPT)
        again = await here.run(branch(parent, 2))
        assert here.counts() == (0, 2)
        assert content(replace(again, ledger=parent.ledger)) == content(parent)

    asyncio.run(play())


def test_a_fork_that_fails_is_replayed(episodes):
    async def play() -> None:
        here = episodes("paper_b", num_broken=1)
        parent = await here.run(KEPT)
        again = await here.run(branch(parent, 2))
        assert again.verdict.kind is not VerdictKind.INVALID
        assert here.backend.num_forked == 0
        assert here.counts()[1] == 2
        assert CountedSnapshot.num_open == 0, "what cannot be forked is released"

    asyncio.run(play())


def test_states_are_released_after_the_last_branches(episodes):
    async def play() -> None:
        here = episodes("paper_b")
        parent = await here.run(KEPT)
        assert CountedSnapshot.num_open > 0
        jobs = [branch(parent, 2, trajectory_id=f"b{number}") for number in range(2)]
        sampler = Sampler(here._renderer, here._texts, here.machine, 0)
        tasks = {parent.task_id: here._task}
        assert len([ended async for ended in here.runner.run(jobs, tasks, sampler)]) == 2
        assert CountedSnapshot.num_open == 0

    asyncio.run(play())


def test_the_states_of_an_attempt_that_failed_are_released(episodes):
    async def play() -> None:
        whole = episodes("paper_b")
        await whole.run(KEPT)
        num_open = CountedSnapshot.num_open
        await whole.runner.close()
        assert num_open > 0
        here = episodes("paper_b", machine=Machine([6], SandboxError))  # in the fourth turn
        parent = await here.run(KEPT)
        assert here.machine.num_moments > 6
        assert CountedSnapshot.num_open == num_open
        again = await here.run(branch(parent, 2, is_kept=True))
        assert here.counts()[0] == 1
        assert again.verdict.kind is parent.verdict.kind
        await here.runner.close()
        assert CountedSnapshot.num_open == 0

    asyncio.run(play())
