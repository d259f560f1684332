"""Varied inputs of a replay: recorded scripts with another literal or list, and wrong variants of the code.

Reads scripts and gold files; makes further scripts and files. Guarantees: a draw follows from its seed; each varied
script differs from its origin in one literal or list; each variant differs in one operator of a repaired function from
gold or from the broken code, or from gold in all checks of the repaired functions.
"""

import ast
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, AnyStr

from repairgym.diffs.lines import source_lines
from repairgym.records import Task
from repairgym.tasks.mutation.operators import Mutation, apply, find_functions, find_sites
from repairgym.tasks.replay.scripts import Script, lists, literals, with_literal

Files = Mapping[str, str | None]
_MAX_STEPS = 80
"""A longer script is replayed as recorded only."""
_NUM_FROM_POOL = 2
_VARIED_TYPES = (bool, int, float, str, bytes)
_OF_ANY_TYPE = (None, 0, "", 1.5)
_SHARE = 4
"""One of so many varied scripts has a literal of another type, which only a check of the input tells from the rest."""
_LONG, _MAX_LONG_CHARS = 20, 2000
"""Repetitions of a text or a list that make it long."""
_NARROWINGS = (
    "False",
    "not isinstance({name}, (str, int, float, list, tuple, dict, bytes))",
    "len(repr({name})) > 60",
)
"""Conditions that narrow a check: to nothing, to values of unusual types, to long ones."""


def varied_scripts(scripts: Sequence[Script], limit: int, rng: random.Random) -> list[Script]:
    """Return at most ``limit`` copies of ``scripts`` with one other literal each: an edit, or one of another script.

    Some have a list with other elements instead. One of another type is marked as unusual.
    """
    pool = pool_of(scripts)
    short = [script for script in scripts if len(script.steps) <= _MAX_STEPS]
    changes = [
        (script, place, value, type(old))
        for script in short
        for place, old in literals(script)
        if type(old) in _VARIED_TYPES
        for value in other_literals(old, pool, rng)
    ]
    of_lists = [
        (script, place, value, list) for script in short for place, old in lists(script) for value in other_lists(old)
    ]
    others = [change for change in changes if type(change[2]) is not change[3]]
    same = [change for change in changes if type(change[2]) is change[3]]
    chosen = [change for some in (others, of_lists) for change in rng.sample(some, min(limit // _SHARE, len(some)))]
    chosen += rng.sample(same, min(limit - len(chosen), len(same)))
    rng.shuffle(chosen)
    return [
        with_literal(script, place, value, f"{script.id}#{number}", is_unusual=type(value) is not kind)
        for number, (script, place, value, kind) in enumerate(chosen)
    ]


def pool_of(scripts: Sequence[Script]) -> dict[type, list[Any]]:
    """Return the literals of ``scripts`` by type, each once, in their order."""
    by_type: dict[type, dict[Any, None]] = {}
    for script in scripts:
        for _, value in literals(script):
            if type(value) in _VARIED_TYPES:
                by_type.setdefault(type(value), {})[value] = None
    return {kind: list(values) for kind, values in by_type.items()}


def other_lists(old: list[Any]) -> list[list[Any]]:
    """Return operands of lists that may stand in the place of the list ``old``: shorter, longer, in another order."""
    values = [old[:-1], [*old, old[-1]], ["L", *old[:0:-1]], [*old, *old[1:] * _LONG]]
    return [value for value in values if value != old]


def other_literals(old: Any, pool: Mapping[type, list[Any]], rng: random.Random) -> list[Any]:
    """Return values that may stand in the place of ``old``, some of them of another type."""
    if type(old) not in _VARIED_TYPES:
        return []
    known = pool.get(type(old), [])
    values = [*_edits(old), *rng.sample(known, min(_NUM_FROM_POOL, len(known)))]
    values += [value for value in _OF_ANY_TYPE if type(value) is not type(old)]
    return [value for number, value in enumerate(values) if value != old and value not in values[:number]]


def _edits(old: Any) -> tuple[Any, ...]:
    """Return neighbours of ``old``; none for a value of another type."""
    if type(old) is bool:
        return (not old,)
    if type(old) is int or type(old) is float:
        return (old + 1, old - 1, -old, type(old)(0))
    if type(old) is str:
        middle = len(old) // 2
        others = (f"{old[:middle]} /\u00e9{old[middle:]}", re.sub(r"\d", "0", old), _stretched(old))
        return (old[:-1], old[1:], old * 2, _long(old), "", old[::-1], old.upper(), *others, *_without_parts(old))
    if type(old) is bytes:
        return (old[:-1], old[1:], old * 2, _long(old), b"", old[::-1], old.upper(), *_without_parts(old))
    return ()


def _stretched(old: str) -> str:
    """Return ``old`` with each of its letters and digits repeated, which keeps its form where `_long` does not."""
    long = re.sub(r"\w", lambda match: match[0] * _LONG, old)
    return long if len(long) <= _MAX_LONG_CHARS else old


def _long(old: AnyStr) -> AnyStr:
    return old * _LONG if len(old) * _LONG <= _MAX_LONG_CHARS else old


def _without_parts(old: AnyStr) -> Iterator[AnyStr]:
    """Yield the halves of ``old``, and it with a character in the middle left out or doubled."""
    middle = len(old) // 2
    yield from (old[:middle], old[middle:], old[:middle] + old[middle + 1 :], old[: middle + 1] + old[middle:])


def gold_variants(task: Task, limit: int, rng: random.Random) -> list[Files]:
    """Return at most ``limit`` versions of the gold files that are wrong, as far as can be told from their text.

    Some have no or narrower checks in the functions that gold repairs, every fourth is the broken code with one other
    operator there, and the rest gold with one: first where gold differs from the broken code. None is either of them.
    """
    near: list[Files] = []
    far: list[Files] = []
    of_broken: list[Files] = []
    by_checks: dict[int, dict[str, str]] = {}
    for path, gold in task.gold_files.items():
        base = task.base_files.get(path)
        if gold is None or base is None or not path.endswith(".py"):
            continue
        known = frozenset(source_lines(base))
        for variants, text, other in (((near, far), gold, base), ((of_broken, of_broken), base, gold)):
            for mutation in _mutations(other, text):
                changed, is_known = apply(text, mutation), source_lines(text)[mutation.site.line - 1] in known
                if changed != other:
                    variants[is_known].append({**task.gold_files, path: changed})
        for number, text in enumerate(_other_checks(base, gold)):
            by_checks.setdefault(number, {})[path] = text
    chosen: list[Files] = []
    chosen += ({**task.gold_files, **files} for files in islice(by_checks.values(), limit))
    chosen += rng.sample(of_broken, min(limit // _SHARE, limit - len(chosen), len(of_broken)))
    operators = [*rng.sample(near, len(near)), *rng.sample(far, len(far))]
    return [*chosen, *operators[: limit - len(chosen)]]


def _mutations(base: str, gold: str) -> Iterator[Mutation]:
    """Yield the one-operator changes of the functions of ``gold`` that ``base`` has in another form."""
    try:
        lines = _repaired_lines(base, gold)
        for site in find_sites(gold):
            if site.line in lines:
                yield from (Mutation(site, new) for new in site.alternatives)
    except SyntaxError:
        return


def _other_checks(base: str, gold: str) -> Iterator[str]:
    """Yield ``gold`` with every ``if`` that ends in ``raise`` off, or narrower, in its repaired functions."""
    for narrowing in _NARROWINGS:
        try:
            lines, tree = _repaired_lines(base, gold), ast.parse(gold)
        except SyntaxError:
            return
        num_checks = 0
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        for function in functions:
            names = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
            for node in function.body if function.lineno in lines else ():
                for check in ast.walk(node):
                    if isinstance(check, ast.If) and isinstance(check.body[-1], ast.Raise):
                        narrower = ast.parse(narrowing.format(name=names[0] if names else "None"), mode="eval").body
                        check.test = ast.BoolOp(ast.And(), [check.test, narrower])
                        num_checks += 1
        if num_checks:
            yield ast.unparse(ast.fix_missing_locations(tree))


@lru_cache(maxsize=16)
def _repaired_lines(base: str, gold: str) -> frozenset[int]:
    """Return the lines of the functions of ``gold`` that ``base`` has in another form."""
    known = set(_function_texts(base))
    lines = source_lines(gold, keepends=True)
    spans = [span for span in find_functions(gold) if _text(lines, span.first_line, span.last_line) not in known]
    return frozenset(line for span in spans for line in range(span.first_line, span.last_line + 1))


def _function_texts(source: str) -> Iterator[str]:
    lines = source_lines(source, keepends=True)
    return (_text(lines, span.first_line, span.last_line) for span in find_functions(source))


def _text(lines: Sequence[str], first_line: int, last_line: int) -> str:
    return "".join(lines[first_line - 1 : last_line])
