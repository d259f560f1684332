"""Varied calls of a replay: a recorded call done twice, or with an optional parameter that no test gives.

Reads scripts and gold files; makes scripts. Guarantees: each differs from its origin in one call, which is marked; a
parameter is given by its name, and only where the recorded call leaves it out.
"""

import ast
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from repairgym.tasks.replay.scripts import Script, around, plain_steps, used_handles
from repairgym.tasks.replay.sending import Step

_CALLS = frozenset({"call", "method"})
_FOR_NONE = (True, 1, "a")


class Parameter(NamedTuple):
    """An optional parameter of a function."""

    name: str
    num_before: int
    """Arguments that can stand before it by their place; -1: it is given by its name only."""
    values: tuple[Any, ...]
    """Values that are not its default."""


def optional_parameters(files: Mapping[str, str | None]) -> dict[str, tuple[Parameter, ...]]:
    """Return the optional parameters of the functions and classes of ``files`` by the last part of their names."""
    known: dict[str, tuple[Parameter, ...]] = {}
    for path, text in files.items():
        if text is None or not path.endswith(".py"):
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                made = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
                known[node.name] = tuple(parameter for part in made for parameter in _optional(part))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                known[node.name] = (*known.get(node.name, ()), *_optional(node))
    return known


def _optional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Parameter]:
    arguments = function.args
    placed = [argument.arg for argument in arguments.args]
    first = len(placed) - len(arguments.defaults)
    skipped = placed[:1] in (["self"], ["cls"])
    for number, default in enumerate(arguments.defaults, first):
        if number >= 0:
            yield Parameter(placed[number], number - skipped, _other_values(default))
    for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if value is not None:
            yield Parameter(argument.arg, -1, _other_values(value))


def _other_values(default: ast.expr) -> tuple[Any, ...]:
    """Return plain values in the place of ``default``; none where it is no plain value."""
    match default:
        case ast.Constant(bool() as value):
            return (not value,)
        case ast.Constant(int() as value):
            return (value + 1, value - 1)
        case ast.Constant(str() as value):
            return (f"{value} ", "a")
        case ast.Constant(None):
            return _FOR_NONE
    return ()


def varied_calls(
    scripts: Sequence[Script], parameters: Mapping[str, Sequence[Parameter]], limit: int, rng: random.Random
) -> list[Script]:
    """Return at most ``limit`` copies of ``scripts`` with a call that has another parameter, and as many done twice."""
    calls = [(script, number) for script in scripts for number, step in enumerate(script.steps) if step["op"] in _CALLS]
    given = [
        (script, number, parameter.name, value)
        for script, number in calls
        for parameter in parameters.get(_name(script.steps[number]), ())
        if _is_free(script.steps[number], parameter)
        for value in parameter.values
    ]
    with_more = [
        _given(*change, f"{change[0].id}*{place}")
        for place, change in enumerate(rng.sample(given, min(limit, len(given))))
    ]
    twice = rng.sample(calls, min(limit, len(calls)))
    return [*with_more, *(_repeated(*call, f"{call[0].id}={place}") for place, call in enumerate(twice))]


def _name(step: Step) -> str:
    """Return the last part of the name of what ``step`` calls; empty where a handle is called."""
    if step["op"] == "method":
        return str(step["name"])
    match step["args"]:
        case [["g", _, str(path)], *_]:
            return path.rpartition(".")[2]
    return ""


def _is_free(step: Step, parameter: Parameter) -> bool:
    is_placed = 0 <= parameter.num_before < len(step["args"]) - 1
    return not is_placed and parameter.name not in step.get("kwargs", {})


def _given(script: Script, number: int, name: str, value: Any, new_id: str) -> Script:
    steps = plain_steps(script)
    keywords = {**steps[number].get("kwargs", {}), name: ["l", value]}
    steps[number] |= {"kwargs": keywords, "is_varied": new_id, "is_unusual": True}
    return replace(script, id=new_id, steps=around(steps, number))


def _repeated(script: Script, number: int, new_id: str) -> Script:
    steps = plain_steps(script)
    again = {**steps[number], "to": 1 + max(_numbers(steps)), "is_varied": new_id}
    steps.insert(number + 1, again)
    return replace(script, id=new_id, steps=around(steps, number + 1))


def _numbers(steps: Iterable[Step]) -> Iterator[int]:
    for step in steps:
        yield from (step.get("to", 0), *step.get("after", ()), *used_handles(step))
