"""Broken programs, checks and tests of JavaScript and TypeScript."""

import json

from . import Project
from .packages import scripts

TSCONFIG = '{"compilerOptions": {"strict": true, "target": "es2022", "module": "node16", "types": []}}\n'
ESLINT = """export default [{
  files: ["**/*.js"],
  languageOptions: { globals: { console: "readonly" } },
  rules: { "no-undef": "error", "no-unused-vars": "error", eqeqeq: "error", "prefer-const": "error", semi: "warn" },
}];
"""


def tsc(name, text, error_class, message, place="", command="tsc --noEmit -p .", **files):
    more = {key.replace("__", "."): value for key, value in files.items()}
    return Project(
        "tsc", name, command, {"tsconfig.json": TSCONFIG, "src/a.ts": text, **more}, error_class, message, place
    )


def eslint(name, text, error_class, message, place="", command="eslint .", config=ESLINT):
    files = {"eslint.config.mjs": config, "src/a.js": text} if config else {"src/a.js": text}
    return Project("eslint", name, command, files, error_class, message, place)


def node(name, text, error_class, message, place="", command="node main.js", **files):
    more = {key.replace("__", ".").replace("___", "/"): value for key, value in files.items()}
    return Project("node", name, command, {"main.js": text, **more}, error_class, message, place)


TSC = (
    tsc(
        "assign",
        "const n: number = 'x';\nexport { n };\n",
        "build_tool",
        "error TS2322: Type 'string' is not assignable to type 'number'.",
        "src/a.ts:1",
    ),
    tsc(
        "assign_pretty",
        "export const ok = 1;\nexport const t: boolean = 3;\n",
        "build_tool",
        "error TS2322: Type 'number' is not assignable to type 'boolean'.",
        "src/a.ts:2",
        "tsc --noEmit --pretty -p .",
    ),
    tsc(
        "module",
        "import { x } from 'nowhere-at-all';\nexport const y = x;\n",
        "dependency",
        "error TS2307: Cannot find module 'nowhere-at-all'",
        "src/a.ts:1",
    ),
    tsc(
        "module_relative",
        "export const a = 1;\nimport { x } from './missing.js';\nexport const y = x;\n",
        "dependency",
        "error TS2307: Cannot find module './missing.js'",
        "src/a.ts:2",
    ),
    tsc(
        "module_pretty",
        "import { x } from './gone.js';\nexport const y = x;\n",
        "dependency",
        "error TS2307: Cannot find module './gone.js'",
        "src/a.ts:1",
        "tsc --noEmit --pretty -p .",
    ),
    tsc(
        "property",
        "const o = { a: 1 };\n\nexport const b = o.b;\n",
        "build_tool",
        "error TS2339: Property 'b' does not exist on type '{ a: number; }'.",
        "src/a.ts:3",
    ),
    tsc("name", "export const a = totl(1);\n", "build_tool", "error TS2304: Cannot find name 'totl'.", "src/a.ts:1"),
    tsc(
        "argument",
        "function f(n: number) { return n; }\nexport const a = f('1');\n",
        "build_tool",
        "error TS2345: Argument of type 'string' is not assignable to parameter of type 'number'.",
        "src/a.ts:2",
    ),
    tsc("syntax", "export const a = [1, 2;\n", "build_tool", "error TS1005: ',' expected.", "src/a.ts:1"),
    tsc(
        "option",
        "export const a = 1;\n",
        "configuration",
        "Unknown compiler option 'strickt'.",
        "tsconfig.json:1",
        tsconfig__json='{"compilerOptions": {"strickt": true}}\n',
    ),
    tsc(
        "no_inputs",
        "export const a = 1;\n",
        "configuration",
        "error TS18003: No inputs were found in config file",
        "",
        tsconfig__json='{"include": ["lib"]}\n',
    ),
    tsc(
        "arguments",
        "function f(a: number, b: number) { return a + b; }\nexport const c = f(1);\n",
        "build_tool",
        "error TS2554: Expected 2 arguments, but got 1.",
        "src/a.ts:2",
    ),
    tsc(
        "missing_property",
        "interface P { a: number; b: string }\nexport const p: P = { a: 1 };\n",
        "build_tool",
        "error TS2741: Property 'b' is missing in type '{ a: number; }' but required in type 'P'.",
        "src/a.ts:2",
    ),
    tsc(
        "no_export",
        "import { nope } from './b.js';\nexport const y = nope;\n",
        "dependency",
        "has no exported member 'nope'.",
        "src/a.ts:1",
        **{"src/b__ts": "export const yes = 1;\n"},
    ),
    tsc(
        "types",
        "export const a = 1;\n",
        "dependency",
        "error TS2688: Cannot find type definition file for 'jestt'.",
        "",
        tsconfig__json='{"compilerOptions": {"types": ["jestt"]}}\n',
    ),
    tsc(
        "extends",
        "export const a = 1;\n",
        "configuration",
        "base.json",
        "",
        tsconfig__json='{"extends": "./base.json"}\n',
    ),
    tsc(
        "module_kind",
        "export const a = 1;\n",
        "configuration",
        "error TS6046: Argument for '--module' option must be",
        "tsconfig.json:1",
        tsconfig__json='{"compilerOptions": {"module": "es2099"}}\n',
    ),
    tsc(
        "null",
        "const a = [1].find(Boolean);\nexport const b = a.toFixed();\n",
        "build_tool",
        "error TS18048: 'a' is possibly 'undefined'.",
        "src/a.ts:2",
    ),
    Project(
        "tsc",
        "npm_run",
        "npm run build",
        {
            "package.json": scripts(build="tsc --noEmit -p ."),
            "tsconfig.json": TSCONFIG,
            "src/a.ts": "let a = true;\na = 'two';\nexport { a };\n",
        },
        "build_tool",
        "error TS2322: Type 'string' is not assignable to type 'boolean'.",
        "src/a.ts:2",
    ),
)
ESLINTS = (
    eslint("unused", "const a = 1;\n", "build_tool", "'a' is assigned a value but never used", "src/a.js:1"),
    eslint("undefined", "console.log(totl);\n", "build_tool", "'totl' is not defined", "src/a.js:1"),
    eslint("eqeqeq", "\nconsole.log(1 == 2);\n", "build_tool", "Expected '===' and instead saw '=='", "src/a.js:2"),
    eslint(
        "const",
        "let a = 1;\nconsole.log(a);\n",
        "build_tool",
        "'a' is never reassigned. Use 'const' instead",
        "src/a.js:1",
    ),
    eslint("parse", "console.log(;\n", "build_tool", "Parsing error: Unexpected token ;", "src/a.js:1"),
    eslint(
        "after_warning", "console.log(1)\n\nconsole.log(tatl);\n", "build_tool", "'tatl' is not defined", "src/a.js:3"
    ),
    eslint(
        "max_warnings", "console.log(1)\n", "build_tool", "Missing semicolon", "src/a.js:1", "eslint --max-warnings 0 ."
    ),
    eslint(
        "no_config",
        "console.log(1);\n",
        "configuration",
        "ESLint couldn't find an eslint.config.(js|mjs|cjs) file.",
        config="",
    ),
    eslint(
        "unknown_rule",
        "console.log(1);\n",
        "configuration",
        'Could not find "nope" in plugin "@"',
        config='export default [{ rules: { nope: "error" } }];\n',
    ),
    eslint(
        "plugin",
        "console.log(1);\n",
        "dependency",
        "Cannot find package 'eslint-plugin-nope'",
        "eslint.config.mjs",
        config='import nope from "eslint-plugin-nope";\nexport default [nope];\n',
    ),
    eslint(
        "bad_key",
        "console.log(1);\n",
        "configuration",
        'Unexpected key "rulez" found',
        config="export default [{ rulez: {} }];\n",
    ),
    eslint(
        "severity",
        "console.log(1);\n",
        "configuration",
        'Expected severity of "off", 0, "warn", 1, "error", or 2',
        config='export default [{ rules: { semi: "loud" } }];\n',
    ),
    eslint(
        "pattern",
        "console.log(1);\n",
        "configuration",
        'No files matching the pattern "lib" were found.',
        command="eslint lib",
    ),
    eslint("option", "console.log(1);\n", "configuration", "Invalid option '--fixx'", command="eslint --fixx ."),
    eslint(
        "legacy",
        "console.log(1);\n",
        "configuration",
        'A config object is using the "env" key',
        config="export default [{ env: { node: true } }];\n",
    ),
)
NODE = (
    node(
        "relative",
        "\nconst m = require('./missing');\n",
        "dependency",
        "Error: Cannot find module './missing'",
        "main.js:2",
    ),
    node(
        "package",
        "const m = require('left-padd');\n",
        "dependency",
        "Error: Cannot find module 'left-padd'",
        "main.js:1",
    ),
    node(
        "scope",
        "const m = require('@zzqx/left');\n",
        "dependency",
        "Error: Cannot find module '@zzqx/left'",
        "main.js:1",
    ),
    node(
        "other_scope",
        "const m = require('@other/left');\n",
        "dependency",
        "Error: Cannot find module '@other/left'",
        "main.js:1",
    ),
    node(
        "esm_package",
        "",
        "dependency",
        "Cannot find package 'left-padd' imported from",
        "main.mjs",
        "node main.mjs",
        main__mjs="import x from 'left-padd';\nx();\n",
    ),
    node(
        "esm_export",
        "",
        "dependency",
        "does not provide an export named 'total'",
        "main.mjs:1",
        "node main.mjs",
        main__mjs="import { total } from './b.mjs';\ntotal();\n",
        b__mjs="export const sum = 1;\n",
    ),
    node(
        "syntax",
        "const a = {\n  b: 1\n  c: 2,\n};\n",
        "build_tool",
        "SyntaxError: Unexpected identifier 'c'",
        "main.js:3",
    ),
    node("type", "const cart = {};\ncart.total();\n", "other", "TypeError: cart.total is not a function", "main.js:2"),
    node(
        "reference",
        "console.log('starts');\nconsole.log(totl);\n",
        "other",
        "ReferenceError: totl is not defined",
        "main.js:2",
    ),
    node(
        "thrown",
        "function pay() {\n  throw new RangeError('no money left');\n}\npay();\n",
        "other",
        "RangeError: no money left",
        "main.js:2",
    ),
    node(
        "rejection",
        "async function pay() {\n  throw new Error('card was declined');\n}\npay();\n",
        "other",
        "Error: card was declined",
        "main.js:2",
    ),
    node(
        "in_module",
        "const { pay } = require('./pay');\npay(null);\n",
        "other",
        "TypeError: Cannot read properties of null (reading 'price')",
        "pay.js:1",
        pay__js="exports.pay = (x) => x.price;\n",
    ),
    node(
        "json", "require('./config.json');\n", "build_tool", "config.json", "config.json", config__json='{ "a": 1, }\n'
    ),
    node(
        "enoent",
        "const fs = require('fs');\n\nfs.readFileSync('prices.csv');\n",
        "environment",
        "Error: ENOENT: no such file or directory, open 'prices.csv'",
        "main.js:3",
    ),
    node("option", "", "configuration", "bad option: --nope", "", "node --nope main.js"),
    node(
        "import",
        "import fs from 'fs';\n",
        "build_tool",
        "SyntaxError: Cannot use import statement outside a module",
        "main.js:1",
        package__json='{"type": "commonjs"}\n',
    ),
    node("no_main", "", "dependency", "Cannot find module", "", "node nothere.js"),
    node(
        "assertion",
        "require('assert').strictEqual(1 + 1, 3);\n",
        "test",
        "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal",
        "main.js:1",
    ),
    node(
        "exports",
        "require('q/secret');\n",
        "dependency",
        "Package subpath './secret' is not defined by \"exports\"",
        "main.js:1",
        **{
            "node_modules/q/package__json": json.dumps({"name": "q", "exports": {".": "./i.js"}}),
            "node_modules/q/i__js": "",
        },
    ),
)

SHOP = """exports.total = (prices) => prices.reduce((a, b) => a + b);
exports.first = (cart) => cart.items[0].price;
exports.pay = (sum) => {
  if (sum > 10) throw new Error("limit exceeded");
  return { ok: true, sum };
};
"""
MESSAGES = {
    "jest": {
        "be": "expect(received).toBe(expected)",
        "equal": "expect(received).toEqual(expected)",
        "empty": "Reduce of empty array with no initial value",
        "module": "Cannot find module './cart' from 'shop.test.js'",
        "package": "Cannot find module 'left-padd' from 'shop.test.js'",
        "throws": "expect(received).toThrow(expected)",
        "timeout": "Exceeded timeout of 50 ms for a test.",
        "no_tests": "No tests found, exiting with code 1",
        "syntax": "SyntaxError",
    },
    "vitest": {
        "be": "AssertionError: expected 3 to be 4",
        "equal": "AssertionError: expected { ok: true, sum: 3 } to deeply equal { ok: true, sum: 4 }",
        "empty": "TypeError: Reduce of empty array with no initial value",
        "module": "./cart",
        "package": "left-padd",
        "throws": "limit exceeded",
        "timeout": "Test timed out in 50ms.",
        "no_tests": "No test files found, exiting with code 1",
        "syntax": "xpected",
    },
    "mocha": {
        "be": "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal",
        "equal": "AssertionError [ERR_ASSERTION]: Expected values to be strictly deep-equal",
        "empty": "TypeError: Reduce of empty array with no initial value",
        "module": "Error: Cannot find module './cart'",
        "package": "Error: Cannot find module 'left-padd'",
        "throws": "The input did not match the regular expression /no money/",
        "timeout": "Timeout of 50ms exceeded.",
        "no_tests": "No test files found",
        "syntax": "SyntaxError: missing ) after argument list",
    },
    "node_test": {
        "be": "Expected values to be strictly equal",
        "equal": "Expected values to be strictly deep-equal",
        "empty": "Reduce of empty array with no initial value",
        "module": "Cannot find module './cart'",
        "package": "Cannot find module 'left-padd'",
        "throws": "The input did not match the regular expression /no money/",
        "timeout": "test timed out after 50ms",
        "no_tests": "Could not find",
        "syntax": "SyntaxError: missing ) after argument list",
    },
}
HEADS = {
    "jest": "const assert = require('assert');\nconst shop = require('./shop');\n",
    "vitest": "import { expect, test, it, describe, beforeAll } from 'vitest';\nimport shop from './shop.js';\n",
    "mocha": "const assert = require('assert');\nconst shop = require('./shop');\n",
    "node_test": "const assert = require('assert'); const { test, it, describe } = require('node:test');\nconst shop = require('./shop');\n",
}
COMMANDS = {"jest": "jest", "vitest": "vitest run", "mocha": "mocha '*.test.js'", "node_test": "node --test"}


def tests(tool: str) -> tuple[Project, ...]:
    """Return broken tests for ``tool``."""
    name = "shop.test.mjs" if tool == "vitest" else "shop.test.js"
    says, is_expect = MESSAGES[tool], tool in ("jest", "vitest")
    be = "expect(shop.total([1, 2])).toBe(4);" if is_expect else "assert.strictEqual(shop.total([1, 2]), 4);"
    equal = (
        "expect(shop.pay(3)).toEqual({ ok: true, sum: 4 });"
        if is_expect
        else "assert.deepStrictEqual(shop.pay(3), { ok: true, sum: 4 });"
    )
    throws = (
        "expect(() => shop.pay(11)).toThrow(/no money/);"
        if is_expect
        else "assert.throws(() => shop.pay(11), /no money/);"
    )
    it = "test" if tool in ("jest", "vitest", "node_test") else "it"
    slow = {
        "jest": "test('waits', () => new Promise(() => {}), 50);",
        "vitest": "test('waits', () => new Promise(() => {}), 50);",
        "mocha": "it('waits', function (done) { this.timeout(50); });",
        "node_test": "test('waits', { timeout: 50 }, () => new Promise((f) => setTimeout(f, 9000)));",
    }[tool]
    load = (lambda x: f"import '{x}';") if tool == "vitest" else (lambda x: f"require('{x}');")

    def make(key, body, error_class, message, place, command=COMMANDS[tool], **files):
        more = {"package.json": '{"name": "shop", "version": "1.0.0"}\n', "shop.js": SHOP}
        text = {} if body is None else {name: HEADS[tool] + body + "\n"}
        return Project(tool, key, command, {**more, **text, **files}, error_class, message, place)

    return (
        make("be", f"{it}('adds', () => {{\n  {be}\n}});", "test", says["be"], f"{name}:4"),
        make(
            "be_other",
            f"{it}('fine', () => {{}});\n{it}('sums up', () => {{\n  {be}\n}});",
            "test",
            says["be"],
            f"{name}:5",
        ),
        make(
            "equal",
            f"describe('pay', () => {{\n  {it}('pays', () => {{\n    {equal}\n  }});\n}});",
            "test",
            says["equal"],
            f"{name}:5",
        ),
        make("empty", f"{it}('empty', () => {{ shop.total([]); }});", "test", says["empty"], "shop.js:1"),
        make(
            "null",
            f"{it}('first', () => {{\n  shop.first({{ items: [] }});\n}});",
            "test",
            "Cannot read properties of undefined (reading 'price')",
            "shop.js:2",
        ),
        make("throws", f"{it}('limit', () => {{\n  {throws}\n}});", "test", says["throws"], f"{name}:4"),
        make("thrown", f"{it}('limit', () => {{\n  shop.pay(11);\n}});", "test", "limit exceeded", "shop.js:4"),
        make(
            "module",
            f"{load('./cart')}\n{it}('x', () => {{}});",
            "dependency",
            says["module"],
            f"{name}:3" if tool != "vitest" else name,
        ),
        make(
            "package",
            f"{load('left-padd')}\n{it}('x', () => {{}});",
            "dependency",
            says["package"],
            f"{name}:3" if tool != "vitest" else name,
        ),
        make("syntax", f"{it}('x', () => {{ shop.total([1] ; }});", "build_tool", says["syntax"], f"{name}:3"),
        make("timeout", slow, "test", says["timeout"], f"{name}:3" if tool not in ("mocha", "node_test") else name),
        make(
            "no_tests",
            None,
            "configuration",
            says["no_tests"],
            "",
            "node --test nothere.test.js" if tool == "node_test" else COMMANDS[tool],
        ),
        make(
            "top_level",
            f"shop.start();\n{it}('x', () => {{}});",
            "other" if tool == "mocha" else "test",
            ".start is not a function",
            f"{name}:3",
        ),
        make(
            "npm_test",
            f"{it}('adds all', () => {{\n\n  {be}\n}});",
            "test",
            says["be"],
            f"{name}:5",
            "npm test",
            **{"package.json": scripts(test=COMMANDS[tool])},
        ),
    )


PROJECTS = TSC + ESLINTS + NODE + tests("jest") + tests("vitest") + tests("mocha") + tests("node_test")
