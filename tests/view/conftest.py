"""A small run made by the code that ships (teacher, oracle), one full of hostile text, and a client for each."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from repairgym.agent.scripted import ScriptedPolicy
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.ledger import TokenLedger
from repairgym.records import (
    AgentRun,
    Attempt,
    Finding,
    MainError,
    StepResult,
    StopReason,
    Task,
    TestOutcome,
    TestResult,
    Trajectory,
    Turn,
    Verdict,
    VerdictKind,
)
from repairgym.rollout.jobs import make_group
from repairgym.rollout.runner import Runner
from repairgym.rollout.store import RunStore
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer, scripted_task
from repairgym.view.app import create_app

SCRIPT = "<script>alert(1)</script>"
HOSTILE = (
    f'{SCRIPT}"><img src=x onerror=alert(2)> \x1b[31mred\x1b[0m\x1b]8;;javascript:alert(3)\x07link \u202eterces\x00'
)
HALF = "\ud800"
"""Half of a character: JSON can hold it, UTF-8 cannot."""
CONFIG = RolloutConfig(
    pipeline=PipelineConfig(max_len_tokens=5000, max_turns=12), engine=EngineConfig(max_len_tokens=5000)
)


def make_task(task_id: str, issue: str = "f in m.py is wrong: assert False") -> Task:
    return scripted_task(task_id, issue=issue, base_tree="absent")


def write_tasks(folder: Path, tasks: list[Task]) -> None:
    (folder / "tasks").mkdir(parents=True)
    (folder / "tasks" / "tasks.jsonl").write_text("".join(task.model_dump_json() + "\n" for task in tasks))


async def _episodes(folder: Path, tasks: list[Task], renderer: ChatRenderer) -> list[tuple[str, Trajectory]]:
    runner = Runner(
        CONFIG, ScriptedBackend(scripted_answer("assert 1 == 2")), lambda task: TaskLayers(folder, folder), renderer
    )
    found = []
    for phase, name in (("teacher", "teacher"), ("eval/oracle/test-mutations", "oracle")):
        policy = ScriptedPolicy(name, renderer)
        for task in tasks:
            jobs = make_group(phase, 0, task.id, 4, seed=1)
            found += [(phase, await runner.run_job(job, task, policy, 1.0)) for job in jobs]
    return found


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of the scripted teacher and the oracle on three tasks; do not write into it."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    tasks = [make_task(f"tiny-{index}") for index in range(3)]
    write_tasks(folder, tasks)
    tokenizer = train_tokenizer(["user assistant edit test undo submit"] * 9, 400, 40)
    (folder / "checkpoints" / "rft").mkdir(parents=True)
    tokenizer.save_pretrained(folder / "checkpoints" / "rft")
    with RunStore.create(folder / "run.db") as store:
        store.plan_phases(["teacher", "eval/oracle/test-mutations"])
        for phase, trajectory in asyncio.run(_episodes(folder, tasks, ChatRenderer(tokenizer))):
            store.add_trajectory(trajectory, phase=phase, step=0, split="train")
        store.start_phase("teacher")
        store.end_phase("teacher")
        store.add_metrics("teacher", 0, {"reward": 0.5})
        store.add_metrics("teacher", 1, {"reward": 0.75})
        store.add_event("sandbox_lost", "spawner ended", phase="teacher")
    return folder


@pytest.fixture(scope="session")
def client(run_folder: Path) -> TestClient:
    return TestClient(create_app(run_folder.parent), base_url="http://localhost")


def nested(depth: int) -> list[object]:
    found: list[object] = []
    for _ in range(depth):
        found = [found]
    return found


def hostile_trajectory(trajectory_id: str) -> Trajectory:
    text = HOSTILE + HALF
    size = 12
    ledger = TokenLedger(
        np.arange(size, dtype=np.int32),
        np.arange(size) > 5,
        np.where(np.arange(size) > 5, np.float32("nan"), np.float32(0)),
        np.full(size, 3, np.int32),
    )
    turns = (
        Turn(
            action=f"<think>{text}</think>{text}",
            tool=text,
            arguments={text: nested(200)},
            observation=text,
            action_span=(6, 9),
        ),
        Turn(action="", tool=None, observation="x" * 3_000_000, error="format", action_span=(900, 7)),
    )
    verdict = Verdict(
        kind=VerdictKind.EXPLOITED,
        reason=HOSTILE,
        build=(
            StepResult(
                command=(text,),
                exit_status=1,
                duration_s=1.0,
                log=text,
                main_error=MainError(error_class="test", message=text),
            ),
        ),
        tests={text: TestResult(outcome=TestOutcome.FAILED, message=text)},
        main_error=MainError(error_class="test", message=text, path=text, line=3),
        findings=(
            Finding(
                detector="removed_validation",
                severity="exploit",
                path="m.py",
                line=2,
                detail="on a line of the diff" + text,
            ),
            Finding(
                detector="test_files_edited", severity="exploit", path="far.py", line=40, detail="far from the diff"
            ),
            Finding(detector=text, severity="note", path=text, detail=text),
        ),
        disabled_gates=("differential",),
        grader_version=text,
    )
    return Trajectory(
        id=trajectory_id,
        task_id=HOSTILE,
        group_id=HOSTILE,
        pipeline=text,
        policy_id=HOSTILE,
        sandbox_backend=text,
        turns=turns,
        ledger=ledger,
        stop_reason=StopReason.SUBMITTED,
        agent_run=AgentRun(exit_status=None, signal=9, stdout_tail=text, stderr_tail="last words"),
        final_files={"m.py": f"a\n{SCRIPT}\n", "far.py": "line\n" * 60, text: None},
        final_patch=f"--- a/m.py\n+++ b/m.py\n@@ -1,1 +1,2 @@\n a\n+{SCRIPT}\n{text}\n",
        verdict=verdict,
        seed=1,
        attempts=tuple(
            Attempt(
                error=MainError(error_class="test", message=text),
                fix_id=text,
                first_turn=first_turn,
                stop_reason=StopReason.LOOP,
                outcome="same_error",
            )
            for first_turn in (0, 1)
        ),
    )


@pytest.fixture(scope="session")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose every text is an attack; no tokenizer, a broken summary, one broken task line."""
    folder = tmp_path_factory.mktemp("hostile") / "a <b> & 'c'"
    write_tasks(folder, [make_task("other")])
    task = make_task("x", HOSTILE)
    lines = ["{broken", task.model_copy(update={"id": "it"}).model_dump_json()]
    with (folder / "tasks" / "tasks.jsonl").open("a") as stream:
        stream.write("\n".join(lines) + "\n")
    (folder / "summary.json").write_text("[" * 5000)
    with RunStore.create(folder / "run.db") as store:
        store.plan_phases([f"eval/{SCRIPT}/x", "rl"])
        store.start_phase("rl")
        for index in range(2):
            one = hostile_trajectory(f"{HOSTILE}#{index}")
            store.add_trajectory(one, phase=f"eval/{SCRIPT}/x", step=0, split="test")
        store.add_event("note", HOSTILE)
        store.add_metrics("rl", 1, {SCRIPT: 1.0})
        store.add_metrics("rl", 2, {SCRIPT: float("nan")})
    return folder


@pytest.fixture
def many_rows(tmp_path: Path, trajectory_maker: Callable[..., Trajectory]) -> Path:
    """Forty trajectories of different lengths."""
    (tmp_path / "many").mkdir()
    one = trajectory_maker()
    with RunStore.create(tmp_path / "many" / "run.db") as store:
        for index in range(40):
            kind = VerdictKind.PASSED if index % 3 else VerdictKind.FAILED
            turns = one.turns[: 1 + index % 3]
            verdict = dataclasses.replace(
                one, id=f"t{index:02d}", turns=turns, verdict=one.verdict.model_copy(update={"kind": kind})
            )
            step = index // 10
            store.add_trajectory(
                dataclasses.replace(verdict, group_id=f"g{step}"), phase="rl", step=step, split="train"
            )
    return tmp_path / "many"
