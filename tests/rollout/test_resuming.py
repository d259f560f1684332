"""Episodes whose process dies at any moment: another one continues behind the recorded turns and ends the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from repairgym.agent.conversation import SEED_STRIDE
from repairgym.agent.formats import Action
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.agent.scripted import ScriptedPolicy
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import ElisionConfig, FullConfig, PaperBConfig, PipelineConfig, SimplifiedConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ModelServerError, SandboxError
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.records import Task, TestRequest, TestRun, Trajectory, VerdictKind
from repairgym.rollout.jobs import EpisodeJob
from repairgym.rollout.runner import Runner
from repairgym.rollout.turn_log import TurnLog
from repairgym.sandbox.base import ExecResult, SandboxSpec, Snapshot
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import Files, ScriptedBackend, ScriptedSandbox, ScriptedSession, scripted_answer

SAMPLED_S = 8.0
"""Seconds of each answer, as the sampler says."""
JOB = EpisodeJob("rl/0/tiny-1#0", "rl/0/tiny-1", "tiny-1", 7)
REPAIR = {"path": "m.py", "content": "def f(a, b):\n    return a <= b\n"}
COMPACT = ("edit > => <= @2", "test", "edit < => > @2", "undo", "nonsense", "edit < => <= @2", "test", "submit")
SHELL = (
    ("shell", "echo 1 > a.txt"),
    ("open", "m.py"),
    ("edit", "2:2 << 'EOF'\n    return a <= b\nEOF"),
    ("shell", "echo 2 > b.txt"),
    ("submit", ""),
)
BUILD = (
    ("read_file", {"path": "m.py"}),
    ("validate_and_build", {}),
    ("run_sh", {"command": "echo 2 > b.txt"}),
    ("write_file", REPAIR),
    ("validate_and_build", {}),
)
REVIEWED = ("edit < => > @2", "submit", "undo", "edit < => <= @2", "submit")
WRITTEN = (*SHELL, "The bound is part of it.\njudgement: right", ("submit", ""))
CUT = {"context": ElisionConfig(num_kept=1, every_turns=2), "max_len_tokens": 5000}
PIPELINES = {
    "compact": (PipelineConfig(max_len_tokens=5000), COMPACT),
    "elided": (PipelineConfig(**CUT), COMPACT),
    "reviewed": (PipelineConfig(max_len_tokens=5000, review="actions"), REVIEWED),
    "paper_b": (PaperBConfig(has_git=False), SHELL),
    "written": (PaperBConfig(has_git=False, review="written"), WRITTEN),
    "simplified": (SimplifiedConfig(), BUILD),
    "full": (FullConfig(), BUILD),
}


class Killed(BaseException):
    """The death of the process."""


class Machine:
    """Raises at given moments, and counts what was done."""

    def __init__(self, moments: Collection[int] = (), error: type[BaseException] = Killed, said: str = "wrote") -> None:
        self.said = said
        self.num_moments = self.num_sampled = self.num_tested = 0
        self._moments = frozenset(moments)
        self._error = error

    def pass_moment(self) -> None:
        self.num_moments += 1
        if self.num_moments in self._moments:
            raise self._error(f"at moment {self.num_moments}")


class Sampler:
    """Takes the next of its actions, with random log-probabilities."""

    id = "sampler"

    def __init__(self, renderer: ChatRenderer, actions: tuple[str, ...], machine: Machine, version: int) -> None:
        self._renderer = renderer
        self._actions = actions
        self._machine = machine
        self._version = version

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        self._machine.pass_moment()
        ids = self._renderer.action_ids(self._actions[sampling.seed - JOB.seed * SEED_STRIDE])
        self._machine.num_sampled += 1
        drawn = random.Random(f"{sampling.seed} {prompt_ids}")
        log_probs = tuple(float(np.float32(-drawn.random())) for _ in ids)
        return Generation(
            token_ids=tuple(ids),
            log_probs=log_probs,
            is_stopped=True,
            policy_version=self._version,
            prefill_s=SAMPLED_S / 4,
            decode_s=SAMPLED_S * 3 / 4,
        )

    async def end_session(self, session_id: str) -> None:
        pass


class Shell(ScriptedSession):
    """Writes files: ``echo TEXT > PATH``."""

    def __init__(self, sandbox: ScriptedSandbox, machine: Machine) -> None:
        super().__init__("main")
        self._sandbox = sandbox
        self._machine = machine

    async def run(self, command: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        self._machine.pass_moment()
        text, _, path = command.removeprefix("echo ").partition(" > ")
        self._sandbox.files[path] = text
        duration_s = random.random()
        return ExecResult(exit_status=0, stdout=f"{self._machine.said} in {duration_s:.3f} s".encode())


class Sandbox(ScriptedSandbox):
    """Has such a shell."""

    machine: Machine

    async def open_session(self, name: str = "main", env: dict[str, str] | None = None) -> Shell:
        return Shell(self, self.machine)


class Backend(ScriptedBackend):
    """Makes such sandboxes."""

    def __init__(self, machine: Machine) -> None:
        def answer(files: Files, request: TestRequest) -> TestRun:
            machine.pass_moment()
            machine.num_tested += 1
            return scripted_answer("no")(files, request)

        super().__init__(answer)
        self._sandbox_machine = machine

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> ScriptedSandbox:
        made = Sandbox(spec.files, self._answer)
        made.machine = self._sandbox_machine
        return made


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(train_tokenizer(["user assistant edit test undo submit"] * 9, 400, 40))


@pytest.fixture
def play(task: Task, tmp_path: Path, renderer: ChatRenderer) -> Callable[..., Trajectory]:
    def play(name: str, machine: Machine, version: int = 0, folder: str = "turns") -> tuple[Trajectory, Runner]:
        pipeline, actions = PIPELINES[name]
        config = RolloutConfig(pipeline=pipeline, engine=EngineConfig(max_len_tokens=1 << 20))
        write = make_pipeline(pipeline, ExecutionCache()).format.write
        texts = tuple(one if isinstance(one, str) else write(Action(*one)) for one in actions)
        layers, log = TaskLayers(tmp_path, tmp_path), TurnLog(tmp_path / folder)
        runner = Runner(config, Backend(machine), lambda _: layers, renderer, turn_log=log)
        sampler = Sampler(renderer, texts, machine, version)
        return asyncio.run(runner.run_job(JOB, task, sampler, 1.0)), runner

    return play


def content(trajectory: Trajectory) -> dict[str, object]:
    """Everything that does not depend on the clock, with the bytes of the arrays."""
    ledger = {name: getattr(trajectory.ledger, name).tobytes() for name in ("token_id", "is_action", "log_prob")}
    turns = [turn.model_dump(exclude={"generate_s", "tool_s", "wait_s", "observation"}) for turn in trajectory.turns]
    verdict = trajectory.verdict.model_dump(exclude={"duration_s", "tests", "build"})
    kept = ("stop_reason", "final_files", "final_patch", "attempts")
    named = {name: value for name, value in asdict(trajectory).items() if name in kept}
    return {**named, "branches": trajectory.ledger.branches, "ledger": ledger, "turns": turns, "verdict": verdict}


@pytest.mark.parametrize("name", PIPELINES)
def test_an_episode_killed_at_any_moment_ends_like_an_unbroken_one(name, play):
    whole_machine = Machine()
    random.seed(0)
    whole, _ = play(name, whole_machine, folder="whole")
    assert len(whole.turns) == len(PIPELINES[name][1])
    for moment in range(1, whole_machine.num_moments + 1):
        folder = f"killed-{moment}"
        first, second = Machine([moment]), Machine()
        random.seed(0)
        with pytest.raises(Killed):
            play(name, first, folder=folder)
        random.seed(0)
        resumed, runner = play(name, second, folder=folder)
        assert content(resumed) == content(whole)
        assert first.num_sampled + second.num_sampled == len(whole.turns)  # no action was sampled twice
        counts = runner.counters()
        assert counts["turns/num_recalled"] == first.num_sampled
        assert counts["turns/num_differing_replays"] == 0


def test_tokens_keep_the_version_that_sampled_them(play):
    with pytest.raises(Killed):
        play("compact", Machine([7]), version=3)
    resumed, _ = play("compact", Machine(), version=4)
    versions = [int(resumed.ledger.policy_version[turn.action_span[0]]) for turn in resumed.turns]
    assert set(versions) == {3, 4}
    assert versions == sorted(versions)


def test_a_turn_that_was_cut_off_in_its_action_keeps_the_seconds_of_its_answer(play):
    with pytest.raises(Killed):
        play("paper_b", Machine([6]))  # in the shell of the fourth turn
    resumed, _ = play("paper_b", Machine())
    assert [turn.generate_s >= SAMPLED_S for turn in resumed.turns] == [False, False, False, True, False]


def test_recorded_tests_are_not_repeated(play):
    first, second = Machine([5]), Machine()  # in the turn after the first test
    with pytest.raises(Killed):
        play("compact", first)
    assert first.num_tested == 1
    whole = Machine()
    play("compact", whole, folder="whole")
    play("compact", second)
    assert first.num_tested + second.num_tested == whole.num_tested


def test_a_replay_that_observes_something_else_is_a_new_attempt(play):
    with pytest.raises(Killed):
        play("paper_b", Machine([6]))
    second = Machine(said="did not write")
    other, runner = play("paper_b", second)
    assert runner.counters()["turns/num_differing_replays"] == 1
    assert second.num_sampled == len(other.turns)
    assert all("wrote" not in turn.observation for turn in other.turns)
    again, runner = play("paper_b", Machine(said="did not write"))  # nothing of the first attempt is left
    assert content(again) == content(other)
    assert runner.counters()["turns/num_differing_replays"] == 0
    assert runner.counters()["turns/num_recalled"] == len(other.turns)


class Unsteady(Machine):
    """Says something else at each moment, so that no replay is like what is recorded."""

    def pass_moment(self) -> None:
        super().pass_moment()
        self.said = f"wrote file {self.num_moments}"


@pytest.mark.parametrize(
    ("moments", "error"),
    [(range(6, 2000, 7), SandboxError), (range(5, 2000, 6), ModelServerError)],  # always in the same turn
    ids=["sandbox", "server"],
)
def test_attempts_that_differ_and_fail_at_the_same_place_have_an_end(play, moments, error):
    machine = Unsteady(moments, error)
    ended, _ = play("paper_b", machine)
    assert ended.verdict.kind is VerdictKind.INVALID
    assert machine.num_moments < 60


def test_an_episode_whose_sandbox_fails_goes_on_in_a_fresh_one(play):
    whole, _ = play("paper_b", Machine(), folder="whole")
    machine = Machine([6], SandboxError)
    resumed, runner = play("paper_b", machine)
    assert [turn.action for turn in resumed.turns] == [turn.action for turn in whole.turns]
    assert machine.num_sampled == len(whole.turns)
    assert runner.counters()["turns/num_executed_again"] == 3


def test_a_script_is_asked_again(task, tmp_path, renderer):
    def episode(machine: Machine, folder: str) -> Trajectory:
        layers, log = TaskLayers(tmp_path, tmp_path), TurnLog(tmp_path / folder)
        config = RolloutConfig(pipeline=PIPELINES["compact"][0], engine=EngineConfig(max_len_tokens=1 << 20))
        runner = Runner(config, Backend(machine), lambda _: layers, renderer, turn_log=log)
        job = replace(JOB, seed=57)  # edits, and tests from the eighth turn on
        return asyncio.run(runner.run_job(job, task, ScriptedPolicy("random", renderer), 1.0))

    whole = episode(Machine(), "whole")
    assert "test" in [turn.tool for turn in whole.turns[3:]]
    with pytest.raises(Killed):
        episode(Machine([1]), "killed")  # in its first test
    assert content(episode(Machine(), "killed")) == content(whole)
