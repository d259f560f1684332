"""Forms of tests that scripts must carry: each is recorded whole, and its replay gives the values that it asserts."""

from __future__ import annotations

import pytest

from repairgym.tasks.replay.sending import sendable

pytestmark = pytest.mark.asyncio(loop_scope="module")

PACKAGE = """
import contextlib, functools, os

class Meta(type):
    def __new__(cls, name, bases, body, **keywords):
        made = super().__new__(cls, name, bases, body)
        made.fields = sorted(key for key, value in body.items() if isinstance(value, Field))
        return made

class Field:
    def __init__(self, size=1):
        self.size = size

class Model(metaclass=Meta):
    def describe(self):
        return [self.prefix + name for name in self.fields]

def traced(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        print("call", *args)
        return function(*args, **kwargs) + 1
    return wrapper

def read(path):
    with open(path) as file:
        return file.read().upper()

def write(path, text):
    with open(path, "w") as file:
        file.write(text + "!")

def setting():
    return os.environ.get("SHOP", "none")

def change(values):
    values.append(len(values))

def consume(values):
    return [value + 1 for value in values]

def pair():
    return 1, [2, 3]

class Box:
    def __init__(self):
        self.items = [Item(1), Item(2)]

    def __eq__(self, other):
        return isinstance(other, Box) and [i.n for i in self.items] == [i.n for i in other.items]

    @contextlib.contextmanager
    def opened(self):
        yield self.items[0]
        self.items.pop()

class Item:
    def __init__(self, n):
        self.n = n

def size_of(item):
    return item.n

def first_line(stream):
    return stream.readline()

class Upper:
    def __call__(self, text):
        return text.upper()

async def later(value):
    return value * 2
"""
TESTS = """
import asyncio, dataclasses, enum, sys, unittest
import pytest
import shop
from shop import Box, Field, Item, Model, Upper, change, consume, first_line, later
from shop import pair, read, setting, size_of, traced, write

def test_metaclass():
    class Product(Model):
        name = Field()
        price = Field(2)
        prefix = "p_"
    assert Product.fields == ["name", "price"]
    assert Product().describe() == ["p_name", "p_price"]

def test_decorated(capsys):
    @traced
    def add(left, right=2):
        return left + right
    assert add(1) == 4
    assert capsys.readouterr().out == "call 1\\n"

def test_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("words")
    assert read(str(path)) == "WORDS"

def test_written_file(tmp_path):
    path = tmp_path / "b.txt"
    write(path, "out")
    assert path.read_text() == "out!"
    with open(path) as file:
        assert file.read() == "out!"

def test_environment(monkeypatch):
    monkeypatch.setenv("SHOP", "open")
    assert setting() == "open"

def test_patched(monkeypatch):
    monkeypatch.setattr(shop, "setting", lambda: "patched")
    assert shop.setting() == "patched"

def test_changed_argument():
    values = [5]
    change(values)
    assert values == [5, 1]

def test_generator():
    def numbers():
        yield 1
        yield 2
    assert consume(numbers()) == [2, 3]

def test_unpacked():
    first, (second, third) = pair()
    assert [first, second, third] == [1, 2, 3]

def test_part_of_a_result():
    box = Box()
    assert max(size_of(item) for item in box.items) == 2
    assert box == Box()
    assert box is not Box()

def test_block():
    box = Box()
    with box.opened() as item:
        assert item.n == 1
    assert len(box.items) == 1

def test_loop_and_conditions():
    total = 0
    for item in Box().items:
        if item.n > 1 and not item.n == 3:
            total += item.n
    assert 1 < total < 3

class Color(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Point:
    x: int = 0

def test_objects_of_the_test():
    assert consume([Number(1)]) == [2]
    assert traced(lambda value: value.value)(Color.RED) == 2
    assert traced(lambda value: value.x)(Point(4)) == 5

class Number:
    def __init__(self, value):
        self.value = value
    def __add__(self, other):
        return self.value + other

def test_awaited():
    async def main():
        return await later(4)
    assert asyncio.run(main()) == 8

def test_error_is_read():
    with pytest.raises(TypeError) as info:
        consume(3)
    assert "iterable" in str(info.value)

class Shelf:
    def __init__(self, start):
        self.start = start
    @traced
    def get(self, value):
        return self.start + value

def test_method_made_by_the_package():
    assert Shelf(10).get(5) == 16

def test_open_file():
    stream = open(__file__.replace("test_shop.py", "data.txt"))
    assert consume([int(line) for line in stream]) == [4, 5]
    with open(__file__.replace("test_shop.py", "data.txt")) as stream:
        assert first_line(stream) == "3\\n"

def test_open_file_again():
    with open(__file__.replace("test_shop.py", "data.txt")) as stream:
        assert first_line(stream) == "3\\n"

class TestBound(unittest.TestCase):
    render = Upper()

    def test_attribute_of_the_test(self):
        self.assertEqual(self.render("a"), "A")

    def double(self, value):
        return value * 2

    def test_method_of_the_test(self):
        self.assertEqual(traced(self.double)(2), 5)
"""
NOT_ASSERTED = {"test_patched"}
"""Calls of what a test itself put in place."""


async def test_every_form_is_replayed(site):
    recording = await site.record(PACKAGE, TESTS)
    assert not recording.failed
    scripts = {script.id.partition("::")[2]: script for script in recording.scripts}
    assert len(scripts) == TESTS.count("def test_")
    assert {name: dict(script.lost) for name, script in scripts.items() if script.lost} == {}
    seen = await site.replay(PACKAGE, *recording.scripts)
    assert not seen.unfinished
    for name, script in scripts.items():
        asserted = [item for item in seen.observations[script.id] if item.is_asserted]
        errors = [item.value for item in asserted if item.kind == "error" and "StopIteration" not in item.value]
        assert len(errors) == (name == "test_error_is_read"), (name, errors)
        assert asserted or name in NOT_ASSERTED, name
    plain = {name: [item.value for item in seen.observations[script.id] if item.is_asserted and item.kind == "plain"]
             for name, script in scripts.items()}  # fmt: skip
    assert plain["test_metaclass"] == ['["l",["name","price"]]'] * 2 + ['["l",["p_name","p_price"]]'] * 2
    assert plain["test_decorated"][:1] == ["4"]
    assert '"call 1\\n"' in plain["test_decorated"]
    assert plain["test_file"] == ['"WORDS"']
    assert plain["test_written_file"].count('"out!"') == 2
    assert plain["test_environment"] == ['"open"']
    assert '["l",[5,1]]' in plain["test_changed_argument"]
    assert '["l",[2,3]]' in plain["test_generator"]
    assert plain["TestBound::test_method_of_the_test"] == ["5"]
    assert "8" in plain["test_awaited"]
    assert plain["test_method_made_by_the_package"] == ["16"]
    assert plain["TestBound::test_attribute_of_the_test"][0] == '"A"'
    assert plain["test_open_file"][-1] == '"3\\n"'


async def test_a_script_brings_its_files_itself(site):
    recording = await site.record(PACKAGE, TESTS)
    (script,) = [script for script in recording.scripts if script.id.endswith("::test_open_file_again")]
    seen = await site.replay(PACKAGE, script)
    assert [item.value for item in seen.observations[script.id] if item.is_asserted][-1] == '"3\\n"'


ASKING = """
import unittest
import pytest
from shop import number

def test_asked():
    assert number(1.5) in (1.5, 2.5)
    value = number(7.25)
    assert value
    assert value > 3
    assert value == pytest.approx(7.25)
    assert not number("")

def test_handed_on():
    assert number(number(1000.5)) == 1000.5

def test_seen():
    with pytest.raises(TypeError):
        number()

class TestAsked(unittest.TestCase):
    def test_methods(self):
        self.assertAlmostEqual(number(2.25), 2.25, places=3)
        self.assertIsNone(number(None))
        self.assertIn("bc", number("abcd"))
"""


async def test_what_a_test_asks_is_recorded_and_never_sent(site):
    recording = await site.record("def number(value):\n    return value\n", ASKING)
    assert not recording.failed
    steps = {script.id.rpartition("::")[2]: script.steps for script in recording.scripts}
    asked = [[question[0] for question in step.get("questions", ())] for step in steps["test_asked"]]
    assert asked == [["in"], ["truth", "gt", "near"], ["truth"]]
    assert [bool(step.get("seen")) for step in steps["test_handed_on"]] == [False, False]
    assert [bool(step.get("questions")) for step in steps["test_handed_on"]] == [False, True]
    assert steps["test_seen"][-1]["seen"]
    assert [step["questions"][0][0] for step in steps["test_methods"]] == ["near", "is_", "in"]
    assert all(set(sendable(step)).isdisjoint({"asserted", "questions", "seen"}) for step in steps["test_asked"])
