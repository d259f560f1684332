"""Which scripts need not be asked: a submission that differs in bodies of functions only, which they do not run."""

import random

import pytest

from repairgym.grading.reached import differing_functions, unreached
from repairgym.grading.replayed import NUM_WIDE, draw_scripts
from repairgym.records import ReplayStrength
from repairgym.tasks.replay.oracle import Oracle
from repairgym.tasks.replay.scripts import Script
from repairgym.testing.scripted import scripted_task

GOLD = '''"""Doc."""
import os

LIMIT = 3

def first(a, b):
    """Compare."""
    return min(a, b) <= LIMIT

@os.fspath
class Box:
    size = 1

    @property
    def full(self):
        self.seen = True
        return self.size > 1

    def other(self):
        return self.size
'''
BROKEN = GOLD.replace("<= LIMIT", "< LIMIT")
FIRST, FULL = "m.py::6", "m.py::14"


@pytest.mark.parametrize(
    ("old", "new", "functions"),
    [
        ("other(self):", "other(self):  # a comment", {"m.py::19"}),
        ("<= LIMIT", "< LIMIT + 1", {FIRST}),
        ("    return min(a, b) <= LIMIT", "    low = min(a, b)\n    return not low > LIMIT", {FIRST}),
        ("self.size > 1", "1 < self.size", {FULL}),
        ("\nLIMIT", "\n\n# moved\nLIMIT", set()),
        ("LIMIT = 3", "LIMIT = 4", None),
        ("Compare.", "Compares.", None),
        ("first(a, b)", "first(a, b=1)", None),
        ("    @property\n", "", None),
        ("    size = 1", "    size = 2", None),
        ("import os", "import sys", None),
        ("    def other(self):\n        return self.size\n", "", None),
        ("return min(a, b)", "yield min(a, b)", None),
        ("return min(a, b)", "return max(a, b)", None),
        ("return min(a, b)", "global LIMIT\n    LIMIT = 3\n    return min(a, b)", None),
        ("return min(a, b)", "import b\n    return min(a, b)", None),
        ("return min(a, b)", "a[0] = b\n    return min(a, b)", None),
        ("return min(a, b)", "a.b = b\n    return min(a, b)", None),
        ("return min(a, b)", "return min(a, b, key=b)", None),
        ("self.seen = True", "self.seen = self.size = True", None),
        ('"""Doc."""', '"""Doc."""  # coding: latin-1', None),
        ("LIMIT = 3", "LIMIT = (", None),
    ],
)
def test_functions_that_differ_from_gold(old, new, functions):
    assert old in GOLD
    assert differing_functions({"m.py": GOLD}, {"m.py": BROKEN}, {"m.py": GOLD.replace(old, new, 1)}) == functions


@pytest.mark.parametrize("own", [{"m.py": GOLD, "n.py": ""}, {"m.py": None}, {}, {"m.py": GOLD, "data.txt": "1"}])
def test_other_files_may_change_everything(own):
    assert differing_functions({"m.py": GOLD}, {"m.py": BROKEN}, own) is None


def test_scripts_that_run_nothing_else_are_drawn_as_wide_ones_are():
    strength = ReplayStrength(num_tests=1, num_scripts=1, num_lost_steps=0, num_deciding_steps=1)
    scripts = tuple(Script(f"p{number}", ({"op": "call", "args": []},)) for number in range(20))
    executed = {"p0": frozenset({FIRST}), **{f"p{number}": frozenset({FULL}) for number in range(1, 19)}}
    oracle = Oracle({"fail_to_pass": (Script("f", ()),), "pass_to_pass": scripts}, {}, strength, 0.1, executed)
    task = scripted_task().model_copy(update={"base_files": {"m.py": BROKEN}, "gold_files": {"m.py": GOLD}})
    same = unreached(oracle, task, {"m.py": GOLD.replace("<= LIMIT", "< LIMIT + 1")})
    assert same == {f"p{number}" for number in range(1, 19)}  # nothing is known of what the last one runs
    draws = [[script.id for script in draw_scripts(oracle, random.Random(seed), same)] for seed in range(4)]
    assert all({"f", "p0", "p19"} <= {*drawn} and len(drawn) == 3 + NUM_WIDE for drawn in draws)
    assert len({frozenset(drawn) for drawn in draws}) > 1
    assert not unreached(oracle, task, {"m.py": GOLD.replace("<= LIMIT", "< 4")} | {"n.py": ""})


def test_a_warm_grading_draws_among_the_scripts_of_tests_that_passed_before():
    strength = ReplayStrength(num_tests=1, num_scripts=1, num_lost_steps=0, num_deciding_steps=1)
    calls = ({"op": "call", "args": []},) * 150
    scripts = tuple(Script(f"p{number}", calls) for number in range(20))
    oracle = Oracle({"fail_to_pass": (Script("f", calls * 9),), "pass_to_pass": scripts}, {}, strength, 0.1)
    whole = draw_scripts(oracle, random.Random(0))
    draws = [[script.id for script in draw_scripts(oracle, random.Random(seed), is_whole=False)] for seed in range(9)]
    assert len(whole) == 21
    assert all(drawn[0] == "f" and len(drawn) == 3 for drawn in draws)
    assert len({frozenset(drawn) for drawn in draws}) > 1
