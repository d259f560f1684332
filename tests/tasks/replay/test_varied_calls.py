"""A call is done twice, or gets an optional parameter that it leaves out; other calls stay as they were."""

import random

from repairgym.tasks.replay.scripts import Script
from repairgym.tasks.replay.varied_calls import optional_parameters, varied_calls

FILES = {
    "m.py": """
class Box:
    def __init__(self, size, name="box", *, lid=None):
        pass

    def open(self, is_slow=False, hook=print):
        pass


def count(items, first=1):
    pass
""",
    "broken.py": "def (",
    "gone.py": None,
}
BOX = {"op": "call", "args": [["g", "m", "Box"], ["l", 3]], "to": 0}
OPEN = {"op": "method", "name": "open", "args": [["h", 0]], "to": 1, "after": [0]}
COUNT = {"op": "call", "args": [["g", "m", "count"], ["l", 1], ["l", 2]], "to": 2}
SCRIPT = Script("t", (BOX, OPEN, COUNT))


def test_parameters_with_plain_defaults_are_known_by_function_and_class():
    found = optional_parameters(FILES)
    assert [(one.name, one.num_before, one.values) for one in found["Box"]] == [
        ("name", 1, ("box ", "a")),
        ("lid", -1, (True, 1, "a")),
    ]
    assert [(one.name, one.values) for one in found["open"]] == [("is_slow", (True,)), ("hook", ())]
    assert [(one.name, one.num_before, one.values) for one in found["count"]] == [("first", 1, (2, 0))]


def test_a_parameter_that_the_call_has_is_not_given_again():
    varied = varied_calls([SCRIPT], optional_parameters(FILES), 100, random.Random(0))
    given = [step for one in varied for step in one.steps if step.get("is_unusual")]
    assert sorted((step["op"], *step["kwargs"]) for step in given) == [
        *[("call", "lid")] * 3,
        *[("call", "name")] * 2,
        ("method", "is_slow"),
    ]
    assert len({one.id for one in varied}) == len(varied)


def test_a_call_is_done_twice_with_a_handle_of_its_own():
    twice = [one for one in varied_calls([SCRIPT], {}, 100, random.Random(0)) if "=" in one.id]
    assert len(twice) == 3
    (again,) = [one for one in twice if [step["op"] for step in one.steps] == ["call", "method", "method"]]
    assert again.steps[1] == OPEN
    assert again.steps[2] == {**OPEN, "to": 3, "is_varied": again.id}
    assert SCRIPT.steps == (BOX, OPEN, COUNT)
