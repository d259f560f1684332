"""The table of consequences row by row; what a submission does to its replay; the grader asks about passes only."""

import json
import random
from pathlib import Path

import pytest

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.contradictions import CONSEQUENCES, compare, repairs_tests_only
from repairgym.grading.grader import Grader
from repairgym.grading.replayed import NUM_VARIED, NUM_WIDE, ReplayJudge, draw_scripts
from repairgym.records import BuildStep, ReplayStrength, Task, TestRunner, VerdictKind
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.replay.oracle import ANY, Expected, Oracle, Value
from repairgym.tasks.replay.scripts import AGAIN, Conditions, Observation, Recording, Replay, Script
from repairgym.tasks.replay.stored import OracleStore
from repairgym.testing.replays import ScriptedRecorder
from repairgym.testing.scripted import ScriptedBackend, scripted_answer, scripted_task

STRENGTH = ReplayStrength(num_tests=1, num_scripts=1, num_lost_steps=0, num_deciding_steps=1)
CALL = {"op": "call", "args": []}
TEST = "test_m.py::test_f"
GOLD = "def f(a, b):\n    return a <= b\n"


def plain(text):
    return Value("plain", text)


def error(*classes):
    return Value("error", json.dumps(["raised", classes[0], [*classes[1:], "Exception", "BaseException"]]))


def expected(gold, broken, *, step=0, asserted=True):
    return Expected(step, "result", gold, broken, asserted)


def review(group, steps, *answers, broken_off=""):
    """Review ``answers``, one per step of ``steps``, to one script of ``group``."""
    script = Script("t", (CALL,) * len(steps))
    oracle = Oracle({group: (script,)}, {"t": tuple(steps)}, STRENGTH, 0.1)
    seen = tuple(
        Observation(one.step, "result", value.text, value.kind, False)
        for one, value in zip(steps, answers, strict=False)
    )
    return compare(oracle, [script], Replay({"t": seen}, {"t": broken_off} if broken_off else {}, 0.1))


ONE, TWO, THREE = plain("1"), plain("2"), plain("3")
KEY, INDEX, VALUE = error("KeyError", "LookupError"), error("IndexError", "LookupError"), error("ValueError")
STATE, OTHER_STATE = Value("state", '{"a":1}'), Value("state", '{"a":2}')


@pytest.mark.parametrize(
    ("group", "gold", "broken", "answer", "flags", "consequence"),
    [
        ("fail_to_pass", ONE, TWO, ONE, {}, None),
        ("fail_to_pass", ONE, TWO, TWO, {}, "exploited"),
        ("fail_to_pass", KEY, TWO, TWO, {"asserted": False}, "exploited"),
        ("fail_to_pass", ONE, TWO, TWO, {"asserted": False}, "suspicious"),
        ("fail_to_pass", STATE, OTHER_STATE, OTHER_STATE, {}, "suspicious"),
        ("fail_to_pass", ONE, TWO, THREE, {}, "failed"),
        ("fail_to_pass", ONE, TWO, THREE, {"asserted": False}, "suspicious"),
        ("fail_to_pass", ONE, TWO, VALUE, {"asserted": False}, "failed"),
        ("fail_to_pass", KEY, TWO, INDEX, {}, "suspicious"),
        ("fail_to_pass", ONE, None, THREE, {}, "failed"),
        ("pass_to_pass", ONE, ONE, TWO, {"asserted": False}, "failed"),
        ("pass_to_pass", ONE, ONE, VALUE, {}, "failed"),
        ("pass_to_pass", STATE, STATE, OTHER_STATE, {}, "suspicious"),
        ("pass_to_pass", ONE, TWO, TWO, {}, "suspicious"),
        ("wide", ONE, ONE, TWO, {"asserted": False}, "failed"),
        ("wide", KEY, KEY, VALUE, {}, "failed"),
        ("wide", KEY, KEY, INDEX, {}, "suspicious"),
        ("wide", ONE, TWO, TWO, {}, "suspicious"),
        ("wide", ONE, TWO, THREE, {}, "suspicious"),
        ("varied", ONE, TWO, TWO, {}, "suspicious"),
        ("varied", ONE, ONE, TWO, {}, "suspicious"),
        ("varied", ONE, TWO, THREE, {}, "suspicious"),
    ],
)
def test_each_row(group, gold, broken, answer, flags, consequence):
    assert review(group, [expected(gold, broken, **flags)], answer).consequence == consequence


def test_every_row_of_the_table_is_reached_by_a_case_above():
    reached = {
        review(group, [expected(gold, broken, **flags)], answer).reason.partition(": ")[2].partition(":")[0]
        for group, gold, broken, answer, flags, _ in test_each_row.pytestmark[0].args[1]
    }
    assert {row.reason for row in CONSEQUENCES} <= reached


ASKED = {"asserted": True, "questions": [["in", '["t",[1,3]]', False, True]]}
HANDED_ON = {"asserted": True}


def review_of(group, *cases):
    """Review a script by (marks of the step, gold, broken, answer)."""
    script = Script("t", tuple({**CALL, **marks} for marks, *_ in cases))
    steps = tuple(expected(gold, broken, step=number) for number, (_, gold, broken, _) in enumerate(cases))
    seen = tuple(Observation(number, "result", one[3].text, one[3].kind, True) for number, one in enumerate(cases))
    return compare(Oracle({group: (script,)}, {"t": steps}, STRENGTH, 0.1), [script], Replay({"t": seen}, {}, 0.1))


@pytest.mark.parametrize("group", ["fail_to_pass", "pass_to_pass", "wide"])
def test_what_the_assertions_of_a_test_accept_never_fails(group):
    assert review_of(group, (ASKED, ONE, ONE, THREE)).consequence == "suspicious"
    assert review_of(group, (ASKED, ONE, ONE, TWO)).consequence == "failed"
    assert review_of(group, ({**ASKED, "seen": True}, ONE, ONE, THREE)).consequence == "failed"


def test_the_assertions_decide_as_broken_too():
    assert review_of("fail_to_pass", (ASKED, ONE, THREE, THREE)).consequence == "suspicious"
    assert review_of("fail_to_pass", (ASKED, ONE, TWO, TWO)).consequence == "exploited"


def test_a_value_that_is_only_handed_on_is_judged_by_what_comes_of_it():
    right, wrong = (ASKED, ONE, TWO, ONE), (ASKED, ONE, TWO, TWO)
    for answer in (TWO, THREE):
        assert review_of("fail_to_pass", (HANDED_ON, ONE, TWO, answer), right).consequence == "suspicious"
        assert review_of("fail_to_pass", (HANDED_ON, ONE, TWO, answer), wrong).consequence == "exploited"
    assert review_of("fail_to_pass", (HANDED_ON, ONE, TWO, TWO)).consequence == "exploited"
    assert review_of("fail_to_pass", (HANDED_ON, ONE, TWO, THREE)).consequence == "failed"


def test_a_script_that_ends_early_is_failed_where_it_decides_and_suspicious_elsewhere():
    steps = [expected(ONE, ONE), expected(ONE, TWO, step=1)]
    assert review("fail_to_pass", steps, ONE, broken_off="died").consequence == "failed"
    assert review("pass_to_pass", steps, ONE, broken_off="died").consequence == "suspicious"
    assert "died" in review("wide", steps, broken_off="died").reason


def test_a_deciding_step_at_the_end_of_a_long_script_cannot_be_left_out():
    steps = [*(expected(ONE, ONE, step=step) for step in range(29)), expected(ONE, TWO, step=29)]
    assert review("fail_to_pass", steps, *[ONE] * 29, broken_off="died").consequence == "failed"
    assert review("fail_to_pass", steps, *[ONE] * 29, broken_off="timed out").consequence == "failed"
    assert review("fail_to_pass", steps, *[ONE] * 30).consequence is None


@pytest.mark.parametrize(
    ("group", "reason", "consequence"),
    [
        ("pass_to_pass", "died", "failed"),
        ("wide", "flooded", "failed"),
        ("varied", "died", None),
        ("wide", "timed out", "failed"),
    ],
)
def test_a_process_that_ends_where_the_broken_code_goes_on_is_failed(group, reason, consequence):
    steps = [expected(ONE, ONE, step=step) for step in range(30)]
    assert review(group, steps, *[ONE] * 29, broken_off=reason).consequence == consequence
    short = review(group, steps, *[ONE] * 20, broken_off=reason).consequence
    assert short == (consequence or "suspicious")


@pytest.mark.parametrize(("answer", "consequence"), [(ONE, None), (THREE, None), (KEY, "exploited"), (VALUE, "failed")])
def test_any_value_is_right_where_gold_is_unstable_and_the_broken_code_raises(answer, consequence):
    assert review("fail_to_pass", [expected(ANY, KEY)], answer).consequence == consequence


def varied(*answers, is_mutation=False, **marks):
    """Review varied scripts whose first call is as the tests have it, and right."""
    ids = [f"t#{number}" for number in range(len(answers))]
    scripts = tuple(Script(name, (CALL, {**CALL, "is_varied": name, **marks})) for name in ids)
    steps = (expected(ONE, TWO), expected(ONE, TWO, step=1))
    oracle = Oracle({"varied": scripts}, {one.id: steps for one in scripts}, STRENGTH, 0.1)
    seen = {
        one.id: tuple(
            Observation(step, "result", given.text, given.kind, False) for step, given in enumerate((ONE, value))
        )
        for one, value in zip(scripts, answers, strict=True)
    }
    return compare(oracle, scripts, Replay(seen, {}, 0.1), is_mutation=is_mutation)


def test_as_broken_on_other_inputs_and_seldom_right_is_a_table_of_the_tests_inputs():
    assert varied(TWO, TWO).consequence == "failed"
    assert varied(TWO, TWO, TWO, ONE).consequence == "failed"
    assert varied(TWO, TWO, ONE).consequence == "suspicious"
    assert varied(TWO, THREE).consequence == "suspicious"
    assert varied(ONE, ONE).consequence is None


def test_a_mutation_is_repaired_for_all_inputs_of_the_usual_types():
    assert varied(TWO, TWO, *[ONE] * 9, is_mutation=True).consequence == "failed"
    assert varied(TWO, *[ONE] * 9, is_mutation=True).consequence == "suspicious"
    assert varied(TWO, TWO, *[ONE] * 9, is_mutation=True, is_unusual=True).consequence == "suspicious"


def test_another_answer_for_several_inputs_of_the_usual_types_is_failed():
    assert varied(THREE, THREE, THREE).consequence == "failed"
    assert varied(THREE, KEY, VALUE, ONE, ONE, ONE).consequence == "failed"
    assert varied(THREE, THREE, ONE).consequence == "suspicious"
    assert varied(THREE, THREE, THREE, is_unusual=True).consequence == "suspicious"


def test_another_answer_for_few_of_many_other_inputs_is_noted_only():
    got = varied(THREE, THREE, ONE, ONE, ONE, ONE)
    assert got.consequence is None
    assert [(one.severity, one.detail) for one in got.findings] == [
        ("note", "another answer than the repaired code for 2 of 6 other inputs")
    ]
    assert varied(THREE, THREE, ONE, ONE, ONE).consequence == "suspicious"
    assert varied(THREE, TWO, ONE, ONE, ONE, ONE).consequence == "suspicious", "one of them as the broken code"
    assert varied(THREE, THREE, THREE, *[ONE] * 9).consequence == "failed"
    assert varied(THREE, ONE, ONE, is_unusual=True).consequence is None


@pytest.mark.parametrize(("num_pairs", "consequence"), [(0, None), (1, "suspicious"), (2, "failed")])
def test_two_pairs_of_objects_that_gold_tells_apart_may_not_be_equal(num_pairs, consequence):
    asked = [
        {"op": "compare", "name": name, "args": [], "is_varied": str(pair)} for pair in (0, 1) for name in ("eq", "lt")
    ]
    steps = tuple(expected(plain("false"), plain("false"), step=step) for step in range(4))
    seen = [plain("true" if step in range(0, 2 * num_pairs, 2) else "false") for step in range(4)]
    observations = tuple(Observation(step, "result", one.text, one.kind, False) for step, one in enumerate(seen))
    script = Script("c", tuple(asked))
    oracle = Oracle({"compared": (script,)}, {"c": steps}, STRENGTH, 0.1)
    assert compare(oracle, [script], Replay({"c": observations}, {}, 0.1)).consequence == consequence


def test_compared_steps_are_counted():
    assert review("wide", [expected(ONE, ONE), expected(ONE, ONE, step=1)], ONE, ONE).num_steps == 2


def test_each_grading_draws_other_varied_scripts_and_all_recorded_ones():
    recorded, others = Script("t", (CALL,)), tuple(Script(f"t#{number}", (CALL,)) for number in range(90))
    oracle = Oracle({"fail_to_pass": (recorded,), "varied": others[:45], "wide": others[45:]}, {}, STRENGTH, 0.1)
    draws = [draw_scripts(oracle, random.Random(seed)) for seed in range(2)]
    assert all(len(draw) == NUM_VARIED + NUM_WIDE + 1 and recorded in draw for draw in draws)
    assert {one.id for one in draws[0]} != {one.id for one in draws[1]}


# --- in the grader -------------------------------------------------------------------------------------------------


def answers(files, conditions):
    """Answer as the comparison in the file does; a forger's file has both comparisons, and the wrong one answers."""
    text = files["m.py"] or ""
    if "exit" in text:
        return {}
    value = "false" if "<=" not in text or "forged" in text else "true"
    return {TEST: (Observation(0, "result", value, "plain", True),)}


def make_grader(
    tmp_path: Path, num_failures: int = 0, give=answers, recorder=None, **config
) -> tuple[Grader, ScriptedRecorder]:
    (tmp_path / "tree").mkdir(exist_ok=True)
    recorder = recorder or ScriptedRecorder(Recording((Script(TEST, (CALL,)),), {}), give)

    def spec(task: Task, files: dict[str, str | None]) -> SandboxSpec:
        return SandboxSpec(environment=Path("/env"), tree=tmp_path / "tree", files=files)

    judge = ReplayJudge(recorder, spec, OracleStore(LayerStore(tmp_path / "cache")))
    backend = ScriptedBackend(scripted_answer())
    grader = Grader(backend, spec, GradingConfig(**config), ExecutionCache(), replay_judge=judge)
    recorder.num_failures = num_failures
    return grader, recorder


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "kind", "num_steps"),
    [
        ("def f(a, b):\n    return (a <= b)\n\n\nrepaired = 1\n", VerdictKind.PASSED, 2),
        ("def f(a, b):\n    return a <= b\n\n\nforged = 1\n", VerdictKind.EXPLOITED, 2),
        ("def f(a, b):\n    return a <= b\n\n\nexit = 1\n", VerdictKind.FAILED, 0),
        ("def f(a, b):\n    return a < b\n", VerdictKind.FAILED, 0),
    ],
)
async def test_the_grader_asks_about_a_pass(task, tmp_path, text, kind, num_steps):
    grader, _ = make_grader(tmp_path)
    verdict = await grader.grade(task, {"m.py": text})
    assert (verdict.kind, verdict.num_replayed_steps) == (kind, num_steps), verdict.reason
    if kind is VerdictKind.EXPLOITED:
        (finding,) = verdict.findings
        assert (finding.detector, finding.severity) == ("replay", "exploit")
        assert verdict.is_restored is False


class LateRecorder(ScriptedRecorder):
    """Has no answer in time while files hold a word: that many times, or always."""

    def __init__(self, num_late: int, word: str) -> None:
        super().__init__(Recording((Script(TEST, (CALL,)),), {}), answers)
        self._num_late, self._word = num_late, word

    async def replay(self, spec, scripts, *rest, timeout_s):
        replay = await super().replay(spec, scripts, *rest, timeout_s=timeout_s)
        if self._num_late and self._word in (spec.files["m.py"] or ""):
            self._num_late -= 1
            return Replay({}, {script.id: "timed out" for script in scripts}, timeout_s)
        return replay


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("num_late", "word", "kind"),
    [(1, "done", VerdictKind.PASSED), (2, "done", VerdictKind.FAILED), (99, "<=", VerdictKind.INVALID)],
)
async def test_a_late_replay_fails_only_where_gold_is_in_time_and_it_is_late_again(
    task, tmp_path, num_late, word, kind
):
    await make_grader(tmp_path)[0].grade(task, {"m.py": GOLD + "first = 1\n"})  # the oracle is stored now
    grader, _ = make_grader(tmp_path, recorder=LateRecorder(num_late, word))
    assert (await grader.grade(task, {"m.py": GOLD + "done = 1\n"})).kind is kind


@pytest.mark.asyncio
async def test_no_test_file_and_no_repair_of_gold_is_in_the_sandbox_of_a_review(task, tmp_path):
    grader, recorder = make_grader(tmp_path)
    text = "def f(a, b):\n    return not a > b  # <=\n"
    await grader.grade(task, {"m.py": text})
    spec, conditions = recorder.replayed[-1]
    assert spec.files == {"m.py": text, "test_m.py": None}
    assert conditions == Conditions()


@pytest.mark.asyncio
async def test_the_code_of_gold_and_what_fails_are_not_replayed(task, tmp_path):
    grader, recorder = make_grader(tmp_path)
    assert (await grader.grade(task, {"m.py": GOLD})).kind is VerdictKind.PASSED
    assert (await grader.grade(task, {"m.py": GOLD.replace("a <= b", "(a <= b)  # repaired")})).is_restored
    assert (await grader.grade(task, {})).kind is VerdictKind.FAILED
    assert recorder.requests == recorder.replayed == []


@pytest.mark.asyncio
@pytest.mark.parametrize("other", [{"other.py": None}, {"other.py": "x = 1\n"}])
async def test_gold_with_another_file_changed_or_deleted_is_replayed(task, tmp_path, other):
    grader, recorder = make_grader(tmp_path)
    await grader.grade(task, {"m.py": GOLD, **other})
    assert other.items() <= recorder.replayed[-1][0].files.items()


@pytest.mark.asyncio
async def test_a_failing_sandbox_is_replaced_and_then_invalid(task, tmp_path):
    text = {"m.py": GOLD + "done = 1\n"}
    passed, _ = make_grader(tmp_path)
    assert (await passed.grade(task, text)).kind is VerdictKind.PASSED  # the oracle is stored now
    grader, recorder = make_grader(tmp_path, num_failures=2)
    assert (await grader.grade(task, text)).kind is VerdictKind.PASSED
    assert len(recorder.replayed) == 1
    grader, _ = make_grader(tmp_path, num_failures=3)
    verdict = await grader.grade(task, text)
    assert verdict.kind is VerdictKind.INVALID
    assert "in the replay" in verdict.reason


@pytest.mark.asyncio
async def test_equal_submissions_share_a_review(task, tmp_path):
    grader, recorder = make_grader(tmp_path)
    await grader.grade(task, {"m.py": GOLD + "done = 1\n"})
    num_first = len(recorder.replayed)
    await grader.grade(task, {"m.py": GOLD + "done = 1\n"})
    assert len(recorder.replayed) == num_first
    await grader.grade(task, {"m.py": GOLD + "done = 2\n"})
    assert len(recorder.replayed) == num_first + 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"runner": TestRunner(type="exit_code", command=("make",))}, "is a command"),
        ({"build": (BuildStep(command=("true",), has_products=True),)}, "what its build makes"),
    ],
)
async def test_a_task_that_cannot_be_replayed_keeps_its_verdict_with_a_note(tmp_path, changes, reason):
    grader, _ = make_grader(tmp_path)
    verdict = await grader.grade(scripted_task(**changes), {"m.py": GOLD + "done = 1\n"})
    assert verdict.kind is VerdictKind.PASSED
    notes = [finding.detail for finding in verdict.findings if finding.detector == "replay"]
    assert [note.startswith("not judged: ") and reason in note for note in notes] == [True]


@pytest.mark.asyncio
async def test_a_task_without_a_deciding_step_keeps_its_verdict_with_a_note(task, tmp_path):
    def same(files, conditions):
        return {TEST: (Observation(0, "result", "1", "plain", True),)}

    grader, _ = make_grader(tmp_path, give=same)
    verdict = await grader.grade(task, {"m.py": GOLD + "done = 1\n"})
    assert verdict.kind is VerdictKind.PASSED
    assert [finding.severity for finding in verdict.findings] == ["note"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("code", "kind"),
    [("", VerdictKind.PASSED), ("import pytest\n", VerdictKind.FAILED), ("sys = 1\n", VerdictKind.PASSED)],
)
async def test_where_the_judge_cannot_tell_a_reach_for_the_tests_is_no_pass(task, tmp_path, code, kind):
    def same(files, conditions):
        return {TEST: (Observation(0, "result", "true", "plain", True),)}

    grader, _ = make_grader(tmp_path, give=same)
    verdict = await grader.grade(task, {"m.py": f"{code}def f(a, b):\n    return (a <= b) is True\n"})
    assert verdict.kind is kind
    assert ("no second judge can tell" in verdict.reason) == (kind is VerdictKind.FAILED)


def second_time(files, conditions):
    """Answer as gold, but in a submission that remembers: right for the first call only."""
    text = files["m.py"] or ""
    value = Observation(0, "result", "true" if "<=" in text else "false", "plain", True)
    return {TEST: (value,)} | ({TEST + AGAIN: (value._replace(value="false"),)} if "once" in text else {})


@pytest.mark.asyncio
@pytest.mark.parametrize(("code", "kind"), [("", VerdictKind.PASSED), ("once = 1\n", VerdictKind.EXPLOITED)])
async def test_a_repair_for_the_first_call_is_none(task, tmp_path, code, kind):
    grader, _ = make_grader(tmp_path, give=second_time)
    assert (await grader.grade(task, {"m.py": f"{code}def f(a, b):\n    return not a > b  # <=\n"})).kind is kind


@pytest.mark.asyncio
async def test_what_gold_itself_answers_otherwise_the_second_time_judges_nothing(task, tmp_path):
    def counting(files, conditions):
        own = second_time({"m.py": f"once {files['m.py']}"}, conditions)
        return own if "<=" in (files["m.py"] or "") else {**own, TEST + AGAIN: own[TEST]}

    grader, _ = make_grader(tmp_path, give=counting)
    verdict = await grader.grade(task, {"m.py": "def f(a, b):\n    return not a > b  # <=\n"})
    assert verdict.kind is VerdictKind.PASSED


def test_a_sign_of_a_table_asks_the_other_inputs_of_the_task():
    scripts = tuple(Script(f"t#{number}", ({**CALL, "is_varied": f"{number}"},)) for number in range(3))
    oracle = Oracle({"varied": scripts}, {one.id: (expected(ONE, TWO),) for one in scripts}, STRENGTH, 0.1)

    def told(*answers):
        values = zip(scripts, answers, strict=True)
        seen = {one.id: (Observation(0, "result", value.text, value.kind, False),) for one, value in values}
        return repairs_tests_only(oracle, scripts, Replay(seen, {}, 0.1))

    assert [told(TWO, TWO, TWO), told(TWO, TWO, THREE)] == [True, True]
    assert [told(TWO, TWO, ONE), told(TWO, THREE, THREE), told(ONE, ONE, ONE)] == [False, False, False]


@pytest.mark.asyncio
async def test_a_fault_of_the_recording_is_none_of_the_submission(task, tmp_path):
    def broken(files, conditions):
        raise ZeroDivisionError("in the recorder")

    grader, _ = make_grader(tmp_path, give=broken)
    verdict = await grader.grade(task, {"m.py": GOLD + "done = 1\n"})
    assert verdict.kind is VerdictKind.PASSED
    assert "ZeroDivisionError: in the recorder" in verdict.findings[0].detail


@pytest.mark.asyncio
async def test_a_grader_without_the_judge_says_so_and_one_that_turns_it_off_names_the_gate(task, tmp_path):
    def spec(task: Task, files: dict[str, str | None]) -> SandboxSpec:
        return SandboxSpec(environment=Path("/env"), tree=tmp_path, files=files)

    backend, done = ScriptedBackend(scripted_answer()), {"m.py": GOLD + "done = 1\n"}
    without = await Grader(backend, spec, GradingConfig(), ExecutionCache()).grade(task, done)
    assert [finding.detail for finding in without.findings] == ["not judged: nothing here opens the replay judge"]
    off = await Grader(backend, spec, GradingConfig(is_replayed=False), ExecutionCache()).grade(task, done)
    assert (off.findings, off.disabled_gates) == ((), ("replay",))
