"""Compared objects: scripts that make objects of the package in different ways and ask which of them are equal.

A test that compares two objects of the package asks code under test, on both sides. Reads scripts and the replays of
gold on them; makes scripts. Guarantees: only objects of one class, or of one form, are compared, and only where gold
calls an object equal to another one that is made alike; what is asked in the end, gold answers with yes or no.
"""

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations, zip_longest
from typing import NamedTuple

from repairgym.tasks.replay.joining import imports_of, placed
from repairgym.tasks.replay.oracle import Expected
from repairgym.tasks.replay.scripts import Replay, Script, literals, plain_steps, with_needed
from repairgym.tasks.replay.sending import Step

NUM_COMPARED, MAX_PAIRS = 6, 4
"""Scripts of an oracle that compare, and the pairs of each."""
_MAX_OBJECTS, _MAX_KINDS, _MAX_MAKING_STEPS, _MAX_STEPS = 6, 12, 8, 80
_QUESTIONS, _ANSWERS = ("eq", "ne", "lt"), ("true", "false")
Pair = tuple[int, int]


class Made(NamedTuple):
    """An object of the package, and the steps that make it."""

    kind: str
    steps: Script
    handle: int


def made_objects(scripts: Sequence[Script], gold: Replay, rng: random.Random) -> dict[str, list[Made]]:
    """Return objects of the package by class or form, made by different steps of ``scripts``."""
    by_kind: dict[str, dict[str, Made]] = defaultdict(dict)
    for script in rng.sample(scripts, len(scripts)):
        for observation in gold.observations.get(script.id, ()) if len(script.steps) <= _MAX_STEPS else ():
            kind = _kind(observation.value) if observation.part == "result" else ""
            handle = script.steps[observation.step].get("to")
            if kind and handle is not None and len(by_kind[kind]) < _MAX_OBJECTS:
                steps = with_needed(plain_steps(script)[: observation.step + 1], {observation.step})
                made = Script(script.id, steps, script.imports)
                if len(steps) <= _MAX_MAKING_STEPS:
                    by_kind[kind].setdefault(_way(made), Made(kind, made, handle))
    usable = [kind for kind, ways in by_kind.items() if len(ways) > 1]
    return {kind: list(by_kind[kind].values()) for kind in usable[:_MAX_KINDS]}


def _way(made: Script) -> str:
    """Return what distinguishes the making of an object, whatever its handles are."""
    return json.dumps([[(step["op"], step.get("name")) for step in made.steps], [value for _, value in literals(made)]])


def _kind(text: str) -> str:
    """Return the class of the object in a snapshot, or the form of a list of objects; empty for anything else."""
    match json.loads(text):
        case ["object" | "sub", str(name), *_]:
            return name
        case [("l" | "t") as form, [["object" | "sub", str(name), *_], *_] as parts]:
            return f"{form}{len(parts)}:{name}"
    return ""


def trial_scripts(objects: Mapping[str, Sequence[Made]]) -> list[Script]:
    """Return a script for each kind of ``objects`` that compares all of them, the first with one made alike, too."""
    return [_comparing((*ones, ones[0]), _pairs(ones), f"compared:{kind}", ("eq",)) for kind, ones in objects.items()]


def _pairs(ones: Sequence[Made]) -> list[Pair]:
    return [(0, len(ones)), *combinations(range(len(ones)), 2)]


def compared_scripts(objects: Mapping[str, Sequence[Made]], golds: Sequence[Replay]) -> tuple[Script, ...]:
    """Return scripts with pairs of ``objects`` that gold distinguishes in all its replays of the trial scripts."""
    groups: list[list[tuple[Sequence[Made], list[Pair]]]] = []
    for kind, ones in objects.items():
        pairs, trial = _pairs(ones), f"compared:{kind}"
        seen = [
            [answer.value for answer in gold.observations.get(trial, ()) if answer.kind == "plain"] for gold in golds
        ]
        answers = [part[-len(pairs) :] for part in seen]
        if answers[0] != answers[-1] or len(answers[0]) < len(pairs) or answers[0][0] != "true":
            continue
        apart = [pair for pair, answer in zip(pairs, answers[0], strict=True) if answer == "false"]
        num_parts = -(-len(apart) // MAX_PAIRS)
        groups.append([(ones, apart[number::num_parts]) for number in range(num_parts)])
    turns = [part for turn in zip_longest(*groups) for part in turn if part is not None][:NUM_COMPARED]
    return tuple(
        _comparing(ones, pairs, f"compared+{number}", _QUESTIONS) for number, (ones, pairs) in enumerate(turns)
    )


def _comparing(ones: Sequence[Made], pairs: Sequence[Pair], new_id: str, questions: Sequence[str]) -> Script:
    used = sorted({number for pair in pairs for number in pair})
    parts = [ones[number].steps for number in used]
    steps, offsets = placed(parts)
    handles = {number: ["h", ones[number].handle + moved] for number, moved in zip(used, offsets, strict=True)}
    asked: list[Step] = [
        {"op": "compare", "name": name, "args": [handles[left], handles[right]], "is_varied": f"{new_id}:{number}"}
        for number, (left, right) in enumerate(pairs)
        for name in questions
    ]
    return Script(new_id, (*steps, *asked), imports_of(parts))


def only_yes_and_no(script: Script, expected: Sequence[Expected]) -> tuple[Expected, ...]:
    """Return what is judged of a script that compares: the questions that gold answers, not how objects are made."""
    return tuple(
        wanted for wanted in expected if script.steps[wanted.step].get("is_varied") and wanted.gold.text in _ANSWERS
    )
