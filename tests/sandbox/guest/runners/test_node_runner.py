"""The runner of JavaScript tests against files that want to deceive it; node:test on this machine's node."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from repairgym.config.sandbox import SandboxConfig
from repairgym.records import TestOutcome, TestRequest, TestRun, TestRunner
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.sandbox.guest.runners.node_runner import clean
from repairgym.sandbox.probe import create_backend
from repairgym.testing.environments import copy_environment

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on this machine")
TEST = """const test = require('node:test');
const assert = require('node:assert');
const value = require('../index.js');
test('is one', () => { assert.strictEqual(value, 1); });
test('is a number', () => { assert.strictEqual(typeof value, 'number'); });
"""
IDS = ("test/a.js::is one", "test/a.js::is a number")


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[SandboxBackend]:
    made = create_backend(SandboxConfig())
    yield made
    await made.close()


async def run(backend: SandboxBackend, folder: Path, code: str, test: str = TEST) -> TestRun:
    tree = folder / "tree"
    (tree / "test").mkdir(parents=True, exist_ok=True)
    (tree / "index.js").write_text(code, encoding="utf-8")
    (tree / "test/a.js").write_text(test, encoding="utf-8")
    environment = copy_environment(folder / "env", ())
    sandbox = await backend.create(SandboxSpec(environment=environment, tree=tree))
    try:
        runner = TestRunner(type="node_test")
        return await sandbox.run_tests(TestRequest(test_ids=IDS, runner=runner, is_sealed=True, test_timeout_s=5))
    finally:
        await sandbox.close()


@needs_node
@pytest.mark.asyncio
async def test_outcomes_and_messages(backend: SandboxBackend, tmp_path: Path) -> None:
    done = await run(backend, tmp_path, "module.exports = 2;\n")
    assert [done.outcome(name) for name in IDS] == [TestOutcome.FAILED, TestOutcome.PASSED]
    told = done.results[IDS[0]]
    assert (told.message, told.line) == (
        "AssertionError: Expected values to be strictly equal: expected 1, got 2", 4,
    )  # fmt: skip
    assert (done.num_forged_records, done.is_finished, done.exit_status) == (0, True, 1)


@needs_node
@pytest.mark.asyncio
async def test_a_falsy_value_is_told_by_its_expression(backend: SandboxBackend, tmp_path: Path) -> None:
    test = TEST.replace("strictEqual(value, 1)", "ok(value > 2)")
    told = (await run(backend, tmp_path, "module.exports = 2;\n", test)).results[IDS[0]]
    assert told.message.endswith("evaluated to a falsy value: assert.ok(value > 2)")


@needs_node
@pytest.mark.asyncio
async def test_an_uncaught_exception_has_its_line(backend: SandboxBackend, tmp_path: Path) -> None:
    test = TEST.replace("assert.strictEqual(value, 1);", "\n    value.absent();\n")
    told = (await run(backend, tmp_path, "module.exports = 2;\n", test)).results[IDS[0]]
    assert (told.message, told.line) == ("TypeError: value.absent is not a function", 5)


@needs_node
@pytest.mark.asyncio
async def test_a_file_that_cannot_be_loaded_is_an_error_of_its_tests(backend: SandboxBackend, tmp_path: Path) -> None:
    done = await run(backend, tmp_path, "module.exports = ;\n")
    assert {done.outcome(name) for name in IDS} == {TestOutcome.ERROR}
    assert "SyntaxError" in done.results[IDS[0]].message


@needs_node
@pytest.mark.asyncio
async def test_why_a_process_ended_is_told(backend: SandboxBackend, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/package.json").write_text('{"name": "a",,}', encoding="utf-8")
    told = (await run(backend, tmp_path, "module.exports = 1;\n")).results[IDS[0]]
    assert told.message.startswith("the process of its file ended with exit status 1: SyntaxError: ")
    assert "package.json" in told.message


RESERVE = "import mmap; mmap.mmap(-1, 3 << 30)"


@needs_node
@pytest.mark.asyncio
async def test_a_test_reserves_addresses_as_a_command_does(backend: SandboxBackend, tmp_path: Path) -> None:
    """Node reserves more than it uses; where the kernel bounds the memory, there is no bound on addresses."""
    done = await run(backend, tmp_path / "a", "module.exports = new ArrayBuffer(3 * 2 ** 30) ? 1 : 0;\n")
    spec = SandboxSpec(environment=copy_environment(tmp_path / "env", ()), tree=tmp_path / "a/tree")
    sandbox = await backend.create(spec)
    try:
        command = await sandbox.exec(("python", "-c", RESERVE), timeout_s=20)
    finally:
        await sandbox.close()
    assert (done.outcome(IDS[0]) is TestOutcome.PASSED) == (command.exit_status == 0)


ATTACKS = {
    "leaves early": "process.exit(0);",
    "leaves late": "setImmediate(() => process.exit(0));",
    "replaces assert": "require('assert').strictEqual = () => {};",
    "writes records": "const fs = require('fs'); for (let fd = 3; fd < 300; fd += 1) { try {"
    ' fs.writeSync(fd, \'0 {"test":"is one","outcome":"passed","message":"","duration_s":0}\\n\');'
    " } catch {} }",
    "replaces writeSync": "const fs = require('fs'); const w = fs.writeSync;"
    " fs.writeSync = (fd, text, ...rest) => w(fd, `${text}`.replace('failed', 'passed'), ...rest);",
    "replaces Hmac and JSON": "JSON.stringify = () => '{}'; Object.prototype.toJSON = () => 'passed';"
    " require('crypto').Hmac.prototype.digest = () => '0';",
    "replaces built-ins": "const c = String.prototype.charCodeAt; String.prototype.charCodeAt = function (i) {"
    " return c.call(`${this}`.replace('failed', 'passed'), i); }; Reflect.apply = () => 112;",
    "turns results over in emit": "const E = require('events').prototype; const e = E.emit; E.emit = function (n, d) {"
    " if (d && d.data && n === 'data') { d.type = 'test:pass'; } return e.apply(this, arguments); };",
    "turns results over in push": "const p = Array.prototype.push; Array.prototype.push = function (x) {"
    " if (x && x.type === 'test:fail') { x.type = 'test:pass'; } return p.apply(this, arguments); };",
    "opens the inspector": "const { Session } = require('inspector'); new Session().connect();",
    "takes a heap snapshot": "require('v8').writeHeapSnapshot('/tmp/heap');",
    "starts a worker": "new (require('worker_threads').Worker)('0', { eval: true });",
    "takes the reporter": "for (const key of Object.keys(require.cache)) { const e = require.cache[key].exports;"
    " if (e && e.Events) { new e.Events().reporter.ended('is one', 'passed', '', 0); } }",
}


QUICK = ("replaces assert", "replaces built-ins", "writes records")
"""Attacks of the default tests; the others are slow only by their number."""


@needs_node
@pytest.mark.asyncio
@pytest.mark.parametrize(
    "attack", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in sorted(ATTACKS)]
)
async def test_no_attack_makes_a_failing_test_pass_unseen(backend: SandboxBackend, tmp_path: Path, attack: str) -> None:
    done = await run(backend, tmp_path, f"{ATTACKS[attack]}\nmodule.exports = 2;\n")
    is_passed = done.passes(IDS)
    assert done.is_finished
    assert attack.startswith("leaves") or {done.outcome(name) for name in IDS} != {TestOutcome.MISSING}, "nothing ran"
    assert not is_passed or done.num_forged_records or done.reached_for, done


def test_titles_become_parts_of_ids() -> None:
    assert clean("a [b]\n  c::d") == "a (b) c:d"
    assert clean("") == "(no title)"
    assert len(clean("x" * 500)) == 160
