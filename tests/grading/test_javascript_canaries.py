"""Canaries of JavaScript: copies of tests among the tests, of which an honest run passes none that is wrong."""

from __future__ import annotations

import pytest

from repairgym.grading.canaries import NO_CANARIES, make_canaries
from repairgym.grading.javascript_canaries import javascript_layout
from repairgym.records import Task, TestOutcome, TestRunner
from repairgym.tasks.javascript.syntax import parse, statements_of_tests, text_of
from repairgym.testing.scripted import scripted_task

PATH = "test/a.test.js"
TESTS = """'use strict';
const { test } = require('node:test');
const assert = require('node:assert');
const { add } = require('../index.js');

test('adds small numbers', () => {
    assert.strictEqual(add(1, 2), 3);
});

const LARGE = 1000;

test('adds large numbers', () => {
    assert.strictEqual(add(LARGE, 1), 1001);
    assert.strictEqual(add(LARGE, 2), 1002);
});

test('joins texts', () => {
    assert.strictEqual(add('a', 'b'), 'ab');
});

test('gives up on nothing', () => {
    assert.throws(() => add());
});
"""
NAMES = ("adds large numbers", "adds small numbers")


@pytest.fixture
def tested() -> Task:
    ids = tuple(f"{PATH}::{name}" for name in NAMES)
    return scripted_task(
        base_files={"index.js": ""}, gold_files={"index.js": "x"}, visible_tests=(), fail_to_pass=ids[:1],
        pass_to_pass=ids[1:], test_paths=(PATH,), runner=TestRunner(type="node_test"), location=None,
    )  # fmt: skip


def secret(number: int) -> bytes:
    return bytes([number]) * 32


def test_tests_of_the_task_stay_and_each_canary_is_a_test(tested: Task) -> None:
    seen = set()
    for number in range(20):
        canaries = make_canaries(tested, {PATH: TESTS}, secret(number), 3)
        assert (len(canaries.expected), canaries.num_decoys) == (6, 3)
        made, real = statements_of_tests(PATH, canaries.files[PATH]), statements_of_tests(PATH, TESTS)
        assert {name.partition("::")[2] for name in canaries.expected} <= made.keys()
        for name in NAMES:
            assert text_of(made[name]) == text_of(real[name])
        copies = {name.partition("::")[2] for name in canaries.originals}
        assert not copies & real.keys()
        assert {name.partition("::")[2] for name in canaries.replaced} <= real.keys() - {*NAMES}
        seen |= copies
    assert len(seen) > 30
    assert make_canaries(tested, {PATH: TESTS}, secret(1), 3) == make_canaries(tested, {PATH: TESTS}, secret(1), 3)


def test_a_copy_stands_behind_what_is_declared_before_its_test(tested: Task) -> None:
    for number in range(20):
        canaries = make_canaries(tested, {PATH: TESTS}, secret(number), 3)
        text = canaries.files[PATH]
        for name, original in canaries.originals.items():
            if original.endswith("adds large numbers"):
                assert text.index(name.partition("::")[2]) > text.index("const LARGE")


def test_wrong_ones_differ_in_one_answer_and_right_ones_in_none(tested: Task) -> None:
    for number in range(20):
        canaries = make_canaries(tested, {PATH: TESTS}, secret(number), 3)
        made, real = statements_of_tests(PATH, canaries.files[PATH]), statements_of_tests(PATH, TESTS)
        for name, kind in canaries.expected.items():
            original = canaries.originals.get(name, name).partition("::")[2]
            lines = [line for line in text_of(made[name.partition("::")[2]]).split("\n")[1:] if line.strip()]
            new = [line for line in lines if line not in text_of(real[original]).split("\n")]
            assert len(new) == (kind is not TestOutcome.PASSED), (new, kind)


@pytest.mark.parametrize(
    "test",
    [
        "test('x', () => { process.env.A = '1'; assert.equal(f(), 1); });",
        "test('x', () => { counter += 1; assert.equal(f(), 1); });",
        "test('x', () => { list.push(1); assert.equal(f(), 1); });",
        "test('x', () => { if (g) { return; } assert.equal(f(), 1); });",
        "test('x', { skip: true }, () => { assert.equal(f(), 1); });",
        "test('x', (t) => { t.skip(); assert.equal(f(), 1); });",
        "test('x', () => { server.listen(0); assert.equal(f(), 1); });",
        "test('x', function* () { assert.equal(f(), 1); });",
        "const made = test('x', () => { assert.equal(f(), 1); });",
        "test(`x${y}`, () => { assert.equal(f(), 1); });",
        "test('x', () => {",
    ],
)
def test_tests_that_a_copy_could_disturb_are_left_alone(test: str, tested: Task) -> None:
    text = f"const assert = require('assert');\n{test}\n"
    assert javascript_layout(PATH, text) is None
    task = tested.model_copy(update={"fail_to_pass": (f"{PATH}::x",)})
    assert make_canaries(task, {PATH: text}, secret(1), 3) == NO_CANARIES


@pytest.mark.parametrize(
    "test",
    [
        "test('x', () => { const list = []; list.push(1); assert.equal(f(list), 1); });",
        "test('x', () => { let count = 0; count += 1; assert.equal(f(count), 1); });",
        "test('x', () => { const o = { a: 1 }; lib.set(o, 'a', 2); assert.equal(o.a, 2); });",
        "test('x', function () { function A() { this.a = 1; } assert.equal(f(new A()), 1); });",
    ],
)
def test_changes_of_own_objects_are_no_hindrance(test: str) -> None:
    layout = javascript_layout(PATH, f"const assert = require('assert');\n{test}\n")
    assert layout is not None
    assert set(layout.plain) == {"x"}


def test_parts_of_a_test_that_decides_are_left_alone(tested: Task) -> None:
    inner = "    await t.test('inner', () => {\n        assert.equal(f(), 1);\n    });\n"
    text = f"const assert = require('assert');\ntest('outer', async (t) => {{\n{inner}}});\n"
    task = tested.model_copy(update={"fail_to_pass": (f"{PATH}::outer",), "pass_to_pass": ()})
    made = make_canaries(task, {PATH: text.replace("await ", "")}, secret(1), 3)
    assert made.expected == {}
    planned = text.replace("await ", "").replace("(t) => {", "(t) => {\n    t.plan(1);")
    assert javascript_layout(PATH, planned) is None


@pytest.mark.parametrize("suffix", ["ts", "tsx", "mjs"])
def test_other_languages_and_frameworks_have_them(tested: Task, suffix: str) -> None:
    path = f"test/a.test.{suffix}"
    text = "import { expect, it } from 'vitest';\n\nit('adds', () => {\n    expect(add(1, 2)).toBe(3);\n});\n"
    update = {"fail_to_pass": (f"{path}::adds",), "pass_to_pass": (), "runner": TestRunner(type="vitest")}
    canaries = make_canaries(tested.model_copy(update=update), {path: text}, secret(2), 3)
    assert canaries.num_decoys == 3
    parse(path, canaries.files[path])
