"""Branches of stored episodes: a replayed prefix is the state of the chain, and each sampled token is learned once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.rollout.test_resuming import PIPELINES, Backend, Machine, Sampler, content
from tests.rollout.test_resuming import renderer as renderer

from repairgym.agent.formats import Action
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import InputError
from repairgym.inference.base import Policy
from repairgym.inference.embedded import EmbeddedPolicy
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.learning.samples import policy_sample
from repairgym.ledger import Parent
from repairgym.records import Task, Trajectory, VerdictKind
from repairgym.rollout.jobs import EpisodeJob, Prefix, make_branches
from repairgym.rollout.runner import Runner
from repairgym.rollout.turn_log import TurnLog
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.build.validation import TaskLayers

JOB = EpisodeJob("rl/0/tiny-1#0", "rl/0/tiny-1", "tiny-1", 7)


class Chains:
    """Episodes of one pipeline by the same scripted sampler."""

    def __init__(self, name: str, task: Task, folder: Path, renderer: ChatRenderer) -> None:
        self._pipeline, actions = PIPELINES[name]
        write = make_pipeline(self._pipeline, ExecutionCache()).format.write
        self._texts = tuple(one if isinstance(one, str) else write(Action(*one)) for one in actions)
        self._task, self._folder, self._renderer = task, folder, renderer

    def run(self, job: EpisodeJob, machine: Machine, version: int = 0) -> Trajectory:
        config = RolloutConfig(pipeline=self._pipeline, engine=EngineConfig(max_len_tokens=1 << 20))
        layers, log = TaskLayers(self._folder, self._folder), TurnLog(self._folder / "turns")
        runner = Runner(config, Backend(machine), lambda _: layers, self._renderer, turn_log=log)
        sampler = Sampler(self._renderer, self._texts, machine, version)
        return asyncio.run(runner.run_job(job, self._task, sampler, 1.0))


def branch_of(parent: Trajectory, num_turns: int) -> EpisodeJob:
    """A branch with the parent's own seed, which has to end like it."""
    return EpisodeJob(f"{parent.id}:{num_turns}", "branches", parent.task_id, parent.seed, Prefix(parent, num_turns))


@pytest.mark.parametrize("name", PIPELINES)
def test_a_branch_with_the_seed_of_its_parent_is_the_same_chain(name, task, tmp_path, renderer):
    chains = Chains(name, task, tmp_path, renderer)
    parent = chains.run(JOB, Machine())
    for num_turns in range(1, len(parent.turns)):
        machine = Machine()
        branch = chains.run(branch_of(parent, num_turns), machine)
        num_tokens = parent.turns[num_turns].action_span[0]
        assert machine.num_sampled == len(parent.turns) - num_turns
        assert branch.parent == Parent(trajectory_id=parent.id, num_turns=num_turns)
        assert not branch.ledger.is_action[:num_tokens].any()
        shared = [turn.observation for turn in parent.turns[:num_turns]]
        assert [turn.observation for turn in branch.turns[:num_turns]] == shared
        assert content(replace(branch, ledger=parent.ledger)) == content(parent)
        if name in ("compact", "elided"):  # in the others an observation has seconds, which are tokens
            assert branch.ledger.token_id.tobytes() == parent.ledger.token_id.tobytes()
            assert branch.ledger.log_prob[num_tokens:].tobytes() == parent.ledger.log_prob[num_tokens:].tobytes()


def test_each_sampled_token_is_learned_once(task, tmp_path, renderer):
    chains = Chains("compact", task, tmp_path, renderer)
    parent = chains.run(JOB, Machine())
    branch = chains.run(branch_of(parent, 3), Machine(), version=5)
    own, shared = policy_sample(branch, 1.0), parent.turns[3].action_span[0]
    assert not own.weight[:shared].any()
    assert own.num_learned == sum(end - start for start, end in (turn.action_span for turn in branch.turns[3:]))
    assert set(branch.ledger.policy_version[branch.ledger.is_action].tolist()) == {5}


def test_a_killed_branch_resumes(task, tmp_path, renderer):
    chains = Chains("paper_b", task, tmp_path, renderer)
    parent = chains.run(JOB, Machine())
    job = branch_of(parent, 2)
    first, second = Machine([4]), Machine()  # its own second command
    with pytest.raises(BaseException, match="at moment 4"):
        chains.run(job, first)
    branch = chains.run(job, second)
    assert [turn.action for turn in branch.turns] == [turn.action for turn in parent.turns]
    assert first.num_sampled + second.num_sampled == len(parent.turns) - 2


def test_a_prefix_that_comes_out_differently_is_invalid_and_has_no_reward(task, tmp_path, renderer):
    chains = Chains("paper_b", task, tmp_path, renderer)
    parent = chains.run(JOB, Machine())
    machine = Machine(said="did not write")
    branch = chains.run(branch_of(parent, 2), machine)
    assert branch.verdict.kind is VerdictKind.INVALID
    assert "the turns of the parent came out differently" in branch.verdict.reason
    assert machine.num_sampled == 0


def test_branches_of_a_model_are_the_chain_bit_for_bit(base, task, tmp_path):
    config = RolloutConfig(
        max_in_flight=4,
        pipeline=PipelineConfig(max_len_tokens=260, max_turns=5, max_action_tokens=8),
        engine=EngineConfig(num_slots=4, max_len_tokens=260, is_batch_invariant=True),
    )
    renderer = ChatRenderer(load_tokenizer(base))
    layers = TaskLayers(tmp_path, tmp_path)

    async def run(policy: Policy, job: EpisodeJob) -> Trajectory:
        return await Runner(config, Backend(Machine()), lambda _: layers, renderer).run_job(job, task, policy, 1.0)

    async def all_of_them() -> tuple[Trajectory, list[Trajectory], Trajectory]:
        policy = EmbeddedPolicy.from_folder(base, config.engine)
        parent = await run(policy, JOB)
        branches = [await run(policy, branch_of(parent, num)) for num in range(1, len(parent.turns))]
        other = await run(policy, replace(branch_of(parent, 1), trajectory_id="other", seed=8))
        await policy.close()
        return parent, branches, other

    parent, branches, other = asyncio.run(all_of_them())
    assert len(branches) > 1
    for number, branch in enumerate(branches, 1):
        num_tokens = parent.turns[number].action_span[0]
        assert branch.ledger.token_id.tobytes() == parent.ledger.token_id.tobytes()
        assert branch.ledger.log_prob[num_tokens:].tobytes() == parent.ledger.log_prob[num_tokens:].tobytes()
    first = parent.turns[1].action_span[0]
    assert np.array_equal(other.ledger.token_id[:first], parent.ledger.token_id[:first])
    assert other.ledger.token_id.tobytes() != parent.ledger.token_id.tobytes()


def test_what_cannot_be_branched_is_an_error(trajectory_maker):
    parent = trajectory_maker()
    with pytest.raises(InputError, match="its turns have no state"):
        make_branches(parent, 1, 2, 0, "branch/p")
    parent = replace(parent, turns=tuple(turn.model_copy(update={"state": "a"}) for turn in parent.turns))
    for num_turns in (0, len(parent.turns)):
        with pytest.raises(InputError, match="it branches after turn 1 to 2"):
            make_branches(parent, num_turns, 2, 0, "branch/p")
    one, other = make_branches(parent, 2, 2, 0, "branch/p")
    assert (one.trajectory_id, one.group_id) == ("branch/p/t-1:2#0", "branch/p/t-1:2")
    assert one.seed != other.seed
