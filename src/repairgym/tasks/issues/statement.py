"""Statements of behaviour: one expectation of a failing test in plain sentences.

Reads the definition of a test function and the message of its failure. Makes a text such as "After `x.pop(2)`,
`list(x[1:4])` should be `[1, 3, 4]`." from the calls of the test and what it expects of them. Guarantees: nothing of
the repair is read; nothing runs; the same test gives the same text; a text uses the package under test, if only in the
definition of a helper that stands in it, and tells no check that held before the one that failed.
"""

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from repairgym.tasks.build.test_files import FunctionNode
from repairgym.tasks.issues.scope import Scope, loaded_names

_WORD = re.compile(r"[A-Za-z_]\w+")
_CHANGING_CALLS = frozenset({"pop", "popitem", "next", "get_next", "get_prev", "read", "send", "setdefault", "update"})
"""Methods whose calls in earlier checks change what a later one finds."""
_EQUALITIES = ("", "List", "Dict", "Tuple", "Set", "MultiLine", "Sequence", "Count")
_SYMBOLS = {
    **{f"assert{kind}Equal": "==" for kind in _EQUALITIES}, "assertEquals": "==", "assertNotEqual": "!=",
    "assertIs": "is", "assertIsNot": "is not", "assertIn": "in", "assertNotIn": "not in", "assertGreater": ">",
    "assertGreaterEqual": ">=", "assertLess": "<", "assertLessEqual": "<=",
}  # fmt: skip
_STATES = {
    "assertTrue": "true",
    "assertFalse": "false",
    "assertIsNone": "None",
    "assertIsNotNone": "something but None",
}
_RAISING = frozenset({"raises", "assertRaises", "assertRaisesRegex"})
_WARNING = frozenset({"warns", "assertWarns", "assertWarnsRegex", "deprecated_call"})
MAX_CHARS = 1200
MAX_ROWS = 3
"""Failing rows of a table that are told."""
MAX_INLINE = 2
"""More statements before a check are a block of their own."""


@dataclass(frozen=True)
class Check:
    """One expectation of a test."""

    sentence: str
    """Expected behaviour, without the steps before."""
    node: ast.stmt
    before: tuple[ast.stmt, ...]
    """Statements of the test that come first."""
    loops: tuple[ast.For, ...] = ()

    @cached_property
    def steps(self) -> list[ast.stmt]:
        """Return the statements that this check depends on."""
        targets = frozenset[str]().union(*(_bound(ast.Expr(loop.target)) for loop in self.loops))
        needed = (loaded_names(self.node) | set().union(*(loaded_names(loop.iter) for loop in self.loops))) - targets
        kept: set[int] = set()
        while True:
            # What is made from a needed value may change it, so that later calls on it count, too.
            numbers = {number for number, stmt in enumerate(self.before) if _matters(stmt, needed)}
            if numbers == kept:
                return [self.before[number] for number in sorted(kept)]
            kept = numbers
            needed |= set().union(*(loaded_names(self.before[n]) | _bound(self.before[n]) for n in kept)) - targets


class ProvenCheck(NamedTuple):
    """A check that fails before the repair and holds after it."""

    is_whole: bool
    """True: it needs all statements before it; False: those suffice that it depends on."""
    message: str = ""
    """First line of its failure."""


Proof = Mapping[int, ProvenCheck]
"""Line of a check -> how it is proven."""


class Statement(NamedTuple):
    """A statement of behaviour."""

    text: str = ""
    """Empty: nothing can be told."""
    line: int = 0
    """Line of the check that it tells."""


@dataclass(frozen=True)
class Clues:
    """Facts that decide which of a test's expectations is told."""

    wanted: Collection[str] = ()
    """Untold names, exceptions and literals."""
    names: Collection[str] = ()
    """Names that the repair touches or brings."""
    message: str = ""
    """First line of the failure."""
    line: int = 0
    """Line of the test function that failed, itself or in what it called; 0: not known."""

    def score(self, check: Check) -> int:
        """Return how much ``check`` tells."""
        text = " ".join(ast.unparse(stmt) for stmt in (*check.steps, check.node))
        words = set(_WORD.findall(text))
        own = {text for text in map(repr, _values(check.node)) if len(text) > 2} - {"None", "True", "False"}
        quoted = set(_WORD.findall(" ".join(re.findall(r"'([^']{2,40})'", self.message))))
        is_raising = isinstance(check.node, ast.With) and bool(
            re.search("did not raise|not raised", self.message, re.I)
        )
        is_failing = check.node.lineno <= self.line <= (check.node.end_lineno or 0)
        return (
            20 * is_failing
            + 8 * sum(item in words or item in text for item in self.wanted)
            + 6 * is_raising
            + 3 * sum(value in self.message for value in own)
            + 2 * len(quoted & words)
            + 2 * bool(set(self.names) & words)
        )


def state_behaviour(
    function: FunctionNode,
    clues: Clues,
    parameters: Sequence[str] = (),
    scope: Scope | None = None,
    proof: Proof | None = None,
) -> Statement:
    """Return the expectation of ``function`` that tells most.

    ``parameters`` are the bracketed parts of its failing test ids; ``scope`` is what stands around it (None: unknown);
    of ``proof`` one check has to be told (None: none was tried).
    """
    given = _given(function, parameters, scope)
    checks = checks_of(function)
    if proof is not None:
        checks = [check for check in checks if check.node.lineno in proof]
    else:  # what comes before the line that failed holds
        checks = [check for check in checks if (check.node.end_lineno or 0) >= clues.line] or checks
    texts = []
    for number, check in enumerate(checks):
        is_whole = proof is not None and proof[check.node.lineno].is_whole
        text = _tell(check, function, scope, is_whole=is_whole)
        if text and len(text) <= MAX_CHARS:
            texts.append((clues.score(check), -number, text, check.node.lineno))
    if not texts or given is None:
        return Statement()
    _, _, text, line = max(texts)
    return Statement(f"With {given}, {text[:1].lower()}{text[1:]}" if given else text, line)


def _tell(check: Check, function: FunctionNode, scope: Scope | None, *, is_whole: bool) -> str:
    """Return the text of ``check``; empty where it says nothing of the package."""
    parts: list[ast.stmt] = body_of(check, function) if is_whole else check.steps
    if scope is not None:
        nodes = [*parts, check.node, *(loop.iter for loop in check.loops)]
        arguments = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        definitions = scope.definitions(nodes, {*arguments, *frozenset[str]().union(*map(_bound, check.before))})
        if not scope.reaches([*nodes, *definitions], arguments):
            return ""
        parts = [*definitions, *parts]
    steps = [ast.unparse(stmt) for stmt in parts if not _is_doc(stmt)]
    block = "\n".join(f"    {line}" for step in steps for line in step.splitlines())
    if is_whole:
        return f"This should run without an error:\n\n{block}"
    loops = "".join(f"for each `{ast.unparse(loop.target)}` of `{ast.unparse(loop.iter)}`, " for loop in check.loops)
    if not steps:
        return _capitalized(f"{loops}{check.sentence}.")
    if len(steps) <= MAX_INLINE and not any("\n" in step for step in steps):
        return f"After {' and '.join(f'`{step}`' for step in steps)}, {loops}{check.sentence}."
    return f"After\n\n{block}\n\n{loops}{check.sentence}."


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


# --- checks of a test ----------------------------------------------------------------------------------------------


def checks_of(function: FunctionNode) -> list[Check]:
    """Return the expectations of a test; without any its last statement, which has to end."""
    return list(_checks(function.body, (), ())) or _last_call(function)


def is_check(stmt: ast.stmt) -> bool:
    """Return whether ``stmt`` tells an expectation."""
    return bool(_sentence(stmt))


def body_of(check: Check, function: FunctionNode) -> list[ast.stmt]:
    """Return all statements of ``function`` up to ``check``, without its other checks."""
    return _kept(function.body, check.node)


def _kept(body: Sequence[ast.stmt], target: ast.stmt) -> list[ast.stmt]:
    kept: list[ast.stmt] = []
    for stmt in body:
        if stmt is target:
            return [*kept, stmt]
        is_around = any(child is target for child in ast.walk(stmt))
        if isinstance(stmt, ast.For | ast.With | ast.AsyncWith | ast.If | ast.Try) and is_around:
            inner = copy(stmt)
            inner.body = _kept(stmt.body, target)
            return [*kept, inner]
        if not is_check(stmt):
            kept.append(stmt)
    return kept


def _checks(body: Sequence[ast.stmt], before: tuple[ast.stmt, ...], loops: tuple[ast.For, ...]) -> Iterator[Check]:
    for number, stmt in enumerate(body):
        first = (*before, *body[:number])
        if sentence := _sentence(stmt):
            yield Check(sentence, stmt, first, loops)
        if isinstance(stmt, ast.For):
            yield from _checks(stmt.body, first, (*loops, stmt))
        elif isinstance(stmt, ast.With | ast.AsyncWith | ast.If | ast.Try):
            yield from _checks(stmt.body, first, loops)


def _last_call(function: FunctionNode) -> list[Check]:
    """Return the last call of a test without checks: it only has to end."""
    calls = [
        number
        for number, stmt in enumerate(function.body)
        if not isinstance(stmt, ast.Pass | ast.Return) and not _is_doc(stmt)
    ]
    if not calls:
        return []
    last = function.body[calls[-1]]
    return [Check(f"`{ast.unparse(last)}` should raise no exception", last, tuple(function.body[: calls[-1]]))]


def _is_doc(stmt: ast.stmt) -> bool:
    return isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Constant)


@lru_cache(maxsize=4096)
def _sentence(stmt: ast.stmt) -> str:
    """Return what ``stmt`` expects; empty for no check."""
    if isinstance(stmt, ast.Assert):
        return _condition(stmt.test)
    if isinstance(stmt, ast.With) and isinstance(call := stmt.items[0].context_expr, ast.Call):
        code = "; ".join(ast.unparse(child) for child in stmt.body)
        return _raising(call, code) if _called(call) in _RAISING | _WARNING else ""
    if isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call):
        return _method(stmt.value)
    return ""


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _method(call: ast.Call) -> str:
    """Return what a call such as ``self.assertEqual(a, b)`` expects."""
    name, values = _called(call), call.args
    if name in _SYMBOLS and len(values) >= 2:
        left, right = values[0], values[1]
        return _comparison(left, _SYMBOLS[name], right)
    if name in _STATES and values:
        return f"`{ast.unparse(values[0])}` should be {_STATES[name]}"
    if name == "assertIsInstance" and len(values) >= 2:
        return f"`{ast.unparse(values[0])}` should be an instance of `{ast.unparse(values[1])}`"
    num_own = 2 if name.endswith("Regex") else 1
    if name in _RAISING | _WARNING and len(values) > num_own:
        arguments = ", ".join([*map(ast.unparse, values[num_own + 1 :]), *map(ast.unparse, call.keywords)])
        return _raising(ast.Call(call.func, values[:num_own], []), f"{ast.unparse(values[num_own])}({arguments})")
    return f"`{ast.unparse(call)}` should hold" if name.startswith("assert_") else ""


def _raising(call: ast.Call, code: str) -> str:
    is_deprecation = _called(call) == "deprecated_call"
    if not call.args and not is_deprecation:
        return ""
    kind = "DeprecationWarning" if is_deprecation else ast.unparse(call.args[0])
    patterns = [keyword.value for keyword in call.keywords if keyword.arg == "match"]
    if _called(call).endswith("Regex"):
        patterns = call.args[1:2]
    told = f" with a message that matches `{ast.unparse(patterns[0])}`" if patterns else ""
    return f"`{code}` should {'raise' if _called(call) in _RAISING else 'warn with'} `{kind}`{told}"


def _condition(test: ast.expr) -> str:
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        operator = ast.unparse(ast.Compare(ast.Name("a"), test.ops, [ast.Name("b")]))[2:-2]
        return _comparison(test.left, operator, test.comparators[0])
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return f"`{ast.unparse(test.operand)}` should be false"
    return f"`{ast.unparse(test)}` should be true"


def _comparison(left: ast.expr, operator: str, right: ast.expr) -> str:
    if operator not in ("==", "is"):
        return f"`{ast.unparse(left)} {operator} {ast.unparse(right)}` should be true"
    # A side without a call is the expectation.
    is_swapped = not _has_call(left) and _has_call(right)
    subject, expected = (right, left) if is_swapped else (left, right)
    return f"`{ast.unparse(subject)}` should be `{ast.unparse(expected)}`"


def _has_call(node: ast.AST) -> bool:
    return any(isinstance(child, ast.Call | ast.Subscript | ast.Attribute | ast.Name) for child in ast.walk(node))


def _values(node: ast.AST) -> list[object]:
    """Return the plain constants and collections of constants below ``node``."""
    values: list[object] = []
    for child in ast.walk(node):
        if isinstance(child, ast.Constant | ast.Tuple | ast.List | ast.Dict):
            try:
                values.append(ast.literal_eval(child))
            except ValueError:
                continue
    return values


# --- what a check depends on ---------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _bound(stmt: ast.stmt) -> frozenset[str]:
    if isinstance(stmt, FunctionNode | ast.ClassDef):
        return frozenset({stmt.name})
    if isinstance(stmt, ast.Import | ast.ImportFrom):
        return frozenset((alias.asname or alias.name).partition(".")[0] for alias in stmt.names)
    names = (child for child in ast.walk(stmt) if isinstance(child, ast.Name))
    return frozenset(name.id for name in names if isinstance(name.ctx, ast.Store))


@lru_cache(maxsize=4096)
def _changed(stmt: ast.stmt) -> frozenset[str]:
    """Return the names in calls of ``stmt`` that change what they are made on."""
    calls = (child for child in ast.walk(stmt) if isinstance(child, ast.Call) and _called(child) in _CHANGING_CALLS)
    return frozenset[str]().union(*map(loaded_names, calls)) - {"self"}


def _matters(stmt: ast.stmt, needed: Set[str]) -> bool:
    """Return whether ``stmt`` binds or changes one of ``needed``."""
    if _bound(stmt) & needed:
        return True
    if isinstance(stmt, ast.For | ast.While):
        return bool(loaded_names(stmt) & (needed - {"self"})) and not any(_sentence(child) for child in stmt.body)
    if _sentence(stmt):
        return bool(_changed(stmt) & needed)
    is_changing = isinstance(stmt, ast.Expr | ast.Delete | ast.Assign | ast.AugAssign) and not _is_doc(stmt)
    return is_changing and bool(loaded_names(stmt) & (needed - {"self"}))


# --- parameters of a test ------------------------------------------------------------------------------------------


def _given(function: FunctionNode, parameters: Sequence[str], scope: Scope | None) -> str | None:
    """Return the parameters of failing cases, as ``x`` = ``1``; None where it is not sure which ones fail."""
    parts = []
    for decorator in function.decorator_list:
        if not (isinstance(decorator, ast.Call) and _called(decorator) == "parametrize" and len(decorator.args) >= 2):
            continue
        names, cases = _argument_names(decorator.args[0]), decorator.args[1]
        if scope is not None:
            cases = scope.value_of(cases)
        if not isinstance(cases, ast.List | ast.Tuple):
            if scope is not None:
                return None
            parts.append(f"{', '.join(f'`{name}`' for name in names)} of `{ast.unparse(cases)}`")
            continue
        failing = _failing_rows(decorator, names, cases.elts, parameters)
        if not failing:
            return None
        told = [" and ".join(f"`{n} = {ast.unparse(v)}`" for n, v in zip(names, row, strict=False)) for row in failing]
        parts.append("; or with ".join(told[:MAX_ROWS]))
    return " and ".join(parts)


def _failing_rows(
    decorator: ast.Call, names: Sequence[str], cases: Sequence[ast.expr], parameters: Sequence[str]
) -> list[list[ast.expr]]:
    """Return the rows of a decorator that the ids of failing cases name; none where that is not sure."""
    given = next((keyword.value for keyword in decorator.keywords if keyword.arg == "ids"), None)
    rows = [_row(case, len(names)) for case in cases]
    if given is None:
        ids = [_case_ids(case, row, names, number) for number, (case, row) in enumerate(zip(cases, rows, strict=True))]
    elif isinstance(given, ast.List | ast.Tuple) and len(given.elts) == len(rows):
        ids = [{str(node.value)} if isinstance(node, ast.Constant) else set() for node in given.elts]
    else:
        return []
    counts = Counter(name for of_row in ids for name in of_row)
    unique = [{name for name in of_row if counts[name] == 1} for of_row in ids]
    whole = [row for row, of_row in zip(rows, unique, strict=True) if of_row & set(parameters)]
    # With several decorators an id has a part of each.
    parts = [f"-{parameter}-" for parameter in parameters]
    return whole or [
        row
        for row, of_row in zip(rows, unique, strict=True)
        if any(f"-{name}-" in part for name in of_row if name for part in parts)
    ]


def _argument_names(node: ast.expr) -> list[str]:
    texts = [str(child.value) for child in ast.walk(node) if isinstance(child, ast.Constant)]
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def _row(case: ast.expr, num_names: int) -> list[ast.expr]:
    if isinstance(case, ast.Call) and _called(case) == "param":
        return list(case.args)
    if num_names > 1 and isinstance(case, ast.Tuple | ast.List):
        return list(case.elts)
    return [case]


def _case_ids(case: ast.expr, row: Sequence[ast.expr], names: Sequence[str], number: int) -> set[str]:
    """Return the ids that pytest may give a case: a value without one is named by its argument and number."""
    if isinstance(case, ast.Call):
        for keyword in case.keywords:
            if keyword.arg == "id" and _called(case) == "param":
                return {str(keyword.value.value)} if isinstance(keyword.value, ast.Constant) else set()
    ids = {""}
    for place, (name, value) in enumerate(zip(names, row, strict=False)):
        own = {f"{name}{number}"}
        if isinstance(value, ast.Constant) and isinstance(value.value, str | bytes):
            text = value.value if isinstance(value.value, str) else value.value.decode("latin-1")
            own = {text.encode("unicode_escape").decode()}
        elif isinstance(value, ast.Constant) or (
            isinstance(value, ast.UnaryOp) and isinstance(value.operand, ast.Constant)
        ):
            own = {ast.unparse(value)}
        elif isinstance(value, ast.Name | ast.Attribute):  # a class or function has its name, another object none
            own.add(ast.unparse(value).rpartition(".")[2])
        elif isinstance(value, ast.Lambda):
            own.add("<lambda>")
        ids = {f"{first}-{last}" if place else last for first in ids for last in own}
    return ids
