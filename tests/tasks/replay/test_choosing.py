"""Each set of varied scripts kills every variant that any of them kills; what kills nothing is in none."""

from repairgym.tasks.replay.choosing import (
    MAX_SET_CPU_S,
    MAX_SET_SCRIPTS,
    MAX_SET_STEPS,
    NUM_SETS,
    covering_sets,
    killed,
)
from repairgym.tasks.replay.oracle import ANY, Expected, Value
from repairgym.tasks.replay.scripts import Observation, Replay, Script

CALL = {"op": "call", "args": [["g", "m", "f"]], "to": 0}


def script(name, num_steps=1):
    return Script(name, (CALL,) * num_steps)


def covered(scripts, kills):
    return set().union(*(kills[one.id] for one in scripts))


def test_each_set_kills_everything_that_any_script_kills():
    kills = {f"t#{number}": frozenset({number % 4}) for number in range(80)}
    kills |= {"only": frozenset({9}), "nothing": frozenset()}
    sets = covering_sets([script(name) for name in kills], kills, {})
    assert len(sets) == NUM_SETS
    assert all(len(one) == MAX_SET_SCRIPTS and covered(one, kills) == {0, 1, 2, 3, 9} for one in sets)
    assert all("nothing" not in {script.id for script in one} for one in sets)
    assert len({script.id for one in sets for script in one}) > 5 * (MAX_SET_SCRIPTS - 2)


def test_what_kills_most_comes_first_where_there_is_no_room_for_all():
    kills = {"one": frozenset({0}), "two": frozenset({1, 2}), "many": frozenset({3, 4, 5})}
    (first, *_) = covering_sets([script(name, MAX_SET_STEPS // 2) for name in kills], kills, {})
    assert [one.id for one in first] == ["many", "two"]


def test_slow_scripts_make_short_sets():
    kills = {f"t#{number}": frozenset({number}) for number in range(8)}
    for cpu_s, num_scripts in ((MAX_SET_CPU_S / 3, 3), (2 * MAX_SET_CPU_S, 1)):
        sets = covering_sets([script(name) for name in kills], kills, dict.fromkeys(kills, cpu_s))
        assert {len(one) for one in sets} == {num_scripts}
        assert len({script.id for one in sets for script in one}) == min(len(kills), num_scripts * NUM_SETS)


def test_few_scripts_make_few_sets():
    kills = {"a": frozenset({0}), "b": frozenset({0})}
    assert [[one.id for one in some] for some in covering_sets([script("a"), script("b")], kills, {})] == [["a", "b"]]
    assert covering_sets([script("a")], {"a": frozenset()}, {}) == []


def test_a_replay_kills_where_it_contradicts_gold_and_is_silent_where_it_did_not_get():
    def replay(*values):
        seen = tuple(Observation(0, "result", value, kind, False) for kind, value in values)
        return Replay({"t": seen}, {}, 0.1)

    steps = (Expected(0, "result", Value("plain", "1"), None, True),)
    replays = [replay(("plain", "1")), replay(("plain", "2")), replay(("error", "x")), replay()]
    assert killed("t", steps, replays) == {1, 2}
    assert killed("t", (steps[0]._replace(gold=ANY),), replays) == {2}
    assert killed("t", (steps[0]._replace(gold=Value("state", "1")),), replays) == frozenset()
    assert killed("t", (*steps, steps[0]._replace(step=1)), replays) == {0, 1, 2}
