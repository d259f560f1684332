"""Objects are compared where gold compares them by their content, and only those that it tells apart."""

import json
import random

from repairgym.tasks.replay.compared import compared_scripts, made_objects, only_yes_and_no, trial_scripts
from repairgym.tasks.replay.oracle import Expected, Value
from repairgym.tasks.replay.scripts import Observation, Replay, Script

PRICE = json.dumps(["object", "Price", {}])


def price(cents):
    return {"op": "call", "args": [["g", "m", "Price"], ["l", cents]], "to": 0}


def scripts_of(*cents):
    return [Script(f"t{number}", (price(one),), ("m:Price",)) for number, one in enumerate(cents)]


def seen(*values):
    kinds = {"true": "plain", "false": "plain", "7": "plain"}
    return tuple(Observation(step, "result", one, kinds.get(one, "opaque"), False) for step, one in enumerate(values))


def objects_of(scripts, text=PRICE):
    gold = Replay({script.id: seen(text) for script in scripts}, {}, 0.1)
    return made_objects(scripts, gold, random.Random(0))


def answer(trial, is_by_content=True):
    """Answer as a class does whose objects are equal when their literals are, or never."""
    made = [step["args"][1][1] for step in trial.steps if step["op"] == "call"]
    numbers = iter([(0, len(made) - 1), *((a, b) for a in range(len(made) - 1) for b in range(a + 1, len(made) - 1))])
    values = []
    for step in trial.steps:
        one, other = next(numbers) if step["op"] == "compare" else (0, 0)
        told = str(is_by_content and made[one] == made[other]).lower()
        values.append(told if step["op"] == "compare" else PRICE)
    return Replay({trial.id: seen(*values)}, {}, 0.1)


def test_objects_of_one_class_that_are_made_in_other_ways_are_compared():
    objects = objects_of(scripts_of(1, 1, 2))
    assert [len(ones) for ones in objects.values()] == [2]
    (trial,) = trial_scripts(objects)
    assert [step["op"] for step in trial.steps] == ["call", "clean", "call", "clean", "call", "compare", "compare"]
    (script,) = compared_scripts(objects, [answer(trial)] * 2)
    asked = [step for step in script.steps if step["op"] == "compare"]
    assert [step["name"] for step in asked] == ["eq", "ne", "lt"]
    assert len({step["is_varied"] for step in asked}) == 1
    assert len({tuple(handle) for handle in asked[0]["args"]}) == 2


def test_objects_without_a_comparison_of_their_own_are_left_alone():
    objects = objects_of(scripts_of(1, 2))
    (trial,) = trial_scripts(objects)
    assert compared_scripts(objects, [answer(trial, is_by_content=False)] * 2) == ()
    assert compared_scripts(objects, [answer(trial), Replay({}, {"x": "died"}, 0.1)]) == ()
    assert objects_of(scripts_of(1, 2), "7") == {}
    assert objects_of(scripts_of(1)) == {}


def test_lists_of_objects_are_compared_with_lists_as_long():
    one, two = (json.dumps(["l", [["object", "Price", {}]] * length]) for length in (1, 2))
    scripts = scripts_of(1, 2)
    gold = Replay({"t0": seen(one), "t1": seen(two)}, {}, 0.1)
    assert made_objects(scripts, gold, random.Random(0)) == {}
    assert list(objects_of(scripts, one)) == ["l1:Price"]


def test_only_answers_of_yes_and_no_are_judged():
    script = Script("c", (price(1), {"op": "compare", "name": "eq", "args": [], "is_varied": "c:0"}))
    steps = tuple(Expected(step, "result", Value("plain", text), None, False) for step, text in ((0, "true"), (1, "7")))
    assert only_yes_and_no(script, steps) == ()
    assert len(only_yes_and_no(script, (steps[0]._replace(step=1),))) == 1
