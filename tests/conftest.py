"""Shared fixtures: trajectories made by hand, and a whole synthetic run written through `RunStore`."""

from __future__ import annotations

import fcntl
import gc
import json
import random
import shutil
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from repairgym.analysis.episodes import EpisodeFacts
from repairgym.config.learning import OptimizerConfig, SftConfig
from repairgym.config.models import EngineConfig, ModelConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.recipes import CollectConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.selection import TrainingSelection
from repairgym.ledger import LedgerBuilder
from repairgym.records import (
    Certificate,
    Environment,
    Finding,
    Provenance,
    StopReason,
    Task,
    TestOutcome,
    TestResult,
    Trajectory,
    Turn,
    Verdict,
    VerdictKind,
)
from repairgym.rollout.store import RunStore
from repairgym.testing.environments import copy_environment
from repairgym.testing.scripted import scripted_task

Step = tuple[str, str, str, str]
"""(tool, argument, observation, error); an empty tool is an action that could not be parsed."""

SOLVED: Sequence[Step] = (("edit", "@3 < => <=", "@3 x", ""), ("test", "", "passed 2", ""), ("submit", "", "ok", ""))
ISSUE = "clamp(7, 0, 5) returns 7, but the upper bound is 5; see `clamp` in pkg/numbers.py"
VOCABULARY = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}

with suppress(ImportError):  # the engines' environments lack it, and run no test that draws
    from hypothesis import HealthCheck, settings

    # Drawn inputs are judged by what is done with them, not by the clock, which goes on while others compute.
    settings.register_profile("tests", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("tests")


def pytest_configure() -> None:
    """Restore Ctrl-C where the parent ignores it (``nohup make test &``): the tests of signals rely on it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which then never looks at the modules and tests again: they all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def byte_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZER = byte_tokenizer()


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text).ids)


def build_turns(steps: Sequence[Step], generator: random.Random) -> tuple[tuple[Turn, ...], LedgerBuilder]:
    ledger = LedgerBuilder()
    ledger.append_context(encode(ISSUE + "\n"))
    turns = []
    for tool, argument, observation, error in steps:
        action = f"{tool} {argument}".strip() or "edti @1"
        ids = encode(action + "\n")
        span = ledger.append_action(ids, [-generator.expovariate(3.0) for _ in ids], 7)
        ledger.append_context(encode(observation + "\n"))
        turns.append(
            Turn(
                action=action,
                tool=tool or None,
                arguments={"argument": argument} if tool else {},
                observation=observation,
                error=error,
                action_span=span,
                generate_s=0.01,
                tool_s=0.02,
            )
        )
    return tuple(turns), ledger


def make_verdict(kind: VerdictKind, num_passed: int = 0) -> Verdict:
    outcomes = [TestOutcome.PASSED] * (4 if kind is VerdictKind.PASSED else num_passed)
    outcomes += [TestOutcome.FAILED] * (4 - len(outcomes))
    tests = {f"tests/test_numbers.py::test_{i}": TestResult(outcome=o) for i, o in enumerate(outcomes)}
    findings = (Finding(detector="test_files_edited", severity="exploit", path="tests/test_numbers.py", detail="x"),)
    return Verdict(
        kind=kind,
        reason=f"grading said {kind.value}",
        is_restored=None if kind is VerdictKind.INVALID else kind is VerdictKind.PASSED,
        tests={} if kind is VerdictKind.INVALID else tests,
        findings=findings if kind is VerdictKind.EXPLOITED else (),
        grader_version="1",
    )


def make_trajectory(
    trajectory_id: str = "t-1",
    task_id: str = "task-1",
    *,
    steps: Sequence[Step] = (
        ("edit", "@3 < => <=", "@3 x", ""),
        ("test", "", "passed 2", ""),
        ("submit", "", "ok", ""),
    ),
    kind: VerdictKind = VerdictKind.PASSED,
    stop_reason: StopReason = StopReason.SUBMITTED,
    group_id: str = "group-1",
    seed: int = 0,
    num_passed: int = 0,
    final_patch: str = "--- a/pkg/numbers.py\n+++ b/pkg/numbers.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
) -> Trajectory:
    turns, ledger = build_turns(steps, random.Random(f"{trajectory_id}{seed}"))
    return Trajectory(
        id=trajectory_id,
        task_id=task_id,
        group_id=group_id,
        pipeline="compact",
        policy_id="tiny",
        sandbox_backend="namespace",
        turns=turns,
        ledger=ledger.build(),
        stop_reason=stop_reason,
        final_files={"pkg/numbers.py": "x = 2\n", "pkg/old.py": None},
        final_patch=final_patch,
        verdict=make_verdict(kind, num_passed),
        seed=seed,
        durations_s={"generate": 0.2, "tool": 0.1, "grade": 0.05},
    )


def make_task(task_id: str, source: str, package: str) -> Task:
    return Task(
        id=task_id,
        source=source,
        provenance=Provenance(package=package, version="1.1", base_version="1.0", sdist_sha256="0" * 64),
        issue=ISSUE,
        base_tree="tree",
        base_files={},
        environment=Environment(lock="", python="3.11.7", digest="e"),
        visible_tests=("tests/test_numbers.py::test_0",),
        fail_to_pass=("tests/test_numbers.py::test_0", "tests/test_numbers.py::test_1"),
        pass_to_pass=("tests/test_numbers.py::test_2",),
        test_paths=("tests/test_numbers.py",),
        gold_files={"pkg/numbers.py": "x = 2\n"},
        gold_patch="",
        labels={"package": package},
        split="test",
        certificate=Certificate(num_empty_runs=3, num_empty_failed=3, num_gold_runs=3, num_gold_passed=3),
    )


def simulate_steps(solves: bool, tests: float, generator: random.Random) -> tuple[list[Step], StopReason]:
    """One plausible episode: wrong edits, test runs, sometimes a loop, at last a submission."""
    steps: list[Step] = []
    if generator.random() < 0.08:
        steps.append(("", "", "error: one line, one of edit line submit test undo view", "format"))
    if not solves and generator.random() < 0.15:
        return steps + [("test", "", "failed 1 of 2: assert 7 == 5", "")] * 12, StopReason.TURN_LIMIT
    for _ in range(generator.randint(0, 2) + (not solves)):
        steps.append(("edit", f"@{generator.randint(1, 9)} + => -", "@4     return low - 1", ""))
        if generator.random() < tests:
            steps += [("test", "", "failed 1 of 2: assert 7 == 5", ""), ("undo", "", "undone", "")]
    if solves:
        steps.append(("edit", "@6 low => high", "@6     return min(high, value)", ""))
        if generator.random() < tests:
            steps.append(("test", "", "passed 2", ""))
    return [*steps, ("submit", "", "submitted", "")], StopReason.SUBMITTED


class SyntheticRun:
    """Writes phases of simulated episodes; a task's difficulty is the same in every stage."""

    def __init__(self, store: RunStore, num_samples: int) -> None:
        self._store = store
        self._num_samples = num_samples
        self._random = random.Random(3)
        self._difficulty: dict[str, float] = {}

    def phase(self, name: str, tasks: Sequence[str], skill: float, tests: float, step: int = 0) -> None:
        for task_id in tasks:
            difficulty = self._difficulty.setdefault(task_id, self._random.random())
            for sample in range(self._num_samples):
                self._episode(name, step, task_id, sample, max(0.0, min(1.0, skill + 0.5 - difficulty)), tests)

    def _episode(self, phase: str, step: int, task_id: str, sample: int, chance: float, tests: float) -> None:
        generator = self._random
        solves = generator.random() < chance
        steps, stop_reason = simulate_steps(solves, tests, generator)
        draw = generator.random()
        kind = VerdictKind.PASSED if solves else VerdictKind.FAILED
        kind = VerdictKind.INVALID if draw < 0.01 else VerdictKind.EXPLOITED if draw > 0.985 and not solves else kind
        trajectory = make_trajectory(
            f"{phase}/{step}/{task_id}/{sample}",
            task_id,
            steps=steps,
            kind=kind,
            stop_reason=stop_reason,
            group_id=f"{task_id}",
            seed=sample,
            num_passed=generator.randint(0, 3),
        )
        self._store.add_trajectory(trajectory, phase=phase, step=step, split="train" if step else "test")


def write_synthetic_run(folder: Path, num_tasks: int = 12, num_samples: int = 2, num_steps: int = 4) -> Path:
    """A run folder as a finished run leaves it, with a real gain of the stage ``rl``."""
    (folder / "tasks").mkdir(parents=True)
    (folder / "checkpoints" / "rl").mkdir(parents=True)
    TOKENIZER.save(str(folder / "checkpoints" / "rl" / "tokenizer.json"))
    tests, releases = [f"mut-{i:03d}" for i in range(num_tasks)], [f"rel-{i}" for i in range(5)]
    records = [make_task(name, "mutations", f"pkg{i % 4}") for i, name in enumerate(tests)]
    records += [make_task(name, "releases", "real") for name in releases]
    (folder / "tasks" / "tasks.jsonl").write_text("".join(task.model_dump_json() + "\n" for task in records))
    counts = {"functions": 900, "mutants_run": 700, "survived": 160, "one_test_only": 90, "kept": 300}
    funnel = {"total": {"mutations": counts, "releases": {"pairs": 9, "kept": 5}}, "splits": {"mutations/test": 12}}
    (folder / "tasks" / "manifest.json").write_text(json.dumps({"catalogue": "cd" * 32, "format": 2}))
    (folder / "tasks" / "funnel.json").write_text(json.dumps(funnel))
    (folder / "config.toml").write_text('seed = 1\n[rl]\nlr = 1e-4\nlosses = ["rl"]\n')
    with RunStore.create(folder / "run.db") as store:
        _write_phases(SyntheticRun(store, num_samples), store, tests, releases, num_steps)
    return folder


def _write_phases(run: SyntheticRun, store: RunStore, tests: list[str], releases: list[str], num_steps: int) -> None:
    stages = {"submit-at-once": (-0.5, 0.0), "base": (0.05, 0.2), "rft": (0.3, 0.4), "rft-t0.5": (0.34, 0.4)}
    stages |= {"sft-continued": (0.32, 0.4), "rl": (0.8, 0.9)}
    store.plan_phases(["teacher", "rft", "rl", *(f"eval/{stage}/test-mutations" for stage in stages)])
    with store.phase("rl") as detail:
        for step in range(1, num_steps + 1):
            share = step / num_steps
            run.phase("rl", [f"train-{step}-{i}" for i in range(4)], 0.3 + 0.25 * share, 0.4 + 0.5 * share, step)
            store.add_metrics("rl", step, {"policy/entropy": 0.6 - 0.3 * share, "policy/log_prob_gap": 0.001 * step})
        detail["weights_sha256"] = "ab" * 32
    for index in range(1, num_steps + 1):
        phase = f"eval/rl-step-{index:04d}/validation"
        with store.phase(phase):
            run.phase(phase, [f"val-{i}" for i in range(6)], 0.3 + 0.2 * index / num_steps, 0.5)
    for stage, (skill, habit) in stages.items():
        with store.phase(f"eval/{stage}/test-mutations"):
            run.phase(f"eval/{stage}/test-mutations", tests, skill, habit)
    with store.phase("eval/rl/test-releases"):
        run.phase("eval/rl/test-releases", releases, 0.1, 0.8)
    store.add_event("sandbox_lost", "spawner ended; started again", phase="rl")


@pytest.fixture
def trajectory_maker() -> Callable[..., Trajectory]:
    return make_trajectory


def make_episode(name: str, phase: str = "eval/rl/test-mutations", **more: Any) -> EpisodeFacts:
    defaults: dict[str, Any] = {
        "step": 0,
        "task_id": name,
        "verdict": VerdictKind.FAILED,
        "stop_reason": StopReason.SUBMITTED,
        "tools": ("edit", "test", "submit"),
        "num_tokens": 10,
        "num_action_tokens": 5,
        "num_edits": 1,
        "num_test_runs": 1,
        "num_format_errors": 0,
        "num_tool_errors": 0,
        "num_repeats": 0,
        "is_blind_submit": False,
        "num_tests": 4,
        "num_tests_passed": 0,
    }
    return EpisodeFacts(id=name, phase=phase, **{**defaults, **more})


@pytest.fixture
def episode_maker() -> Callable[..., EpisodeFacts]:
    return make_episode


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with RunStore.create(tmp_path / "run.db") as opened:
        yield opened


@pytest.fixture(scope="session")
def make_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Gives a folder by its name, which the first of the processes of this test run makes."""
    own = tmp_path_factory.getbasetemp()
    root = own.parent if hasattr(request.config, "workerinput") else own

    def make_once(name: str, make: Callable[[Path], object]) -> Path:
        with (root / f"{name}.lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.seek(0)
            if not lock.read():
                make(root / name)
                lock.write("made")
        return root / name

    return make_once


@pytest.fixture(scope="session")
def small_environment(make_once: Callable[..., Path]) -> Path:
    """An environment for sandboxes with pytest and nothing else; do not write into it."""
    return make_once("small-environment", copy_environment)


@pytest.fixture(scope="session")
def build_environment(make_once: Callable[..., Path]) -> Path:
    """The same with back ends that build wheels; do not write into it."""
    names = ("pytest", "packaging", "hatchling", "editables", "setuptools")
    return make_once("build-environment", lambda place: copy_environment(place, names))


@pytest.fixture(scope="session")
def synthetic_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished synthetic run; do not write into it."""
    return write_synthetic_run(tmp_path_factory.mktemp("synthetic") / "run")


@pytest.fixture
def task() -> Task:
    """A repair of one token that needs no sandbox until something must run."""
    return scripted_task()


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., ModelConfig]:
    """Makes the smallest model that has every part, for a vocabulary of so many tokens."""

    def make(vocab_size: int, **changes: Any) -> ModelConfig:
        return ModelConfig(
            vocab_size=vocab_size,
            hidden_size=32,
            num_layers=1,
            num_heads=2,
            num_kv_heads=1,
            head_dim=16,
            intermediate_size=32,
            **changes,
        )

    return make


# --- runs over a tiny model and a scripted sandbox (training, recipes, pretraining, studies) -------------------------


def local_pool(folder: Path, base: Path, num_failures: int = 0, **changes: int) -> Any:
    """A pool in this process; its sandboxes are scripted and fail ``num_failures`` times a call."""
    from repairgym.inference.loading import load_tokenizer
    from repairgym.inference.renderer import ChatRenderer
    from repairgym.rollout.local import LocalPool
    from repairgym.tasks.build.validation import TaskLayers
    from repairgym.testing.scripted import ScriptedBackend, scripted_answer

    return LocalPool(
        small_rollout().model_copy(update=changes),
        lambda: ScriptedBackend(scripted_answer(), num_failures),
        lambda _: TaskLayers(folder, folder),
        ChatRenderer(load_tokenizer(base)),
    )


def small_rollout() -> RolloutConfig:
    """Episodes that a tiny model can end."""
    return RolloutConfig(
        pipeline=PipelineConfig(max_len_tokens=200, max_turns=4, max_action_tokens=8),
        engine=EngineConfig(num_slots=16, max_len_tokens=200),
        backoff_s=0.0,  # tests let sandboxes fail and do not wait for them
    )


@pytest.fixture(scope="session")
def base(make_once: Callable[..., Path], tiny_config: Callable[..., ModelConfig]) -> Path:
    """A tiny model with a tokenizer of its own; do not write into it."""
    from repairgym.inference.loading import create_model, save_checkpoint
    from repairgym.inference.tokenizer import train_tokenizer

    def make(folder: Path) -> None:
        texts = ["user\nassistant\nf in m.py is wrong edit < => <= @2 test undo submit passed 1 failed 1 of 1: no"] * 20
        tokenizer = train_tokenizer(texts, 420, 40)
        save_checkpoint(create_model(tiny_config(len(tokenizer))), tokenizer, folder)

    return make_once("tiny-base", make)


@pytest.fixture(scope="session")
def taught(base: Path, make_once: Callable[..., Path]) -> Path:
    """A run with a teacher's trajectories on four tasks, and the student of them, ``sft``; do not write into it."""
    from repairgym.rollout.jobs import PolicyRef
    from repairgym.training.run import Run
    from repairgym.training.supervised import collect_successes, fit_samples, supervised_samples

    def teach(folder: Path) -> None:
        folder.mkdir()
        collect = CollectConfig(select=TrainingSelection(num_tasks=4), num_samples=12, max_per_task=12)
        sft = SftConfig(optimizer=OptimizerConfig(learning_rate=1e-2, weight_decay=0.0), batch_size=8, num_epochs=25)
        with RunStore.create(folder / "run.db") as store:
            run = Run(folder, store, local_pool(folder, base), tasks_of_splits())
            samples = supervised_samples(collect_successes(run, PolicyRef("teacher"), collect, "teacher"), sft)
            fit_samples(base, run.checkpoint("sft"), samples, sft, store, run.progress)

    return make_once("taught", teach)


@pytest.fixture(name="rollout")
def rollout_config() -> RolloutConfig:
    return small_rollout()


@pytest.fixture
def make_backend() -> Callable[[], Any]:
    from repairgym.testing.scripted import ScriptedBackend, scripted_answer

    return lambda: ScriptedBackend(scripted_answer())


def tasks_of_splits() -> dict[str, Task]:
    named = {f"train-{k}": "train" for k in range(4)} | {"validation-0": "validation", "test-0": "test"}
    return {name: scripted_task().model_copy(update={"id": name, "split": split}) for name, split in named.items()}


@pytest.fixture
def many_tasks() -> dict[str, Task]:
    """The task under several names, in every split."""
    return tasks_of_splits()


@pytest.fixture
def make_pool_of() -> Callable[..., Any]:
    """A pool over any model folder's tokenizer."""
    return local_pool


@pytest.fixture
def make_pool(base: Path) -> Callable[..., Any]:
    return partial(local_pool, base=base)


@pytest.fixture
def open_run(base: Path, many_tasks: dict[str, Task], make_pool: Callable[..., Any]) -> Callable[[Path], Any]:
    """Opens a run over the tiny base; a second call on the same folder resumes."""
    from repairgym.training.run import Run

    def open_folder(folder: Path) -> Run:
        path = folder / "run.db"
        store = RunStore.open(path) if path.exists() else RunStore.create(path)
        run = Run(folder, store, make_pool(folder), many_tasks)
        if not run.checkpoint("base").exists():
            shutil.copytree(base, run.checkpoint("base"))
        return run

    return open_folder


@pytest.fixture
def open_taught(taught: Path, open_run: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Opens a run that has begun with the student ``sft``; a second call on the same folder resumes."""

    def open_folder(folder: Path) -> Any:
        if not (folder / "run.db").exists():
            shutil.copytree(taught, folder, dirs_exist_ok=True)
        return open_run(folder)

    return open_folder
