"""Directed search of a replay: other inputs on which the broken code answers otherwise than the repaired one.

Reads scripts, and what gold and the broken code answered; makes scripts with one other operand each. Guarantees: only
operands are changed from which a deciding step follows; no script is made twice; a draw follows from its seed.
"""

import json
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from repairgym.tasks.replay.oracle import Expected
from repairgym.tasks.replay.scripts import Place, Script, lists, literals, tainted_steps, with_literal
from repairgym.tasks.replay.varied import other_lists, other_literals, pool_of

_MAX_STEPS = 80
"""A longer script does not join a set, whatever it decides."""
_PASSED_ON = ("g", "h")
"""Operands that name an object: a global of a module, or the result of an earlier step."""
_CALLS = frozenset({"call", "method"})


class _Change(NamedTuple):
    origin: Script
    place: Place
    value: Any
    is_unusual: bool


def deciding_inputs(scripts: Iterable[Script], expected: Mapping[str, Sequence[Expected]]) -> frozenset[str]:
    """Return the other inputs of ``scripts`` from which a step follows that tells the broken code from gold."""
    return frozenset(
        step["is_varied"]
        for script in scripts
        for step, affected in script.varied_steps
        if any(wanted.is_deciding and wanted.step in affected for wanted in expected[script.id])
    )


def near_scripts(
    origins: Sequence[Script],
    expected: Mapping[str, Sequence[Expected]],
    known: Collection[str],
    limit: int,
    max_steps: int,
    rng: random.Random,
) -> list[Script]:
    """Return at most ``limit`` scripts of ``max_steps`` steps together that differ from one of ``origins`` in an input.

    ``known`` are the `form_of` those that were tried before. Origins take turns, so that long ones with many operands
    do not crowd out the others.
    """
    pool, globals_ = pool_of(origins), list(_globals(origins))
    turns = []
    for origin in origins:
        deciding = {wanted.step for wanted in expected[origin.id] if wanted.is_deciding}
        changes = list(_changes(origin, deciding, pool, globals_, rng)) if deciding else []
        turns.append(rng.sample(changes, len(changes)))
    seen, made, num_steps = set(known), list[Script](), 0
    while any(turns) and len(made) < limit:
        for changes in filter(None, turns):
            change = changes.pop()
            new_id = f"{change.origin.id.partition('#')[0]}#near{len(known) + len(made)}"
            script = with_literal(change.origin, change.place, change.value, new_id, is_unusual=change.is_unusual)
            form = form_of(script)
            if form in seen or len(script.steps) > _MAX_STEPS or num_steps + len(script.steps) > max_steps:
                continue
            seen.add(form)
            made.append(script)
            num_steps += len(script.steps)
    return made[:limit]


def form_of(script: Script) -> str:
    """Return what a script does, whatever its id is."""
    return json.dumps([{key: part for key, part in step.items() if key != "is_varied"} for step in script.steps])


def _changes(
    origin: Script, deciding: Collection[int], pool: Mapping[type, list[Any]], globals_: list[Any], rng: random.Random
) -> Iterator[_Change]:
    """Yield the other operands of steps from which one of the steps ``deciding`` follows."""
    reach = {
        number: not tainted_steps(origin.steps, {number}).isdisjoint(deciding) for number in range(len(origin.steps))
    }
    for place, old in literals(origin):
        if reach[int(place[0])]:
            for value in other_literals(old, pool, rng):
                yield _Change(origin, place, value, type(value) is not type(old))
    for place, old in lists(origin):
        if reach[int(place[0])]:
            for value in other_lists(old):
                yield _Change(origin, place, value, is_unusual=False)
    for number, step in enumerate(origin.steps):
        first = 1 if step["op"] in _CALLS else len(step["args"])
        for index, old in enumerate(step["args"][first:], first):
            if reach[number] and old[0] in _PASSED_ON:
                others = [*globals_, *(["h", one["to"]] for one in origin.steps[:number] if "to" in one)]
                for value in others:
                    if value != old:
                        yield _Change(origin, (number, "args", index, 0), value, is_unusual=True)


def _globals(scripts: Iterable[Script]) -> Iterator[Any]:
    """Yield the globals that calls of ``scripts`` hand on, each once."""
    operands = (
        operand
        for script in scripts
        for step in script.steps
        if step["op"] in _CALLS
        for operand in step["args"][1:]
        if operand[0] == "g"
    )
    yield from {json.dumps(operand): operand for operand in operands}.values()
