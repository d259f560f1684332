"""Joined scripts keep their steps apart: no handle of one part is that of another."""

from repairgym.tasks.replay.joining import MAX_STEPS, NUM_PARTS, joined
from repairgym.tasks.replay.scripts import Script, literals, tainted_steps

MAKE = {"op": "call", "args": [["g", "m", "make"], ["l", 7]], "to": 0}
CLEAN = {"op": "clean", "args": []}
READ = {"op": "method", "name": "x", "args": [["h", 0]], "kwargs": {"key": ["L", ["h", 0]]}, "to": 3, "after": [0]}


def part(name, *steps):
    return Script(name, steps or (MAKE, READ), (name,), {"file handle": 1})


def test_handles_move_and_everything_else_stays():
    (one,) = joined([part("a"), part("b")], "wide")
    assert (one.id, one.imports, one.lost) == ("wide+0", ("a", "b"), {"file handle": 2})
    assert one.steps[:2] == (MAKE, READ)
    assert one.steps[2] == CLEAN
    assert one.steps[3] == {**MAKE, "to": 4}
    assert one.steps[4] == {**READ, "args": [["h", 4]], "kwargs": {"key": ["L", ["h", 4]]}, "to": 7, "after": [4]}
    assert [value for _, value in literals(one)] == [7, 7]


def test_what_is_unstable_in_one_part_taints_no_other():
    (one,) = joined([part("a"), part("b")], "wide")
    assert tainted_steps(one.steps, {0}) == {0, 1}


def test_a_joined_script_is_bounded():
    scripts = [part(str(number)) for number in range(NUM_PARTS + 1)]
    assert [len(one.steps) for one in joined(scripts, "wide")] == [3 * NUM_PARTS - 1, 2]
    long = part("long", *([MAKE] * MAX_STEPS))
    assert [len(one.steps) for one in joined([part("a"), long, part("b")], "wide")] == [2, MAX_STEPS, 2]
    assert joined([], "wide") == ()
