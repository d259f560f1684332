"""Rewrites of functions of JavaScript: node runs the function before and after."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from repairgym.tasks.audit.javascript_rewrites import REWRITES, choose_rewrites, rewrite_function

PATH = "shop.js"
SOURCE = """'use strict';

function total(prices, limit = 3, name = 'x') {
    const kept = [];
    var first = 0;
    let seen = 0;
    for (const price of prices) {
        seen++;
        if (price !== null && seen <= limit) {
            kept.push({ price, seen });
        }
    }
    for (let i = 0; i < kept.length; i++) { first = first || kept[i].price; }
    const size = seen === 2 ? 'two' : 'other';
    if (kept.length === 0) {
        return [name, size, first];
    } else {
        kept[0].last = kept[kept.length - 1].price;
    }
    const label = kept.map((item) => item.price + item.seen).join('+');
    if (label.length > 5) {
        seen += 1;
    } else if (label.length > 3) {
        seen += 10;
    } else {
        seen += 100;
    }
    if (name === 'skip') { return seen > 5 ? label : size; }
    first += 1;
    return first + ':' + seen + ':' + label + ':' + size;
}
"""
LINE = 3
CALLS: list[list[object]] = [
    [[]],
    [[1, None, 7]],
    [[1, 2, 3, 4], 2],
    [[7]],
    [[5, 6], 1, "y"],
    [[5, 6], 9, "skip"],
    [[10, 20, 30], 9, "skip"],
]


def answers(sources: dict[str, str], calls: list[list[object]], name: str) -> dict[str, object]:
    """Results of calls of a function of each source, with its name and number of parameters, from one process."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node on this machine")
    program = f"""
    const told = {{}};
    for (const [key, text] of Object.entries({json.dumps(sources)})) {{
        try {{
            const f = new Function(text + '; return {name}')();
            told[key] = [f.name, f.length, {json.dumps(calls)}.map((args) => f(...args))];
        }} catch (error) {{ told[key] = `${{error}} in ${{text}}`; }}
    }}
    console.log(JSON.stringify(told));
    """
    done = subprocess.run([node, "-e", program], capture_output=True, text=True, check=True)
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_rewrites_change_the_text_and_not_the_results() -> None:
    extra = SOURCE.replace("kept[kept.length - 1].price;\n    }", "0;\n        return [kept.length + first];\n    }")
    sources = {"": SOURCE, "extract_expression before": extra}
    for kind in REWRITES:
        before = extra if kind == "extract_expression" else SOURCE
        sources[kind] = rewrite_function(PATH, before, LINE, (kind,)) or ""
        assert sources[kind].split() not in ([], before.split()), kind
    chosen = dict(choose_rewrites(PATH, SOURCE, LINE, 40, "seed"))
    assert chosen.keys() >= REWRITES.keys() - {"extract_expression"}
    told = answers({**chosen, **sources}, CALLS, "total")
    expected, extracted = told[""], told.pop("extract_expression before")
    assert extracted == told.pop("extract_expression")
    assert told == dict.fromkeys(told, expected)
    *_, (several, _) = choose_rewrites(PATH, SOURCE, LINE, 3, "seed")
    assert "+" in several


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("rename_locals", "var x = 1; return eval('x')"),
        ("rename_locals", "var x = 1; var x = 2; return x"),
        ("rename_locals", "{ let x = 1; z(x); } return x"),
        ("rename_locals", "const x = () => 1; return x"),
        ("rename_locals", "let x; x = (class {}); return x"),
        ("rename_locals", "var { x } = z; return x"),
        ("rename_locals", "var z = 1; return z"),
        ("rename_locals", "var arguments; return arguments"),
        ("plain_counter", "let i = 0n; i++; return i"),
        ("plain_counter", "let i = 0; i = z; i++; return i"),
        ("plain_counter", "let i = 0; return i++"),
        ("plain_counter", "let i = 0\n i++\n return i"),
        ("name_result", "return () => z"),
        ("name_result", "return (function () {})"),
        ("name_result", "switch (z) { case 1: return z + 1 }"),
        ("extract_expression", "return z(1) + 1"),
        ("else_after_return", "if (z) { return 1; } const y = 2; return y"),
        ("else_after_return", "if (z) { return y(); } function y() {} z()"),
        ("no_else_after_return", "if (z) { return 1; } else { let y = 2; z(y); } return 3"),
        ("no_else_after_return", "if (z) { z(); } else { return 1; }"),
        ("swap_branches", "if (z) { function y() {} } else { z() }"),
        ("swap_ternary", "z ? 1 : z++\n (z)"),
        ("negate_outside", "z !== z++\n (z)"),
        ("swap_sides", "return z === z.x"),
        ("swap_sides", "return z === `x`"),
        ("reorder_declarations", "const a = 1; const b = a; return b"),
        ("reorder_declarations", "const a = 1\n const b = 2;\n (z)"),
        ("reorder_declarations", "const a = z(); const b = z(); return b"),
    ],
)
def test_what_may_behave_differently_is_left_alone(kind: str, body: str) -> None:
    assert rewrite_function("f.js", f"function f(z) {{\n {body}\n}}\n", 1, (kind,)) is None


ODD_FORMS = [
    ("rename_locals", "const o = { k }; var k = 2; return [o, typeof k]"),
    ("rename_locals", "let k = z; { const inner = [k]; for (const each of inner) k += each } return k"),
    ("rename_locals", "var k = z, f = (q) => q + k; return f(1)"),
    ("name_result", "return z, z + 1"),
    ("name_result", "if (z) { return z * 2 }\n return [z][0]"),
    ("no_else_after_return", "if (z > 1) { return 1 } else { z = -z }\n [z] = [z + 1]; return z"),
    ("no_else_after_return", "if (z > 2) { return 1 } else if (z > 1) { return 2 } else { return 3 } // end"),
    ("else_after_return", "if (z > 1) { return 1 } // first\n z += 1 // second\n return z // third"),
    ("swap_branches", "if (z > 2) { z = 1 } else if (z > 1) { z = 2 } else { z = 3 } return z"),
    ("swap_sides", "return [typeof z === 'number', z + 1 == 2, (z === 1) !== true]"),
    ("swap_sides", "return z > 1 === true === true"),
    ("negate_outside", "const y = 1\n z !== y && (z = 5)\n return [z, z !== 1 !== true, !(z !== 2)]"),
    ("arrow_block", "const f = a => ({ a }), g = (a) => (b) => a + b\n return [f(z), g(1)(z), [z].map(x => x * 2)]"),
    ("branch_for_ternary", "return z ? z > 1 ? 'a' : 'b' : 'c'"),
    ("extract_expression", "return { sum: arguments[0] + arguments.length, z }"),
    ("de_morgan", "if (z > 1 && z < 3 || z === 0) { return 'in' } return 'out'"),
    ("swap_ternary", "return z > 1 ? z > 2 ? 3 : 2 : 1"),
    ("plain_counter", "let n = 0; for (let i = 3; i > 0; --i) { n++; } n -= 1; return n"),
]


def test_odd_forms_keep_their_results() -> None:
    sources: dict[str, str] = {}
    for number, (kind, body) in enumerate(ODD_FORMS):
        source = f"var k = 'outer';\nfunction f(z) {{\n {body}\n}}\n"
        rewritten = rewrite_function("f.js", source, 2, (kind,))
        assert rewritten not in (None, source), body
        sources |= {f"{number} before": source, f"{number}": rewritten or ""}
    told = answers(sources, [[number] for number in range(4)], "f")
    for number in range(len(ODD_FORMS)):
        assert told[f"{number}"] == told[f"{number} before"], sources[f"{number}"]


def test_types_stay_where_a_transformer_may_check_them() -> None:
    source = "export function f(z: number): 'a' | 'b' {\n  if (z !== 1) { return 'a' } else { return `b` as 'b' }\n}\n"
    rewritten = rewrite_function("f.ts", source, 1, ("negate_outside", "no_else_after_return"))
    assert "if (!(z === 1)) { return 'a' }\n return `b` as 'b'" in (rewritten or "")
    assert rewrite_function("f.ts", source, 1, ("name_result",)) is None
    assert list(choose_rewrites("f.ts", "function f( {", 1, 3, "")) == []
    assert list(choose_rewrites("f.ts", source, 2, 3, "")) == []
