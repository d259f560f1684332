"""A step counts when all replays of gold agree, and nothing unstable flows into it; the JSON form brings all back."""

import json

import pytest

from repairgym.records import ReplayStrength
from repairgym.tasks.replay.oracle import ANY, Oracle, Value, expect, shortened
from repairgym.tasks.replay.scripts import Observation, Replay, Script

MAKE = {"op": "call", "args": [["g", "m", "make"]], "to": 0}
READ = {"op": "attribute", "name": "x", "args": [["h", 0]], "to": 1, "asserted": True}
OTHER = {"op": "call", "args": [["g", "m", "f"], ["l", 3]], "to": 2}
SCRIPT = Script("t", (MAKE, READ, OTHER))


def replay(*values, kind="plain"):
    seen = tuple(
        Observation(step, "result", value, kind, step == 1) for step, value in enumerate(values) if value is not None
    )
    return Replay({"t": seen}, {}, 0.1)


def steps_of(expected):
    return [one.step for one in expected]


def test_steps_on_which_gold_agrees_are_judged_against_the_broken_code():
    expected = expect(SCRIPT, [replay("1", "2", "3")] * 3, replay("1", "9", None))
    assert [one.gold.text for one in expected] == ["1", "2", "3"]
    assert [one.broken and one.broken.text for one in expected] == ["1", "9", None]
    assert [one.is_asserted for one in expected] == [False, True, False]
    assert [one.is_deciding for one in expected] == [False, True, True]


def test_what_differs_between_replays_of_gold_taints_what_depends_on_it():
    golds = [replay("1", "2", "3"), replay("7", "2", "3"), replay("1", "2", "3")]
    assert steps_of(expect(SCRIPT, golds, replay())) == [2]
    golds = [replay("1", "2", "3"), replay("1", "2", "3"), replay("1", "2", None)]
    assert steps_of(expect(SCRIPT, golds, replay())) == [0, 1]


def test_nothing_is_judged_by_what_cannot_be_compared():
    assert expect(SCRIPT, [replay("1", kind="opaque")] * 3, replay()) == ()
    assert expect(SCRIPT, [replay("1", kind="opaque")] * 3, replay("2", kind="opaque")) == ()


@pytest.mark.parametrize("golds", [[replay("1"), replay("7"), replay("1")], [replay("1", kind="opaque")] * 3])
def test_an_exception_of_the_broken_code_is_told_from_any_value_of_gold(golds):
    (one,) = expect(SCRIPT, golds, replay("E", kind="error"))
    assert (one.gold, one.is_deciding, one.is_used) == (ANY, True, True)
    assert one.accepts(Value("plain", "8"))
    assert one.accepts(Value("opaque", "null"))
    assert not one.accepts(Value("error", "E"))
    assert not one.accepts(None)


def test_an_exception_tells_nothing_where_gold_raises_too_or_does_not_get_there():
    broken = replay("E", kind="error")
    assert expect(SCRIPT, [replay("1"), replay("E", kind="error"), replay("1")], broken) == ()
    assert expect(SCRIPT, [replay("1"), replay(), replay("1")], broken) == ()


def test_a_difference_in_the_state_of_objects_alone_decides_nothing():
    (one, *_) = expect(SCRIPT, [replay("1", kind="state")] * 3, replay("2", kind="state"))
    assert not one.is_deciding
    (one, *_) = expect(SCRIPT, [replay("1", kind="state")] * 3, replay("2", kind="error"))
    assert (one.is_deciding, one.is_asserted, one.is_used) == (True, False, True)


def test_long_values_are_compared_by_digest():
    assert shortened("x" * 200) == "x" * 200
    assert shortened("x" * 201) != shortened("x" * 202)
    assert len(shortened("x" * 5000)) < 100


def test_the_json_form_brings_the_oracle_back():
    strength = ReplayStrength(num_tests=1, num_scripts=1, num_lost_steps=0, num_deciding_steps=1)
    expected = expect(SCRIPT, [replay("1", "2", "3")] * 3, replay("1", "9", None))
    oracle = Oracle({"fail_to_pass": (SCRIPT,), "wide": ()}, {"t": expected}, strength, 0.25)
    assert Oracle.from_json(json.loads(json.dumps(oracle.to_json()))) == oracle


def test_what_one_more_replay_of_gold_answers_otherwise_judges_nothing():
    expected = expect(SCRIPT, [replay("1", "2", "3")] * 3, replay("1", "9", "3"))
    strength = ReplayStrength(num_tests=1, num_scripts=1, num_lost_steps=0, num_deciding_steps=1)
    oracle = Oracle({"wide": (SCRIPT,)}, {"t": expected}, strength, 0.1)
    assert oracle.where_agreed(replay("1", "2", "3")) == oracle
    assert oracle.where_agreed(replay("1", "2")) == oracle
    assert steps_of(oracle.where_agreed(replay("7", "2", "3")).expected["t"]) == [2]


def test_a_call_that_differs_once_judges_nothing_wherever_it_stands():
    script = Script(
        "t", (OTHER, {**OTHER, "to": 5}, {**READ, "args": [["h", 5]]}, {**OTHER, "args": OTHER["args"][:1]})
    )
    golds = [replay("1", "2", "3", "4"), replay("7", "2", "3", "4"), replay("1", "2", "3", "4")]
    assert steps_of(expect(script, golds, replay())) == [3]
