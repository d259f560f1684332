"""The directed search changes only what a deciding step follows from, and prefers what no test's input is like."""

import random

import pytest

from repairgym.tasks.replay.choosing import with_near
from repairgym.tasks.replay.oracle import Expected, Value
from repairgym.tasks.replay.scripts import Script, literals
from repairgym.tasks.replay.searched import deciding_inputs, form_of, near_scripts

RIGHT, WRONG = Value("plain", "1"), Value("plain", "2")


def call(number, *operands, **more):
    return {"op": "call", "args": [["g", "m", "f"], *operands], "to": number, **more}


def told(step, is_deciding):
    return Expected(step, "result", RIGHT, WRONG if is_deciding else RIGHT, is_asserted=True)


def near(script, expected, known=(), limit=60, seed=0, max_steps=400):
    return near_scripts([script], {script.id: expected}, known, limit, max_steps, random.Random(seed))


APART = Script("t", (call(1, ["l", 7]), call(2, ["l", "deciding"]), call(3, ["h", 2])))


def test_only_what_a_deciding_step_follows_from_is_changed():
    for script in near(APART, (told(0, False), told(2, True))):
        assert 7 not in [value for _, value in literals(script)], "the other call has no part in it"
        assert [step.get("is_varied") for step in script.steps].count(script.id) == 1
    assert near(APART, (told(0, False),)) == []


def test_inputs_beyond_those_of_the_tests_come_first():
    def num_longer(scripts):
        values = [value for script in scripts for _, value in literals(script) if isinstance(value, str)]
        return sum(len(value) > len("deciding") for value in values)

    every = near(APART, (told(2, True),))
    first = [script for seed in range(8) for script in near(APART, (told(2, True),), limit=4, seed=seed)]
    assert num_longer(first) / len(first) > num_longer(every) / len(every)


def test_no_script_is_made_twice_and_the_bounds_hold():
    first = near(APART, (told(2, True),), limit=5)
    known = set(map(form_of, first))
    second = near(APART, (told(2, True),), known=known, limit=5)
    assert (len(first), len(second), len(known)) == (5, 5, 5)
    assert known.isdisjoint(map(form_of, second))
    assert sum(len(script.steps) for script in near(APART, (told(2, True),), max_steps=9)) <= 9
    assert [one.to_json() for one in first] == [one.to_json() for one in near(APART, (told(2, True),), limit=5)]


def test_objects_that_are_handed_on_are_exchanged():
    script = Script("t", (call(1, ["g", "m", "first"]), call(2, ["g", "m", "second"])))
    made = near(script, (told(0, True),))
    assert [one.steps[0]["args"][1] for one in made] == [["g", "m", "second"]]
    assert made[0].steps[0]["is_unusual"], "it may be of another type"


@pytest.mark.parametrize(("is_deciding", "number"), [(True, 1), (False, 0)])
def test_inputs_that_decide_are_counted(is_deciding, number):
    script = Script("t#1", (call(1, ["l", 7], is_varied="t#1"), call(2, ["h", 1])))
    assert len(deciding_inputs([script], {"t#1": (told(1, is_deciding),)})) == number


def test_every_set_of_other_inputs_has_some_that_the_search_found():
    found = [Script(str(number), ()) for number in range(5)]
    assert [[one.id for one in part] for part in with_near([[APART], [APART]], found)] == [
        ["0", "2", "4", "t"],
        ["1", "3", "t"],
    ]
    assert with_near([], found) == [found]
    assert with_near([], []) == []
