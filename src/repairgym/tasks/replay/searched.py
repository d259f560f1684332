"""Directed search of a replay: other inputs on which the broken code answers otherwise than the repaired one.

Reads scripts, and what gold and the broken code answered; makes scripts with one other operand each. Guarantees: only
operands are changed from which a deciding step follows; no script is made twice; a draw follows from its seed.
"""

import json
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from repairgym.tasks.replay.oracle import Expected
from repairgym.tasks.replay.scripts import Place, Script, lists, literals, used_handles, with_literal, with_needed
from repairgym.tasks.replay.sending import Step
from repairgym.tasks.replay.varied import other_lists, other_literals, pool_of

_MAX_STEPS = 200
"""A longer script does not become part of a set, whatever it decides."""
_NUM_CORES = 4
"""Deciding steps of one script that are looked at in one round."""
_MAX_TRIED = 200
"""Changes that are made to find scripts that are short and new: each copies its origin."""
_NUM_SPLICED = 3
_WORD = re.compile(r"\w+")
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
    bounds = _bounds(pool)
    turns = []
    for origin in origins:
        cores = _cores(origin, expected[origin.id], rng)
        changes = [change for core in cores for change in _changes(core, pool, globals_, rng)]
        ranks = [(1 + _novelty(change.value, bounds)) * rng.random() for change in changes]
        turns.append([changes[place] for place in sorted(range(len(changes)), key=ranks.__getitem__)])
    seen, made, num_steps, num_tried = set(known), list[Script](), 0, 0
    while any(turns) and len(made) < limit and num_tried < _MAX_TRIED:
        for changes in filter(None, turns):
            num_tried += 1
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


def _cores(origin: Script, expected: Sequence[Expected], rng: random.Random) -> Iterator[Script]:
    """Yield ``origin`` up to some of its deciding steps, without what these do not need."""
    deciding = sorted({wanted.step for wanted in expected if wanted.is_deciding})
    for number in rng.sample(deciding, min(_NUM_CORES, len(deciding))):
        steps = with_needed(origin.steps[: number + 1], {number})
        if len(steps) <= _MAX_STEPS:
            yield replace(origin, steps=steps)


def _changes(
    origin: Script, pool: Mapping[type, list[Any]], globals_: list[Any], rng: random.Random
) -> Iterator[_Change]:
    """Yield the other operands of steps from which the last one follows."""
    reach = _reaching(origin.steps)
    for place, old in literals(origin):
        if int(place[0]) in reach:
            for value in (*other_literals(old, pool, rng), *_far_literals(old, pool, rng)):
                yield _Change(origin, place, value, type(value) is not type(old))
    for place, old in lists(origin):
        if int(place[0]) in reach:
            for value in other_lists(old):
                yield _Change(origin, place, value, is_unusual=False)
    for number, step in enumerate(origin.steps):
        first = 1 if step["op"] in _CALLS else len(step["args"])
        for index, old in enumerate(step["args"][first:], first):
            if number in reach and old[0] in _PASSED_ON:
                others = [*globals_, *(["h", earlier["to"]] for earlier in origin.steps[:number] if "to" in earlier)]
                for value in others:
                    if value != old:
                        yield _Change(origin, (number, "args", index, 0), value, is_unusual=True)


def _far_literals(old: Any, pool: Mapping[type, list[Any]], rng: random.Random) -> Iterator[Any]:
    """Yield values of the type of ``old`` that are longer, larger or of more parts than those of the tests."""
    others = pool.get(type(old), [])
    if type(old) in (int, float):
        yield from (old + 1_000_003, -old - 1_000_003, old * 1001, old + type(old)(7.123456789))
    if type(old) is str:
        for other in rng.sample(others, min(_NUM_SPLICED, len(others))):
            middle = len(other) // 2
            yield from (old + other, f"{old} {other}", other[:middle] + old + other[middle:])
        yield from (f"{old} {old} {old}", f"{old}\u20ac", f"{old}9876543210", f"{old}\n{old}")
    if type(old) is bytes:
        yield from (old + other for other in rng.sample(others, min(_NUM_SPLICED, len(others))))


def _bounds(pool: Mapping[type, list[Any]]) -> dict[type, list[tuple[int, int]]]:
    """Return the least and the largest value of each feature of the literals in the tests, by type."""
    columns = {kind: zip(*map(_features, values), strict=True) for kind, values in pool.items()}
    return {kind: [(min(column), max(column)) for column in rows] for kind, rows in columns.items()}


def _novelty(value: Any, bounds: Mapping[type, list[tuple[int, int]]]) -> int:
    """Return the number of simple features in which ``value`` lies beyond all literals of its type in the tests.

    A repair for the inputs of the tests can only know them by features; what lies beyond those shows it.
    """
    known = bounds.get(type(value))
    pairs = zip(_features(value), known, strict=True) if known else ()
    return sum(not least <= own <= largest for own, (least, largest) in pairs)


def _features(value: Any) -> tuple[int, ...]:
    """Return length, words, digits, longest word, highest and different characters of a literal."""
    text = repr(value)
    runs = [len(run) for run in _WORD.findall(text)]
    return len(text), len(text.split()), sum(map(str.isdigit, text)), max(runs, default=0), ord(max(text)), len({*text})


def _reaching(steps: Sequence[Step]) -> frozenset[int]:
    """Return the numbers of the steps from which the last one follows, and its own."""
    needed: set[int] = set()
    reaching: set[int] = set()
    for number in range(len(steps) - 1, -1, -1):
        step = steps[number]
        if number == len(steps) - 1 or not needed.isdisjoint({step.get("to"), *step.get("after", ())}):
            reaching.add(number)
            needed |= used_handles(step)
    return frozenset(reaching)


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
