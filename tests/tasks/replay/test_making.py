"""An oracle holds the scripts that gold answers alike, and counts what it can tell; tests are out of its replays."""

import ast
from pathlib import Path

import pytest

from repairgym.records import BuildStep, TestRunner
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.replay.joining import MAX_STEPS
from repairgym.tasks.replay.making import (
    MAX_WIDE_STEPS,
    make_oracle,
    replay_timeout_s,
    touched_modules,
    why_not_replayed,
)
from repairgym.tasks.replay.scripts import Observation, Recording, Script
from repairgym.testing.replays import ScriptedRecorder
from repairgym.testing.scripted import scripted_task

TEST, KEPT = "test_m.py::test_f", "test_m.py::test_g"


def call(value, **more):
    return {"op": "call", "args": [["g", "m", "f"], ["l", value]], "to": 0, "asserted": True, **more}


def tree_with(tmp_path, *paths):
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("from m import f\n")
    return tmp_path


def spec_of(tree):
    return lambda task, files: SandboxSpec(environment=Path("/env"), tree=tree, files=files)


class Comparison:
    """Answers each script by the comparison in ``m.py``, on the script's literal and 2."""

    def __init__(self, scripts):
        self.scripts = scripts

    def __call__(self, files, conditions):
        text = files["m.py"] or ""
        return {one.id: self.answer(one, text, conditions) for one in self.scripts}

    def answer(self, script, text, conditions):
        seen = []
        for number, step in enumerate(script.steps):
            if step["op"] == "clean":
                continue
            given = step["args"][1][1]
            value = given if isinstance(given, int) else 0
            result = str(value <= 2 if "<=" in text else value < 2).lower()
            after = {"clock": str(conditions.clock_shift_s), "line": str(text.count("\n"))}.get(step.get("shows"), "1")
            seen.append(Observation(number, "result", result, "plain", True))
            seen.append(Observation(number, "after", after, "state", False))
        return tuple(seen)


class Recorder(ScriptedRecorder):
    """Answers varied scripts, too."""

    def __init__(self, scripts):
        super().__init__(Recording(tuple(scripts), {}), Comparison(scripts))
        self.played = []

    async def replay(self, spec, scripts, source_paths, *conditions, timeout_s):
        self.played.append((tuple(script.id for script in scripts), *conditions))
        self._answers = Comparison(scripts)
        return await super().replay(spec, scripts, source_paths, *conditions, timeout_s=timeout_s)


def make(tmp_path, scripts, **changes):
    tree = tree_with(tmp_path, "test_m.py", "m.py")
    task = scripted_task(pass_to_pass=(KEPT,), **changes)
    recorder = Recorder(scripts)
    return make_oracle(task, recorder, spec_of(tree)), recorder


@pytest.mark.asyncio
async def test_an_oracle_tells_broken_from_gold_and_counts_it(tmp_path):
    wide = Script("test_m.py::test_wide", (call(5),), ("m:f",))
    elsewhere = Script("test_m.py::test_other", (call(5),), ("other",))
    making, recorder = make(tmp_path, [Script(TEST, (call(2),)), Script(KEPT, (call(1),)), wide, elsewhere])
    oracle = await making
    groups = {group: [one.id for one in scripts] for group, scripts in oracle.scripts.items()}
    assert (groups["fail_to_pass"], groups["pass_to_pass"], groups["wide"]) == ([TEST], ["pass_to_pass+0"], ["wide+0"])
    assert [len(oracle.scripts[group][0].steps) for group in ("pass_to_pass", "wide")] == [1, 1]
    assert groups["varied"]
    strength = oracle.strength
    assert (strength.num_tests, strength.num_scripts) == (2, 2)
    assert (strength.num_lost_steps, strength.num_deciding_steps) == (0, 1)
    assert 0 < strength.num_variants_killed <= strength.num_variants
    assert all(files.files["test_m.py"] is None for files, _ in recorder.replayed)


@pytest.mark.asyncio
async def test_only_gold_has_no_bound_of_processor_time(tmp_path):
    making, recorder = make(tmp_path, [Script(TEST, (call(2),))])
    await making
    gold = ast.dump(ast.parse(scripted_task().gold_files["m.py"]))
    bounds = [(ast.dump(ast.parse(spec.files["m.py"])) == gold, run.cpu_s) for spec, run in recorder.replayed]
    assert {is_gold for is_gold, _ in bounds} == {True, False}
    assert all(bool(cpu_s) != is_gold for is_gold, cpu_s in bounds)


@pytest.mark.asyncio
async def test_a_variant_that_the_failing_tests_tell_does_not_meet_the_others(tmp_path):
    making, recorder = make(tmp_path, [Script(TEST, (call(2),)), Script(KEPT, (call(1),))])
    oracle = await making
    variants = [names for names, conditions in recorder.played if conditions.max_late == 1]
    assert variants.count((TEST,)) == oracle.strength.num_variants == oracle.strength.num_variants_killed
    assert (KEPT,) not in variants


@pytest.mark.asyncio
async def test_a_variant_that_the_failing_tests_do_not_tell_meets_the_others(tmp_path):
    making, recorder = make(tmp_path, [Script(TEST, (call("text"),)), Script(KEPT, (call(2),))])
    oracle = await making
    assert sum(names == (KEPT,) for names, conditions in recorder.played if conditions.max_late == 1) > 0
    assert oracle.strength.num_variants_killed > 0


@pytest.mark.asyncio
@pytest.mark.parametrize("cause", ["clock", "line"])
async def test_what_a_clock_or_a_line_changes_is_not_judged(tmp_path, cause):
    making, _ = make(tmp_path, [Script(TEST, (call(2, shows=cause),))])
    expected = (await making).expected[TEST]
    assert "after" not in {wanted.part for wanted in expected}


@pytest.mark.asyncio
async def test_wide_scripts_stay_within_their_bound(tmp_path):
    num_scripts = MAX_WIDE_STEPS // MAX_STEPS
    wide = [Script(f"test_m.py::test_{n}", (call(1),) * MAX_STEPS, ("m",)) for n in range(num_scripts + 2)]
    long = Script("test_m.py::test_long", (call(1),) * (MAX_STEPS + 1), ("m",))
    making, _ = make(tmp_path, [Script(TEST, (call(2),)), long, *wide])
    assert [len(script.steps) for script in (await making).scripts["wide"]] == [MAX_STEPS] * num_scripts


@pytest.mark.asyncio
async def test_a_task_without_scripts_has_an_oracle_that_tells_nothing(tmp_path):
    making, _ = make(tmp_path, [])
    oracle = await making
    assert (oracle.scripts, oracle.strength.num_tests, oracle.strength.num_deciding_steps) == ({}, 2, 0)


@pytest.mark.asyncio
async def test_equal_tasks_have_equal_oracles(tmp_path):
    scripts = [Script(TEST, (call(2),))]
    first, second = make(tmp_path, scripts)[0], make(tmp_path, scripts)[0]
    assert await first == await second


def test_modules_are_named_as_they_are_imported():
    paths = ("src/a/b.py", "src/a/__init__.py", "c.py", "d.cfg", "__init__.py")
    task = scripted_task(gold_files=dict.fromkeys(paths, ""), source_paths=("", "src"))
    assert touched_modules(task) == ("a", "a.b", "c")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"runner": TestRunner(type="exit_code", command=("make",))}, "command"),
        ({"build": (BuildStep(command=("make",), has_products=True),)}, "build"),
        ({"gold_files": {"setup.cfg": ""}}, "no Python code"),
        ({"fail_to_pass": ("repairgym_build/test_build.py::test_a",)}, "built wheel"),
    ],
)
def test_tasks_without_calls_are_named(changes, reason):
    assert (reason in why_not_replayed(scripted_task(**changes))) is True
    assert bool(why_not_replayed(scripted_task(**changes))) == bool(reason)


def test_the_deadline_of_a_replay_is_far_beyond_the_time_of_gold():
    assert replay_timeout_s(0.5) == 35.0
    assert replay_timeout_s(1000.0) == 120.0
