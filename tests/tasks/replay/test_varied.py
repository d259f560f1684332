"""Each varied script differs in one literal, each variant of gold in one operator; draws follow from their seed."""

import random

import pytest

from repairgym.tasks.replay.scripts import Script, lists, literals, with_literal
from repairgym.tasks.replay.varied import gold_variants, varied_scripts
from repairgym.testing.scripted import scripted_task


def call(*values):
    return {"op": "call", "args": [["g", "m", "f"], *(["l", value] for value in values)], "to": 0, "asserted": True}


SCRIPTS = [Script("t", (call(3, "abc"),)), Script("u", (call(True, None),))]


def values_of(script):
    return [value for _, value in literals(script)]


def test_one_literal_differs_and_mostly_keeps_its_type():
    varied = varied_scripts(SCRIPTS, 100, random.Random(0))
    assert len({one.id for one in varied}) == len(varied) > 10
    kinds = []
    for one in varied:
        origin = next(script for script in SCRIPTS if one.id.startswith(script.id + "#"))
        changed = [(old, new) for old, new in zip(values_of(origin), values_of(one), strict=True) if old != new]
        assert len(changed) == 1
        kinds += [type(old) is type(new) for old, new in changed]
        assert [step.get("is_varied") for step in one.steps] == [one.id]
    assert 0 < kinds.count(False) < kinds.count(True)
    assert all(kind is not bool(one.steps[0].get("is_unusual")) for kind, one in zip(kinds, varied, strict=True))


@pytest.mark.parametrize(("old", "new"), [(3, 4), (3, -3), ("abc", "ab"), ("abc", ""), (True, False)])
def test_neighbours_are_tried(old, new):
    varied = varied_scripts([Script("t", (call(old),))], 100, random.Random(0))
    assert [new] in map(values_of, varied)


def test_literals_of_other_scripts_are_tried():
    varied = varied_scripts([*SCRIPTS, Script("w", (call("zebra"),))], 100, random.Random(0))
    assert [3, "zebra"] in map(values_of, varied)


def test_a_draw_follows_from_its_seed_and_keeps_its_limit():
    draws = [[one.to_json() for one in varied_scripts(SCRIPTS, 5, random.Random(seed))] for seed in (1, 1, 2)]
    assert len(draws[0]) == 5
    assert draws[0] == draws[1] != draws[2]


def test_long_scripts_are_left_as_they_are():
    assert varied_scripts([Script("t", (call(1),) * 200)], 10, random.Random(0)) == []


def call_of(text):
    return text.split("\n")[1].split()[2]


def test_variants_differ_from_gold_or_the_broken_code_in_one_operator_of_the_repaired_function():
    gold = "def f(a, b):\n    return a <= b\n\n\ndef g(a, b):\n    return a == b\n"
    base = gold.replace("<=", "<")
    task = scripted_task(base_files={"m.py": base}, gold_files={"m.py": gold})
    texts = [files["m.py"] for files in gold_variants(task, 100, random.Random(0))]
    assert {call_of(text) for text in texts if text} == {"!=", "==", ">", ">="}
    assert all(text and text.endswith("a == b\n") for text in texts)
    assert len(gold_variants(task, 2, random.Random(0))) == 2


def test_variants_where_gold_differs_from_the_broken_code_come_first():
    rest = "".join(f"    if a < {number}:\n        return b\n" for number in range(20, 60))
    gold = f"def f(a, b):\n{rest}    return a <= b\n"
    task = scripted_task(base_files={"m.py": gold.replace("<=", "<")}, gold_files={"m.py": gold})
    for seed in range(5):
        texts = [files["m.py"] for files in gold_variants(task, 8, random.Random(seed))]
        assert {">", ">=", "==", "!="} == {text.split()[-2] for text in texts if text} - {"<=", "<"}


def test_files_that_no_operator_changes_have_no_variant():
    task = scripted_task(base_files={"a.cfg": "x", "m.py": "def f(:"}, gold_files={"a.cfg": "y", "m.py": "def f(:"})
    assert gold_variants(task, 10, random.Random(0)) == []


def test_other_variants_have_no_or_narrower_checks():
    check = "    if not a:\n        raise ValueError\n"
    gold = f"def f(self, a):\n{check}    return a\n\n\ndef g(a):\n{check}"
    task = scripted_task(base_files={"m.py": gold.replace("not a", "a", 1)}, gold_files={"m.py": gold})
    texts = [files["m.py"] or "" for files in gold_variants(task, 3, random.Random(0))]
    checks = [text.split("\n")[1].strip() for text in texts]
    assert checks == [
        "if not a and False:",
        "if not a and (not isinstance(a, (str, int, float, list, tuple, dict, bytes))):",
        "if not a and len(repr(a)) > 60:",
    ]
    assert all("if not a:" in text[text.index("def g") :] for text in texts)


def test_steps_that_have_no_part_in_the_other_literal_are_left_out():
    make = {"op": "call", "args": [["g", "m", "C"]], "to": 0}
    change = {"op": "method", "name": "add", "args": [["h", 0], ["l", 7]], "to": 1, "after": [0]}
    look = {"op": "method", "name": "total", "args": [["h", 0]], "to": 2}
    alone = {"op": "call", "args": [["g", "m", "f"], ["l", "x"]], "to": 3}
    file = {"op": "file", "args": [["l", "a.txt"], ["b", ""]]}
    script = Script("t", (file, make, alone, change, look, alone))
    (place,) = [place for place, value in literals(script) if value == 7]
    varied = with_literal(script, place, 8, "t#0")
    assert [step["op"] for step in varied.steps] == ["file", "call", "method", "method"]
    assert varied.steps[2] == {**change, "args": [["h", 0], ["l", 8]], "is_varied": "t#0"}


def test_lists_are_tried_with_other_elements():
    step = {"op": "value", "args": [["L", ["l", 1], ["L", ["l", 2]]]], "to": 0}
    script = Script("t", (step, {"op": "call", "args": [["g", "m", "f"], ["h", 0]], "to": 1}))
    assert [operand for _, operand in lists(script)] == [step["args"][0], ["L", ["l", 2]]]
    tried = [one.steps[0]["args"][0] for one in varied_scripts([script], 100, random.Random(0))]
    for other in (["L", ["l", 1]], ["L", ["L", ["l", 2]], ["l", 1]], ["L", ["l", 1], ["L"]]):
        assert other in tried


def test_digits_and_unusual_characters_are_tried():
    tried = [values_of(one) for one in varied_scripts([Script("t", (call("1.20"),))], 100, random.Random(0))]
    assert ["0.00"] in tried
    assert ["1. /\u00e920"] in tried
