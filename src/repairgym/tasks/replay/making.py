"""Make the oracle of a task: record its tests on gold, replay them on gold, on the broken code and on variants of gold.

Reads a task and its layers; makes an `Oracle`. Guarantees: recordings run in a sandbox with the tests, replays in fresh
ones without any test file; the scripts follow from the task, and so does which of them tell which variant, but for
variants that do not end within a bound of processor time; wide scripts stay within a bound. A failure of a sandbox is
an error (`SandboxError`), everything else is a smaller oracle.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol, TypeVar, cast

from repairgym.records import ReplayStrength, Task, TestRequest
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.build.validation import graded_files, task_request
from repairgym.tasks.build.wheel_check import is_wheel_check
from repairgym.tasks.replay import scripts as replaying
from repairgym.tasks.replay.choosing import MAX_SET_CPU_S, covering_sets, killed, with_near
from repairgym.tasks.replay.compared import Made, compared_scripts, made_objects, only_yes_and_no, trial_scripts
from repairgym.tasks.replay.joining import MAX_STEPS, joined, joined_sets
from repairgym.tasks.replay.moved import with_moved_lines
from repairgym.tasks.replay.oracle import Expected, Oracle, expect
from repairgym.tasks.replay.scripts import (
    ANY_FUNCTION,
    MAX_RECORDED_TESTS,
    RECORDED_RUNNERS,
    Conditions,
    Recording,
    Replay,
    Script,
)
from repairgym.tasks.replay.searched import deciding_inputs, form_of, near_scripts
from repairgym.tasks.replay.trees import MakeSpec, code_spec, replay_spec, test_files
from repairgym.tasks.replay.varied import Files, gold_variants, varied_scripts
from repairgym.tasks.replay.varied_calls import optional_parameters, varied_calls

One = TypeVar("One")
GOLD_CONDITIONS = (Conditions(is_apart=True), Conditions(1, 11 * 86_400.0), Conditions(2, -9.6 * 3600.0))
"""Gold is replayed with scripts apart and together, under other hash seeds and clocks, and in the end with its lines
moved: what differs judges nothing."""
MAX_WIDE_STEPS, NUM_WIDE, NUM_WIDE_TESTS = 3000, 32, 96
"""Bounds of the wide scripts: their steps together, their number, and the tests that are recorded for them."""
NUM_CANDIDATES, NUM_CALLS, MAX_TRIED_STEPS = 200, 20, 800
"""Scripts with another literal that are tried one by one, those of each kind of varied call, and the steps of all."""
NUM_VARIANTS, NUM_TRIED_VARIANTS = 16, 6
"""Wrong variants of gold, and those that varied scripts are tried on: first what the required scripts do not tell."""
NUM_DECIDING, NUM_ROUNDS, NUM_NEAR, MAX_NEAR_STEPS, MAX_SEARCH_CPU_S = 18, 3, 60, 400, 3.0
"""Other inputs that decide, which a directed search looks for, and its bounds: rounds, scripts and steps of each, and
processor time of all replays together."""
_TRIAL_CONDITIONS = (Conditions(), GOLD_CONDITIONS[1])
_MAX_TRIAL_S = 20.0
_LEAST_CPU_S, _CPU_FACTOR = 0.3, 3.0
"""Other code than gold may use this processor time, and so many times that of gold: it may not end. Processor time,
because the load of the machine must not decide what an oracle holds."""
_NUM_AT_ONCE = 4
"""Replays of an oracle at a time: an episode waits for it."""
_MAX_WIDE_FILES, _MAX_FILE_CHARS = 4, 200_000
_RECORDING_TIME = 4.0
"""Time of a recording by the task's own deadline: rewritten tests are slower."""
_MAX_REPLAY_S = 120.0


class Recorder(Protocol):
    """Records tests and replays scripts, each in a fresh sandbox."""

    async def record(self, spec: SandboxSpec, request: TestRequest, max_tests: int = MAX_RECORDED_TESTS) -> Recording:
        """Return the scripts of the tests of ``request``."""

    async def replay(
        self,
        spec: SandboxSpec,
        scripts: Sequence[Script],
        source_paths: Sequence[str],
        conditions: Conditions = Conditions(),  # noqa: B008 - a frozen record
        *,
        timeout_s: float,
    ) -> Replay:
        """Return what the code in ``spec`` gives on the steps of ``scripts``."""


class SandboxRecorder:
    """The recorder on a back end."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend

    async def record(self, spec: SandboxSpec, request: TestRequest, max_tests: int = MAX_RECORDED_TESTS) -> Recording:
        """Return the scripts of the tests of ``request``."""
        return await replaying.record(self._backend, spec, request, max_tests=max_tests)

    async def replay(
        self,
        spec: SandboxSpec,
        scripts: Sequence[Script],
        source_paths: Sequence[str],
        conditions: Conditions = Conditions(),  # noqa: B008 - a frozen record
        *,
        timeout_s: float,
    ) -> Replay:
        """Return what the code in ``spec`` gives on the steps of ``scripts``."""
        return await replaying.replay(self._backend, spec, scripts, source_paths, conditions, timeout_s=timeout_s)


def why_not_replayed(task: Task) -> str:
    """Return the reason why the tests of ``task`` have no calls to record; empty when they may have."""
    if not task.runner.is_signed:
        return f"the runner {task.runner.type} is a command"
    if task.runner.type not in RECORDED_RUNNERS:
        return f"calls of the runner {task.runner.type} are not recorded"
    if any(step.has_products for step in task.build):
        return "its tests need what its build makes"
    if is_wheel_check(task.fail_to_pass + task.pass_to_pass):
        return "its tests check a built wheel"
    if not any(path.endswith(".py") for path in task.gold_files):
        return "its repair is no Python code"
    return ""


def replay_timeout_s(gold_s: float) -> float:
    """Return the deadline of a replay, far beyond the time of gold: the bound that decides is one of steps."""
    return min(_MAX_REPLAY_S, 30.0 + 10.0 * gold_s)


async def make_oracle(task: Task, recorder: Recorder, make_spec: MakeSpec) -> Oracle:
    """Return the oracle of ``task``; one without scripts where nothing can be recorded.

    Raises:
        SandboxError: a sandbox could not do its work.
    """
    return await _Maker(task, recorder, make_spec).make()


async def _all(*running: Awaitable[One]) -> list[One]:
    """Return what ``running`` return, after all have ended, also where one fails."""
    ended = await asyncio.gather(*running, return_exceptions=True)
    for result in ended:
        if isinstance(result, BaseException):
            raise result
    return cast("list[One]", ended)


def _bounded(gold: Replay, scripts: Iterable[Script], max_late: int = Conditions.max_late) -> Conditions:
    """Return the conditions of a replay of ``scripts`` by other code than that of ``gold``, which may not end."""
    start_s = next(iter(gold.cpu_s.values()), 0.0)  # the first script's time has that of the import
    gold_s = start_s + sum(gold.cpu_s.get(script.id, 0.0) for script in scripts)
    return Conditions(cpu_s=_LEAST_CPU_S + _CPU_FACTOR * gold_s, max_late=max_late)


class _Chosen(NamedTuple):
    """Scripts with other inputs, the number of wrong variants, and of those that the oracle tells."""

    compared: tuple[Script, ...]
    varied: tuple[Script, ...]
    num_variants: int
    num_told: int


class _Met(NamedTuple):
    """Numbers of the variants that scripts have told from gold; those that do not end are told, too."""

    told: frozenset[int]
    late: frozenset[int]

    def joined(self, other: "_Met") -> "_Met":
        """Return both."""
        return _Met(self.told | other.told, self.late | other.late)


def _met(scripts: Sequence[Script], expected: Mapping[str, Sequence[Expected]], replays: Mapping[int, Replay]) -> _Met:
    """Return what ``scripts`` tell of the variants with these ``replays``."""
    numbers, seen = [*replays], [*replays.values()]
    late = frozenset(number for number, replay in replays.items() if "timed out" in replay.unfinished.values())
    kills = (killed(script.id, expected[script.id], seen) for script in scripts)
    return _Met(late.union(numbers[place] for places in kills for place in places), late)


class _Maker:
    """The making of one oracle."""

    def __init__(self, task: Task, recorder: Recorder, make_spec: MakeSpec) -> None:
        self._task = task
        self._recorder = recorder
        self._make_spec = make_spec
        self._random = random.Random(f"{task.base_tree}:{task.gold_patch}")
        self._gold = graded_files(task, task.gold_files)
        self._moved = graded_files(task, with_moved_lines(task.gold_files))
        self._gate = asyncio.Semaphore(_NUM_AT_ONCE)

    async def make(self) -> Oracle:
        own = self._record(self._task.fail_to_pass + self._task.pass_to_pass)
        recording, others = await _all(own, self._record(self._wide_files(), NUM_WIDE_TESTS))
        recorded = tuple(script for script in recording.scripts if script.steps)
        failing, passing = self._split(recorded)
        if not failing:
            return Oracle({}, {}, self._strength({}, (), 0, 0, ()), 0.0)
        wide, kept = joined(self._wide(recorded, others), "wide"), joined(passing, "pass_to_pass")
        required = (*failing, *kept)
        compared, varied, num_variants, num_killed = await self._varied(recorded)
        every = (*required, *wide, *compared, *varied)
        # In either order: a step that needs what an earlier script left says nothing where that is not drawn.
        apart = replace(GOLD_CONDITIONS[0], traced=frozenset(script.id for script in kept))
        files, orders = (self._gold, self._gold, self._moved), (every, every, every[::-1])
        plays = zip(files, orders, (apart, *GOLD_CONDITIONS[1:]), strict=True)
        golds = await _all(*(self._replay(*play) for play in plays))
        broken = await self._replay(graded_files(self._task), every, _bounded(golds[1], every))
        expected = {script.id: expect(script, golds, broken) for script in every}
        expected |= {script.id: only_yes_and_no(script, expected[script.id]) for script in compared}
        return Oracle(
            scripts={
                "fail_to_pass": failing,
                "pass_to_pass": kept,
                "wide": wide,
                "compared": compared,
                "varied": varied,
            },
            expected=expected,
            strength=self._strength(expected, recorded, num_variants, num_killed, varied),
            duration_s=round(max(replay.duration_s for replay in golds[1:]), 3),
            executed=self._executed(kept, golds[0]),
        )

    def _executed(self, passing: Sequence[Script], gold: Replay) -> dict[str, frozenset[str]]:
        """Return the functions of the files of gold that each script runs; none of a script that runs unseen ones."""
        executed = {script.id: gold.executed[script.id] for script in passing if script.id in gold.executed}
        paths = self._task.gold_files.keys()
        return {
            name: frozenset(function for function in functions if function.partition("::")[0] in paths)
            for name, functions in executed.items()
            if ANY_FUNCTION not in functions
        }

    async def _record(self, test_ids: tuple[str, ...], max_tests: int = MAX_RECORDED_TESTS) -> Recording:
        if not test_ids:
            return Recording((), {})
        request = task_request(self._task, test_ids)
        bounds = {
            "timeout_s": request.timeout_s * _RECORDING_TIME,
            "test_timeout_s": request.test_timeout_s * _RECORDING_TIME,
        }
        spec = code_spec(self._task, self._make_spec, self._gold)
        return await self._recorder.record(spec, request.model_copy(update=bounds), max_tests)

    async def _replay(
        self,
        files: Mapping[str, str | None],
        scripts: Sequence[Script],
        conditions: Conditions = Conditions(),  # noqa: B008 - a frozen record
        timeout_s: float = _MAX_REPLAY_S,
    ) -> Replay:
        spec = replay_spec(self._task, self._make_spec, files)
        async with self._gate:
            return await self._recorder.replay(spec, scripts, self._task.source_paths, conditions, timeout_s=timeout_s)

    def _wide(self, required: Sequence[Script], others: Recording) -> tuple[Script, ...]:
        """Return those of ``others`` that reach the touched modules, within the bounds of an oracle."""
        known = {script.id for script in required}
        modules = touched_modules(self._task)
        reaching = [
            script
            for script in others.scripts
            if script.id not in known and 0 < len(script.steps) <= MAX_STEPS and _reaches(script, modules)
        ]
        self._random.shuffle(reaching)
        return tuple(_within(reaching, MAX_WIDE_STEPS)[:NUM_WIDE])

    def _wide_files(self) -> tuple[str, ...]:
        """Return test files that import the touched modules, those of the task's own tests first."""
        tree = self._make_spec(self._task, {}).tree
        names = {name.rpartition(".")[2] for name in touched_modules(self._task)}
        pattern = re.compile(rf"^\s*(?:from|import)\b.*\b(?:{'|'.join(map(re.escape, sorted(names)))})\b", re.MULTILINE)
        own = [path for path in self._task.test_paths if path.endswith(".py")]
        others = [path for path in test_files(tree) if PurePosixPath(path).match("test_*.py") and path not in own]
        texts = {path: _text(tree / path) for path in (*own, *others)}
        chosen = [path for path, text in texts.items() if path in own or (names and pattern.search(text))]
        return tuple(path for path in chosen if len(texts[path]) <= _MAX_FILE_CHARS)[:_MAX_WIDE_FILES]

    async def _varied(self, recorded: Sequence[Script]) -> _Chosen:
        """Return scripts with other inputs: those that compare objects, and sets of varied ones.

        Every variant meets the recorded scripts until some tell it; the varied ones are for those that get past them.
        """
        failing, passing = self._split(recorded)
        calls = varied_calls(recorded, optional_parameters(self._task.gold_files), NUM_CALLS, self._random)
        tried = _within([*calls, *varied_scripts(recorded, NUM_CANDIDATES, self._random)], MAX_TRIED_STEPS)
        golds = await self._twice((*failing, *passing, *tried), (*failing, *tried))
        files = [{**self._gold, **variant} for variant in gold_variants(self._task, NUM_VARIANTS, self._random)]
        broken, *replays = await _all(
            self._trial(graded_files(self._task), (*failing, *tried), golds[0], Conditions.max_late),
            *(self._trial(variant, failing, golds[0]) for variant in files),
        )
        expected = {script.id: expect(script, golds, broken) for script in (*failing, *tried)}
        met = _met(failing, expected, dict(enumerate(replays)))
        left = {number: variant for number, variant in enumerate(files) if number not in met.told | met.late}
        met = met.joined(await self._met_passing(left, passing, golds[0]))
        told = met.told
        hard = sorted({*range(len(files))} - met.late, key=lambda number: (number in told, number))[:NUM_TRIED_VARIANTS]
        trials = await _all(*(self._trial(files[number], tried, golds[0]) for number in hard))
        kills = {script.id: killed(script.id, expected[script.id], [*trials, broken]) for script in tried}
        told |= {hard[number] for number in frozenset().union(*kills.values()) if number < len(hard)}
        near = await self._search(failing, tried, expected)
        varied = joined_sets(with_near(covering_sets(tried, kills, golds[0].cpu_s), near), "varied")
        objects = made_objects((*recorded, *tried), golds[0], self._random)
        return _Chosen(await self._compared(objects), varied, len(files), len(told))

    async def _search(
        self, failing: Sequence[Script], tried: Sequence[Script], expected: Mapping[str, tuple[Expected, ...]]
    ) -> list[Script]:
        """Return scripts with an input that decides and lies beyond those of the tests: near what decides already."""
        known, answers, telling, used_s = set(map(form_of, tried)), dict(expected), list[Script](), 0.0
        origins = [*failing, *(script for script in tried if deciding_inputs([script], expected))]
        for _ in range(NUM_ROUNDS):
            if len(telling) >= NUM_DECIDING or used_s > MAX_SEARCH_CPU_S:
                break
            near = near_scripts([*origins, *telling], answers, known, NUM_NEAR, MAX_NEAR_STEPS, self._random)
            if not near:
                break
            known |= set(map(form_of, near))
            golds = await self._twice(near, near)
            broken = await self._trial(graded_files(self._task), near, golds[0], Conditions.max_late)
            used_s += sum(sum(replay.cpu_s.values()) for replay in (*golds, broken))
            answers |= {script.id: expect(script, golds, broken) for script in near}
            quick = [script for script in near if golds[0].cpu_s.get(script.id, 0.0) <= MAX_SET_CPU_S]
            telling += [script for script in quick if deciding_inputs([script], answers)]
        return telling[:NUM_DECIDING]

    async def _trial(self, files: Files, scripts: Sequence[Script], gold: Replay, max_late: int = 1) -> Replay:
        """Replay ``scripts`` over other code, which is given up after ``max_late`` late ones."""
        return await self._replay(files, scripts, _bounded(gold, scripts, max_late), _MAX_TRIAL_S)

    async def _twice(self, scripts: Sequence[Script], again: Sequence[Script]) -> list[Replay]:
        """Return replays of ``scripts`` by gold, and of ``again`` by gold with its lines moved, under another clock."""
        plays = zip((self._gold, self._moved), (scripts, again), _TRIAL_CONDITIONS, strict=True)
        return await _all(*(self._replay(*play, _MAX_TRIAL_S) for play in plays))

    async def _met_passing(self, variants: Mapping[int, Files], passing: Sequence[Script], gold: Replay) -> _Met:
        """Return which of ``variants`` scripts of `pass_to_pass` tell, which the broken code answers as gold does."""
        if not variants or not passing:
            return _Met(frozenset(), frozenset())
        again = await self._replay(self._moved, passing, _TRIAL_CONDITIONS[1], _MAX_TRIAL_S)
        expected = {script.id: expect(script, (gold, again), gold) for script in passing}
        replays = await _all(*(self._trial(files, passing, gold) for files in variants.values()))
        return _met(passing, expected, dict(zip(variants, replays, strict=True)))

    async def _compared(self, objects: Mapping[str, Sequence[Made]]) -> tuple[Script, ...]:
        """Return scripts that compare ``objects``."""
        trials = trial_scripts(objects)
        return compared_scripts(objects, await self._twice(trials, trials) if objects else [])

    def _split(self, recorded: Iterable[Script]) -> tuple[tuple[Script, ...], tuple[Script, ...]]:
        """Return the scripts of `fail_to_pass`, and those of `pass_to_pass`."""
        wanted, scripts = frozenset(self._task.fail_to_pass), tuple(recorded)
        failing = tuple(script for script in scripts if script.id in wanted)
        return failing, tuple(script for script in scripts if script.id not in wanted)

    def _strength(
        self,
        expected: Mapping[str, Sequence[Expected]],
        recorded: Sequence[Script],
        num_variants: int,
        num_killed: int,
        varied: Sequence[Script],
    ) -> ReplayStrength:
        task = self._task
        steps = (step for test_id in task.fail_to_pass for step in expected.get(test_id, ()))
        return ReplayStrength(
            num_tests=len(task.fail_to_pass + task.pass_to_pass),
            num_scripts=len(recorded),
            num_lost_steps=sum(script.num_lost_steps for script in recorded),
            num_deciding_steps=sum(step.is_deciding and step.is_used for step in steps),
            num_variants=num_variants,
            num_variants_killed=num_killed,
            num_deciding_inputs=len(deciding_inputs(varied, expected)),
        )


def touched_modules(task: Task) -> tuple[str, ...]:
    """Return the dotted names of the modules that gold changes."""
    names = set()
    for path in map(PurePosixPath, task.gold_files):
        roots = [root for root in map(PurePosixPath, task.source_paths) if path.is_relative_to(root)]
        if path.suffix == ".py" and roots:
            parts = path.relative_to(max(roots, key=lambda root: len(root.parts))).with_suffix("").parts
            names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return tuple(sorted(names - {""}))


def _reaches(script: Script, modules: Iterable[str]) -> bool:
    """Return True when ``script`` imports one of ``modules``, something of it, or its package."""
    names = {name.partition(":")[0] for name in script.imports}
    pairs = ((name, module) for name in names for module in modules)
    return any(f"{name}.".startswith(f"{module}.") or f"{module}.".startswith(f"{name}.") for name, module in pairs)


def _within(scripts: Iterable[Script], max_steps: int) -> list[Script]:
    """Return the first of ``scripts`` that together have at most ``max_steps`` steps."""
    chosen, num_steps = [], 0
    for script in scripts:
        if num_steps + len(script.steps) <= max_steps:
            chosen.append(script)
            num_steps += len(script.steps)
    return chosen


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
