"""Functions, tests and mutation sites of JavaScript and TypeScript."""

from __future__ import annotations

import pytest

from repairgym.errors import TaskError
from repairgym.tasks.javascript.mutation_sites import find_sites
from repairgym.tasks.javascript.syntax import (
    code_of,
    cuttable_tests,
    function_at,
    function_codes,
    named_functions,
    parse,
    statement_at,
    test_source,
    text_of,
    without_tests,
    written_title,
)
from repairgym.tasks.mutation.operators import Mutation, apply

TESTS = """const test = require('tape');

test('outer', function (t) {
    t.test('first', function (st) { st.end(); });
    t.test('second [x]', (st) => {
        st.end();
    });
    t.end();
});

test('twice', (t) => t.end());
test('twice', (t) => t.end());
test(`computed ${1}`, (t) => t.end());
for (const n of [1]) test('in a loop', (t) => t.end());
const kept = test('used', (t) => t.end());
"""


def test_tests_that_can_be_cut_out_are_leaves_with_titles_of_their_own() -> None:
    assert cuttable_tests("a.js", TESTS) == {"outer::first", "outer::second (x)", "in a loop"}


def test_a_cut_file_keeps_its_lines_and_the_other_tests() -> None:
    text = without_tests("a.js", TESTS, ["outer::second (x)"])
    assert "second" not in text
    assert "first" in text
    assert text.count("\n") == TESTS.count("\n")
    parse("a.js", text)


def test_a_title_is_told_as_it_is_written() -> None:
    assert written_title("a.js", TESTS, "outer::second (x)") == "outer: second [x]"
    assert written_title("a.js", TESTS, "outer::computed 1") == "outer: computed 1"
    assert written_title("a.js", "test(", "outer::first") == "outer::first"


def test_the_statement_and_the_test_of_a_line() -> None:
    assert statement_at("a.js", TESTS, 6) == "st.end();"
    assert statement_at("a.js", "f(\n    1,\n);\n", 2) == "f(\n    1,\n);"
    assert statement_at("a.js", TESTS, 2) == statement_at("a.js", "f(", 1) == ""
    assert test_source("a.js", TESTS, "in a loop") == "test('in a loop', (t) => t.end());"
    assert test_source("a.js", TESTS, "twice") == ""


@pytest.mark.parametrize("name", ["in a loop", "twice", "used", "absent"])
def test_what_cannot_be_cut_out_alone_is_an_error(name: str) -> None:
    with pytest.raises(TaskError):
        without_tests("a.js", TESTS, [name])


def test_functions_have_the_names_of_what_they_are_assigned_to() -> None:
    text = "exports.parse = function (a) { return a; };\nclass A {\n  get size() { return 1; }\n}\nconst f = () => 1;\n"
    assert [(f.name, f.first_line) for f in named_functions("a.js", text)] == [
        ("exports.parse", 1), ("A.size", 3), ("f", 5),
    ]  # fmt: skip
    typed = "export function size(text: string): number { return text.length; }\n"
    assert [f.name for f in named_functions("a.ts", typed)] == ["size"]


def test_comments_and_layout_are_no_code() -> None:
    assert code_of("a.js", "f( 1 ) // x\n") == code_of("a.js", "/* y */ f(1)\n")
    with pytest.raises(SyntaxError):
        code_of("a.js", "f(")


def test_every_site_gives_code_that_parses() -> None:
    text = (
        "function f(ä, b) {\n  for (;;) { if (!b) { break; } }\n  if (ä.some(x)) { return ä >= 3 && b !== 2; }\n"
        "  return ä ? 'x' + b : Math.min(ä, b) * 2;\n}\n"
    )
    sites = find_sites("a.js", text)
    families = {"loop", "negation", "comparison", "boolean", "constant", "name", "arithmetic"}
    assert {site.operator for site in sites} == families
    for site in sites:
        for new in site.alternatives:
            parse("a.js", apply(text, Mutation(site, new)))
    assert not [site for site in sites if site.line == 4 and site.old == "+"]


def test_the_code_of_a_function_is_without_that_of_named_functions_inside() -> None:
    source = "function outer(a) {\n  function inner() { return 1; } // one\n  return [a].map((x) => x + 2);\n}\n"
    names = [function.name for function in named_functions("a.js", source)]
    codes = dict(zip(names, function_codes("a.js", source), strict=True))
    assert {*"12"} & {*codes["outer"]} == {"2"}
    assert {*"12"} & {*codes["outer.inner"]} == {"1"}
    other = source.replace("return 1", "return 3").replace("// one", "/* three */")
    assert function_codes("a.js", other)[0] == codes["outer"]
    node = function_at("a.js", source, 2)
    assert node is not None
    assert text_of(node).startswith("function inner()")
    assert function_at("a.js", source, 3) is None
