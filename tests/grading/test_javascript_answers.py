"""Wrong answers of tests of JavaScript: those of which a passing run is sure to fail, and no others."""

from __future__ import annotations

import random

import pytest

from repairgym.grading.javascript_answers import wrong_edits
from repairgym.grading.wrong_answers import edited_lines
from repairgym.tasks.javascript.syntax import FUNCTIONS, parse, walk


def variants(body: str, framework: str = "node_test", head: str = "import assert from 'node:assert';") -> set[str]:
    """Return the bodies that differ from ``body`` by one edit."""
    text = f"{head}\ntest('a', async (t) => {{\n{body}\n}});\n"
    function = next(node for node in walk(parse("a.ts", text)) if node.type in FUNCTIONS)
    lines = [line.encode() + b"\n" for line in text.split("\n")]
    found = set()
    for seed in range(40):
        for edit in wrong_edits(function, text, framework, ("other",), random.Random(seed)):
            changed = b"".join(edited_lines(lines, [edit])).decode()
            parse("a.ts", changed)
            assert edit.text
            found.add(changed.partition("{\n")[2].rpartition("\n}")[0])
    return found - {body}


@pytest.mark.parametrize(
    ("framework", "body", "wrong"),
    [
        ("node_test", "assert.strictEqual(f(1), true);", "assert.strictEqual(f(1), false);"),
        ("node_test", "assert.equal(10, f(1));", "assert.equal(11, f(1));"),
        ("node_test", "t.assert.equal(f(1), -3);", "t.assert.equal(f(1), -4);"),
        ("node_test", "assert.deepEqual(f(1), { a: [1, 'b'], c });", "assert.deepEqual(f(1), { a: [2, 'b'], c });"),
        ("node_test", "assert.deepEqual(f(), []);", "assert.deepEqual(f(), [1]);"),
        ("node_test", "assert.strictEqual(f(), null);", "assert.strictEqual(f(), false);"),
        ("node_test", 'assert.strictEqual(f(), "ab");', 'assert.strictEqual(f(), "other");'),
        ("node_test", "assert.throws(() => f(1), /x/);", "assert.doesNotThrow(() => f(1), /x/);"),
        ("node_test", "await assert.rejects(f(1));", "await assert.doesNotReject(f(1));"),
        ("node_test", "assert(f(1));", "assert(!f(1));"),
        ("node_test", "assert.ok(!f(1));", "assert.ok(f(1));"),
        ("node_test", "assert(f(1) === 5);", "assert(f(1) === 6);"),
        ("node_test", "assert.notEqual(f(1), g);", "assert.equal(f(1), g);"),
        ("node_test", "try { f(); assert.fail('no'); } catch (e) { assert.equal(e.a, 1); }",
         "try { f(); assert.fail('no'); } catch (e) { assert.equal(e.a, 2); }"),
        ("tape", "t.same(f(1), 'a');", "t.same(f(1), 'e');"),
        ("tape", "t.ok(f(1));", "t.notOk(f(1));"),
        ("tape", "t['throws'](f);", "t['doesNotThrow'](f);"),
        ("mocha", "expect(f(1)).to.equal(5);", "expect(f(1)).to.equal(6);"),
        ("mocha", "expect(f(1)).to.be.true;", "expect(f(1)).to.be.false;"),
        ("mocha", "expect(f).to.have.deep.property('a.b', 5);", "expect(f).to.have.deep.property('a.b', 6);"),
        ("mocha", "f(1).should.equal(5);", "f(1).should.equal(6);"),
        ("vitest", "expect(f(1)).toBe(5);", "expect(f(1)).toBe(6);"),
        ("jest", "await expect(f(1)).resolves.toEqual(5);", "await expect(f(1)).resolves.toEqual(6);"),
        ("vitest", "expect(f).toThrow();", "expect(f).not.toThrow();"),
    ],
)  # fmt: skip
def test_an_answer_becomes_a_near_one(framework: str, body: str, wrong: str) -> None:
    head = "const { expect } = require('chai');" if framework == "mocha" else "import assert from 'node:assert';"
    assert wrong in variants(body, framework, head)


@pytest.mark.parametrize(
    ("framework", "body"),
    [
        ("node_test", "later(() => { assert.equal(f(), 1); });"),  # which may never run
        ("node_test", "if (f()) { assert.equal(f(), 1); }"),
        ("node_test", "try { assert.equal(f(), 1); } catch {}"),  # which swallows the failure
        ("node_test", "try { f(); } catch (e) { assert.equal(e.a, 1); }"),
        ("node_test", "expect(f(1)).toBe(5);"),  # of something unknown
        ("tape", "assert.equal(f(), 1);"),  # which would end the process
        ("tape", "u.equal(f(), 1);"),
        ("mocha", "expect(f(1)).to.not.equal(5);"),
        ("mocha", "expect(f(1)).not.equal(5);"),
        ("jest", "expect(f(1)).resolves.toEqual(5);"),  # nobody waits for it
        ("vitest", "expect(f(1)).not.toBe(5);"),
    ],
)
def test_what_is_not_sure_stays(framework: str, body: str) -> None:
    assert not variants(body, framework)


@pytest.mark.parametrize(
    "value",
    ["{ ...g, a: 1 }", "{ a: 1, a: 2 }", "{ [k]: 1 }", "{ __proto__: 1 }", "new Set([1])", "0x10", "`a${b}`", "-0"],
)
def test_values_that_another_part_decides_stay(value: str) -> None:
    assert variants(f"assert.deepEqual(f(), {value});") == {f"assert.notDeepEqual(f(), {value});"}
