"""Recording and replay, end to end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from repairgym.tasks.replay.joining import joined
from repairgym.tasks.replay.scripts import ANY_FUNCTION, Conditions, Script, literals, tainted_steps, with_literal
from repairgym.tasks.replay.sending import sendable

SHOP = """
import random

class Cart:
    def __init__(self, prices=()):
        self.prices = list(prices)
        self._cache = object()

    def add(self, price):
        if price < 0:
            raise ValueError(price)
        self.prices.append(price)
        return self

    def total(self):
        return sum(self.prices)

    def __len__(self):
        return len(self.prices)

    def each(self, function):
        return [function(price) for price in self.prices]

def lucky():
    return random.random()

def double(value):
    return value * 2
"""
TESTS = """
import pytest
from shop import Cart, double, lucky

FACTOR = 3

@pytest.fixture
def cart():
    return Cart([1, 2])

def test_total(cart):
    cart.add(4)
    assert cart.total() == 7
    assert len(cart) == 3

def test_negative(cart):
    with pytest.raises(ValueError):
        cart.add(-1)

@pytest.mark.parametrize("value", [1, 2])
def test_callback(cart, value):
    assert cart.each(lambda price: price * FACTOR + value) == [3 + value, 6 + value]

def test_lucky():
    assert double(lucky()) < 2

class Big(Cart):
    def total(self):
        return super().total() * 10

def test_subclass():
    assert Big([1]).add(1).total() == 20

def test_without_package():
    assert 1 + 1 == 2

def test_wrong(cart):
    assert cart.total() == 5
"""
NAME = "tests/test_shop.py::"

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_replay_tells_broken_code_from_the_repair(site, values):
    recording = await site.record(SHOP, TESTS)
    scripts = {script.id.removeprefix(NAME): script for script in recording.scripts}
    assert set(scripts) == {
        "test_total", "test_negative", "test_callback[1]", "test_callback[2]", "test_lucky", "test_subclass",
    }  # fmt: skip
    assert recording.failed[NAME + "test_without_package"] == "no step of the package"
    assert "failed when recorded" in recording.failed[NAME + "test_wrong"]
    assert all(script.num_lost_steps == 0 for script in recording.scripts)
    assert "shop:Cart" in scripts["test_total"].imports

    gold = await site.replay(SHOP, *recording.scripts)
    assert not gold.unfinished
    assert values(gold, NAME + "test_total") == ["7", "3"]
    assert values(gold, NAME + "test_callback[2]")[0] == '["l",[5,8]]'
    assert values(gold, NAME + "test_subclass")[-1] == "20"
    assert values(gold, NAME + "test_negative") == ['["raised","ValueError",["Exception","BaseException"]]']
    again = await site.replay(SHOP, *reversed(recording.scripts), conditions=Conditions(hash_seed=5))
    same = {name: gold.observations[name] == again.observations[name] for name in gold.observations}
    assert same == {name: not name.endswith("lucky") for name in gold.observations}

    broken = await site.replay(SHOP.replace("< 0", "> 0"), *recording.scripts)
    assert values(broken, NAME + "test_negative") != values(gold, NAME + "test_negative")
    assert values(broken, NAME + "test_total") != ["7", "3"]


async def test_results_are_in_no_script_and_random_steps_taint(site):
    package = SHOP.replace("return sum(self.prices)", "return 'the secret answer'")
    tests = "from shop import Cart, double, lucky\n\ndef test_total():\n    text = Cart().total()\n"
    tests += "    assert double(text) == text + text\n    assert double(lucky()) < 2\n"
    recording = await site.record(package, tests)
    (script,) = recording.scripts
    assert "secret" not in str([sendable(step) for step in script.steps])
    assert Script.from_json(script.to_json()) == script
    (lucky,) = [index for index, step in enumerate(script.steps) if step["args"] == [["g", "shop", "lucky"]]]
    assert tainted_steps(script.steps, {lucky}) == {lucky, lucky + 1}


async def test_tests_with_a_plugin_that_recordings_leave_out_are_recorded(site):
    tests = "from shop import double\n\ndef test_double():\n    assert double(21) == 42\n"
    assert len((await site.record(SHOP, tests, plugins=("doctest",))).scripts) == 1


async def test_a_literal_can_be_replaced(site, values):
    (script,) = (
        await site.record(SHOP, "from shop import double\n\ndef test_double():\n    assert double(21) == 42\n")
    ).scripts
    ((place, value),) = literals(script)
    assert value == 21
    varied = with_literal(script, place, "ab", script.id + "#1")
    seen = await site.replay(SHOP, script, varied)
    assert [seen.observations[name][0].value for name in (script.id, varied.id)] == ["42", '"abab"']
    assert values(seen, varied.id) == []


async def test_a_script_finds_no_file_folder_or_variable_that_another_left(site):
    package = """import os

def leave(name):
    for folder in ("/tmp", "/dev/shm", "/tmp/in_" + name):
        os.makedirs(folder, exist_ok=True)
        open(folder + "/" + name, "w").close()
    os.chdir("/tmp/in_" + name)
    os.environ[name] = "1"

def find(name):
    paths = [folder + "/" + name for folder in ("/tmp", "/dev/shm", os.getcwd())]
    return [*map(os.path.exists, paths), name in os.environ]
"""
    tests = """from shop import find, leave

def test_one():
    leave("left")
    assert find("left") == [True] * 4

def test_two():
    find("left")
"""
    scripts = (await site.record(package, tests)).scripts
    for replayed in (scripts, joined(scripts, "both")):
        seen = await site.replay(package, *replayed)
        values = [one.value for script in replayed for one in seen.observations[script.id] if one.value[:2] == '["']
        assert list(dict.fromkeys(values)) == ['["l",[true,true,true,true]]', '["l",[false,false,false,false]]']


async def test_unittest_runner(site, values):
    tests = (
        "import unittest\nfrom shop import Cart\n\nclass TestCart(unittest.TestCase):\n"
        "    def setUp(self):\n        self.cart = Cart([1])\n\n"
        "    def test_total(self):\n        self.assertEqual(self.cart.total(), 1)\n"
        "        self.assertRaises(ValueError, self.cart.add, -1)\n"
    )
    (script,) = (await site.record(SHOP, tests, runner={"type": "unittest"})).scripts
    seen = await site.replay(SHOP, script)
    assert values(seen, "tests/test_shop.py::TestCart::test_total")[0] == "1"
    assert seen.observations[script.id][-1].kind == "error"


async def test_scripts_that_run_apart_name_the_functions_that_ran(site):
    package = (
        "import os\ndef at_import():\n    return 1\nONE = at_import()\ndef inner():\n    return ONE\n"
        "def outer():\n    return inner()\ndef forks():\n    return os.system('true')\n"
    )
    tests = "import shop\n" + "".join(
        f"def test_{name}():\n    assert shop.{name}() in (0, 1)\n" for name in ("inner", "outer", "forks")
    )
    scripts = (await site.record(package, tests)).scripts
    traced = Conditions(is_apart=True, traced=frozenset(script.id for script in scripts))
    seen = await site.replay(package, *scripts, conditions=traced)
    lines = {
        name.rpartition("_")[2]: {function.partition("::")[2] for function in functions}
        for name, functions in seen.executed.items()
    }
    assert lines["inner"] >= {"2", "5"}
    assert lines["inner"].isdisjoint({"7", "9"})
    assert lines["outer"] >= {"2", "5", "7"}
    assert [ANY_FUNCTION in functions for functions in seen.executed.values()] == [False, False, True]
    assert not (await site.replay(package, *scripts)).executed
    first = scripts[0]
    mixed = await site.replay(package, *scripts, conditions=replace(traced, traced=frozenset({first.id})))
    assert dict(mixed.executed) == {first.id: seen.executed[first.id]}
    assert {**mixed.observations} == {**seen.observations}


async def test_scripts_share_a_process_unless_they_run_apart_or_one_ends_it(site):
    package = "import os\nCALLS = []\ndef count(word):\n    CALLS.append(word)\n    return len(CALLS)\n"
    tests = "".join(f"def test_{name}():\n    assert count('{name}')\n" for name in "abc")
    scripts = (await site.record(package, f"from shop import count\n{tests}")).scripts

    async def counts(text: str, conditions: Conditions) -> list[str]:
        seen = await site.replay(text, *scripts, conditions=conditions)
        return [item.value for script in scripts for item in seen.observations[script.id] if item.part == "result"]

    assert await counts(package, Conditions()) == ["1", "2", "3"]
    assert await counts(package, Conditions(is_apart=True)) == ["1", "1", "1"]
    dying = package.replace("    return", "    if word == 'b': os._exit(0)\n    return")
    assert await counts(dying, Conditions()) == ["1", "1"]


async def test_code_that_uses_too_much_processor_time_is_late(site):
    package = "def count(word):\n    return len(word)\n"
    tests = "".join(f"def test_{name}():\n    assert count('{name}') == 1\n" for name in "abc")
    scripts = (await site.record(package, f"from shop import count\n{tests}")).scripts
    gold = await site.replay(package, *scripts)
    gold_s, names = sum(gold.cpu_s.values()), [script.id for script in scripts]
    assert list(gold.cpu_s) == names
    assert 0 < gold_s < 5
    endless = package.replace("    return", "    while word == 'a': pass\n    return")
    bounded = Conditions(cpu_s=0.3 + 3 * gold_s)
    seen = await site.replay(endless, *scripts, conditions=bounded)
    assert list(seen.unfinished.values()) == ["timed out"]
    assert gold.cpu_s[names[0]] < bounded.cpu_s < seen.cpu_s[names[0]] < 20 + bounded.cpu_s
    last = [seen.observations[script.id] for script in scripts[1:]]
    assert last == [gold.observations[script.id] for script in scripts[1:]]
    once = await site.replay(endless, *scripts, conditions=Conditions(cpu_s=bounded.cpu_s, max_late=1))
    assert list(once.unfinished.values()) == ["timed out"] * 3
