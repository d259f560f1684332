"""Frameworks of npm under the signed runner, as projects use them: vitest, jest, mocha and tape, and TypeScript."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from repairgym.config.sandbox import SandboxConfig
from repairgym.records import TestOutcome, TestRequest, TestRun, TestRunner
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.layers.environments import build_environment
from repairgym.tasks.layers.npm_locks import resolve_npm_lock
from repairgym.tasks.layers.store import LayerStore

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm on this machine"),
]
PACKAGES = {
    "vitest": "2.1.9", "jest": "29.7.0", "mocha": "10.8.2", "tape": "5.9.0", "chai": "4.5.0", "tsx": "4.19.2",
    "ts-jest": "29.2.5", "typescript": "5.6.3",
}  # fmt: skip
NEWER = {"jest": "30.1.3", "ts-jest": "29.4.1", "typescript": "5.9.2"}
"""A framework that is used in two versions; projects of it have the name ``jest 30``."""
TYPED = """export interface Bounds {
    low: number;
    high: number;
}

export function clamp(value: number, bounds: Bounds): number {
    return value < bounds.low ? bounds.low : value;
}

export class Sum {
    total = 0;

    add(value: number): this {
        this.total += value;
        return this;
    }
}
"""
EXPECT = """
const BOUNDS = { low: 1, high: 5 };
describe('clamp', () => {
    it('keeps', () => { expect(clamp(3, BOUNDS)).toBe(3); });
    it('upper', () => { expect(clamp(7, BOUNDS)).toBe(5); });
    it.skip('later', () => {});
    describe('broken hook', () => {
        beforeAll(() => { throw new Error('hook'); });
        it('below', () => {});
    });
});
test.each([1, 2])('sum %d', (value) => { expect(new Sum().add(value).total).toBe(value); });
"""
NODE = """import { describe, it } from 'node:test';
import assert from 'node:assert';
import { clamp } from '../src/index';
describe('clamp', () => {
    it('keeps', () => { assert.strictEqual(clamp(3, { low: 1, high: 5 }), 3); });
    it('upper', () => { assert.strictEqual(clamp(7, { low: 1, high: 5 }), 5); });
});
"""
MOCHA = """const { expect } = require('chai');
const { clamp } = require('../src/index');
describe('clamp', () => {
    it('keeps', () => { expect(clamp(3, { low: 1, high: 5 })).to.equal(3); });
    it('upper', async () => { expect(clamp(7, { low: 1, high: 5 })).to.equal(5); });
});
"""
TAPE = """const test = require('tape');
const { clamp } = require('../src/index');
test('clamp', (t) => {
    t.test('keeps', (s) => { s.equal(clamp(3, { low: 1, high: 5 }), 3); s.end(); });
    t.test('upper', (s) => { s.equal(clamp(7, { low: 1, high: 5 }), 5); s.end(); });
    t.end();
});
"""
PLAIN = "exports.clamp = (value, bounds) => (value < bounds.low ? bounds.low : value);\n"
PROJECTS: dict[str, tuple[str, dict[str, str]]] = {
    "vitest": ("a.test.ts", {
        "package.json": '{"name": "a", "type": "module"}', "src/index.ts": TYPED,
        "test/a.test.ts": f"import {{ beforeAll, describe, expect, it, test }} from 'vitest';\n"
        f"import {{ clamp, Sum }} from '../src/index';\n{EXPECT}",
    }),
    "jest": ("a.test.ts", {
        "package.json": '{"name": "a", "jest": {"preset": "ts-jest"}}', "src/index.ts": TYPED,
        "tsconfig.json": '{"compilerOptions": {"target": "es2020", "module": "commonjs", "isolatedModules": true}}',
        "test/a.test.ts": f"import {{ clamp, Sum }} from '../src/index';\n{EXPECT}",
    }),
    "node_test": ("a.test.ts", {
        "package.json": '{"name": "a", "type": "module"}', "src/index.ts": TYPED, "test/a.test.ts": NODE,
    }),
    "mocha": ("a.js", {"package.json": '{"name": "a"}', "src/index.js": PLAIN, "test/a.js": MOCHA}),
    "tape": ("a.js", {"package.json": '{"name": "a"}', "src/index.js": PLAIN, "test/a.js": TAPE}),
}  # fmt: skip
PROJECTS["jest 30"] = PROJECTS["jest"]
ATTACKS = {
    "asks for every success": "globalThis.expect && globalThis.expect.extend({ toBe: () => ({ pass: true,"
    " message: () => '' }) });",
    "tests of its own": "globalThis.describe && globalThis.describe('clamp', () => { globalThis.it('upper', ()"
    " => {}); });",
    "empty tests": "globalThis.it = Object.assign(() => {}, globalThis.it);",
    "leaves": "setTimeout(() => process.exit(0), 0);",
    "empties the assertions of chai": "try { const c = require('chai'); c.Assertion.prototype.assert = () =>"
    " {}; } catch {}",
    "empties the tests of tape": "try { const T = require('tape/lib/test'); T.prototype._assert = () => {}; } catch {}",
    "the state of jest": "for (const s of Object.getOwnPropertySymbols(globalThis)) { const v = globalThis[s];"
    " if (v && v.rootDescribeBlock) { setTimeout(() => { for (const b of v.rootDescribeBlock.children) {"
    " for (const t of b.children || []) { t.fn = () => {}; } } }, 0); } }",
    "a hook that empties the test": "globalThis.beforeEach && globalThis.beforeEach(function () {"
    " if (this && this.currentTest) { this.currentTest.fn = () => {}; } });",
    "a hook that expects the failure": "globalThis.beforeEach && globalThis.beforeEach(async (...given) => {"
    " if (given[0] && given[0].task) { given[0].task.fails = true; } });",
}  # fmt: skip


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Word after the name of a framework -> environment."""
    store = LayerStore(tmp_path_factory.mktemp("layers"))
    made = {"": PACKAGES, "30": {**PACKAGES, **NEWER}}
    return {word: build_environment(store, resolve_npm_lock(packages))[1] for word, packages in made.items()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[SandboxBackend]:
    made = create_backend(SandboxConfig())
    yield made
    await made.close()


async def run(
    backend: SandboxBackend,
    environments: dict[str, Path],
    folder: Path,
    framework: str,
    ids: tuple[str, ...],
    code: str = "",
) -> TestRun:
    for path, text in PROJECTS[framework][1].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if code and path.startswith("src/"):
            text = f"{code}\n{text}" if path.endswith(".js") else f"// @ts-nocheck\n{text}\n{code}\n"
        (folder / path).write_text(text, encoding="utf-8")
    name, _, word = framework.partition(" ")
    sandbox = await backend.create(SandboxSpec(environment=environments[word], tree=folder))
    traced = () if ids else tuple(path for path in PROJECTS[framework][1] if path.startswith("src/"))
    request = TestRequest(
        test_ids=ids or (f"test/{PROJECTS[framework][0]}",), runner=TestRunner(type=name), is_sealed=bool(ids),
        test_timeout_s=200, timeout_s=600, traced_paths=traced,
    )  # fmt: skip
    try:
        return await sandbox.run_tests(request)
    finally:
        await sandbox.close()


@pytest.mark.parametrize("framework", sorted(PROJECTS))
async def test_outcomes_and_executed_functions(
    backend: SandboxBackend, environments: dict[str, Path], tmp_path: Path, framework: str
) -> None:
    done = await run(backend, environments, tmp_path, framework, ())
    path = f"test/{PROJECTS[framework][0]}"
    outcomes = {name.removeprefix(f"{path}::"): result.outcome for name, result in done.results.items()}
    assert outcomes["clamp::keeps"] is TestOutcome.PASSED
    assert outcomes["clamp::upper"] is TestOutcome.FAILED
    assert done.num_forged_records == 0
    if framework.startswith(("vitest", "jest")):
        assert outcomes["clamp::later"] is TestOutcome.SKIPPED
        assert outcomes["clamp::broken hook::below"] is not TestOutcome.PASSED
        assert {outcomes["sum 1"], outcomes["sum 2"]} == {TestOutcome.PASSED}
    # Functions are named by their line in the file as it is written, also where a compiler has moved it.
    line = "src/index.ts::6" if PROJECTS[framework][0].endswith(".ts") else "src/index.js::2"
    if framework != "node_test":
        assert line in done.executed_functions[f"{path}::clamp::keeps"]
    else:  # which tells of its tests when all of them have run
        assert line in {name for names in done.executed_functions.values() for name in names}


@pytest.mark.parametrize("framework", sorted(PROJECTS))
@pytest.mark.parametrize("attack", sorted(ATTACKS))
async def test_no_attack_makes_a_failing_test_pass_unseen(
    backend: SandboxBackend, environments: dict[str, Path], tmp_path: Path, framework: str, attack: str
) -> None:
    test_id = f"test/{PROJECTS[framework][0]}::clamp::upper"
    done = await run(backend, environments, tmp_path, framework, (test_id,), ATTACKS[attack])
    assert not done.passes((test_id,)) or done.num_forged_records or done.reached_for, done


async def test_what_breaks_jest_before_its_runner_is_told(
    backend: SandboxBackend, environments: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test/a.test.ts").write_text("test('a', () => {});\n", "utf-8")
    (tmp_path / "package.json").write_text('{"name": "a", "jest": {"transform": {".ts$": "no-such"}}}', "utf-8")
    sandbox = await backend.create(SandboxSpec(environment=environments[""], tree=tmp_path))
    request = TestRequest(
        test_ids=("test/a.test.ts",), runner=TestRunner(type="jest"), test_timeout_s=200, timeout_s=600
    )
    try:
        done = await sandbox.run_tests(request)
    finally:
        await sandbox.close()
    assert "no-such" in done.results["test/a.test.ts"].message
