from __future__ import annotations

import ast
from typing import Any

import pytest

from repairgym.tasks.audit.rewrites import REWRITES, choose_rewrites, rewrite_function

SOURCE = '''
class Shop:
    def total(self, prices, limit=3, name="x"):
        """Total of prices.

            The indented line stays where it is.
        """
        count = 0
        kept = None
        first = []
        for price in prices:
            count += 1
            if price is not None and count <= limit:
                first.append(price)
        doubled = [2 * price_ for price_ in first if price_ not in (7,)]
        label = f"{name}: {count!r} {{}}"
        size = "many" if count > 2 else "few"
        if not doubled:
            return (label, size, kept)
        else:
            kept = doubled[0]
        return [label, size, kept, doubled[-1] + count]
'''
LINE = 3
CALLS: list[tuple[Any, ...]] = [([],), ([1, None, 7],), ([1, 2, 3, 4], 2), ([7],), ([5, 6], 1, "y")]


def results(source: str) -> list[object]:
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102
    shop = names["Shop"]()
    return [shop.total.__doc__, *(shop.total(*arguments) for arguments in CALLS)]


@pytest.mark.parametrize("kind", sorted(REWRITES))
def test_a_rewrite_changes_the_text_and_not_the_results(kind: str) -> None:
    source = {
        "extract_expression": SOURCE,
        "no_else_after_return": SOURCE,
        "else_after_return": SOURCE.replace("        else:\n            kept = doubled[0]\n", ""),
    }.get(kind, SOURCE)
    rewritten = rewrite_function(source, LINE, (kind,))
    assert rewritten is not None
    assert ast.dump(ast.parse(rewritten)) != ast.dump(ast.parse(source))
    assert results(rewritten) == results(source)


def test_several_rewrites_together_keep_the_results() -> None:
    chosen = dict(choose_rewrites(SOURCE, LINE, 40, "seed"))
    assert len(chosen) == 1 + len([kind for kind in REWRITES if rewrite_function(SOURCE, LINE, (kind,))])
    assert all(results(text) == results(SOURCE) for text in chosen.values())
    *_, (kinds, _) = choose_rewrites(SOURCE, LINE, 3, "seed")
    assert "+" in kinds


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("rename_locals", "x = 1; return locals()"),
        ("rename_locals", "import os as x\n    x = 2\n    return x"),
        ("plain_counter", "n = []\n    n += [1]\n    return n"),
        ("plain_counter", "n = 0\n    for n in 'ab': pass\n    n += 1"),
        ("loop_for_comprehension", "k = 3\n    return [k for k in range(2)] + [k]"),
        ("loop_for_comprehension", "return [lambda: k for k in range(2)]"),
        ("extract_expression", "return f(1)"),
        ("format_call", "return f'{f(1)}'"),
        ("reorder_assignments", "a = 1\n    b = a\n    return b"),
        ("reorder_assignments", "a = g()\n    b = h()\n    return b"),
    ],
)
def test_what_may_behave_differently_is_left_alone(kind: str, body: str) -> None:
    assert rewrite_function(f"def f(z):\n    {body}\n", 1, (kind,)) is None


def test_a_function_that_is_not_there_has_no_rewrites() -> None:
    assert list(choose_rewrites("x = 1\n", 1, 3, "")) == []


def test_a_method_of_an_inner_class_stays_where_it_is() -> None:
    source = "class A:\n    class B:\n        def f(self, x):\n            return x + 1\n"
    names: dict[str, Any] = {}
    exec(rewrite_function(source, 3, ("name_result",)) or "", names)  # noqa: S102
    assert names["A"].B().f(1) == 2


@pytest.mark.parametrize("kind", ["no_else_after_return", "swap_branches"])
def test_every_branch_of_a_chain_is_kept(kind: str) -> None:
    chain = ("if x > 2:", "    return 'a'", "elif x > 1:", "    return 'b'", "else:", "    return 'c'")
    source = "def f(x):\n" + "".join(f"    {line}\n" for line in chain)
    names: dict[str, Any] = {}
    exec(rewrite_function(source, 1, (kind,)) or "", names)  # noqa: S102
    assert [names["f"](x) for x in (3, 2, 1)] == ["a", "b", "c"]


INNER = [
    "z = [k for k in xs]\n    return z, k",
    "def inner():\n        k = 3\n        return k\n    z = inner()\n    return z, k",
    "z = {k: 1 for k in xs}\n    w = sum(k for k in xs)\n    return z, w, k",
    "z = [[k for k in (m,)] for m in xs]\n    m = 7\n    return z, k, m",
    "z = [m + k for k in xs if (m := k)]\n    return z, k, m",
    "z = [k for k in xs]\n    f = lambda: k\n    return z, f()",
    "m = 1\n    def inner():\n        m = 2\n        return m\n    return m, inner(), k",
]


@pytest.mark.parametrize("body", INNER)
def test_names_of_inner_scopes_do_not_rename_globals(body: str) -> None:
    source = f"k = 'global'\n\n\ndef f(xs):\n    {body}\n"
    answers: list[object] = []
    for text in (source, rewrite_function(source, 4, ("rename_locals",)) or ""):
        names: dict[str, Any] = {}
        exec(text, names)  # noqa: S102
        answers.append(names["f"]([1, 2]))
    assert answers[0] == answers[1]


def test_a_form_feed_ends_no_line() -> None:
    source = "a = 1\n\x0c\ndef f(x):\n    return x + a\n"
    names: dict[str, Any] = {}
    exec(rewrite_function(source, 3, ("name_result",)) or "", names)  # noqa: S102
    assert names["f"](1) == 2
