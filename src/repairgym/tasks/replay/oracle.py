"""The oracle of a task: recorded scripts, and the values that gold and the broken code give on each of their steps.

Reads recordings and replays; makes an `Oracle` and its JSON form. Guarantees: a value counts only when every replay of
gold gave the same one (other hash seeds, shifted clocks) and no earlier step that it depends on was unstable; where
gold has no such value and the broken code raises an exception, any value counts as right; values are compared, never
read; the JSON form is the same for the same replays.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Literal, NamedTuple

from repairgym.records import ReplayStrength
from repairgym.tasks.replay.scripts import Observation, Replay, Script, tainted_steps, used_handles
from repairgym.tasks.replay.sending import Step

Place = tuple[int, str]
"""Step of a script, and the part of it that was observed."""
Group = Literal["fail_to_pass", "pass_to_pass", "wide", "compared", "varied"]
Kind = Literal["plain", "error", "state", "opaque", "any"]
_MAX_VALUE_CHARS = 200
"""Longer values are compared by digest, which keeps an oracle small."""


class Value(NamedTuple):
    """An observed value, in a form to compare."""

    kind: Kind
    text: str

    @classmethod
    def of(cls, observation: Observation) -> "Value":
        """Return the value of ``observation``."""
        return cls(observation.kind, shortened(observation.value))


ANY = Value("any", "")
"""Gold gives a value, no exception; which one is unstable, or cannot be compared."""


def shortened(text: str) -> str:
    """Return ``text`` itself, or its digest when it is long."""
    return text if len(text) <= _MAX_VALUE_CHARS else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


class Expected(NamedTuple):
    """One judged step."""

    step: int
    part: str
    gold: Value
    broken: Value | None
    """None: the broken code does not get there."""
    is_asserted: bool

    @property
    def place(self) -> Place:
        """Place in the script."""
        return self.step, self.part

    def accepts(self, value: Value | None) -> bool:
        """Return True when ``value`` is that of gold, or any value where any is right; None: not reached."""
        return value == self.gold or (self.gold == ANY and value is not None and value.kind != "error")

    @property
    def is_deciding(self) -> bool:
        """True when gold and broken differ in a value or an exception, not only in the state of objects."""
        return self.broken != self.gold and not self._kinds <= {"state", "opaque"}

    @property
    def is_used(self) -> bool:
        """True when the test looks at the value; an exception where there should be none ends it."""
        return self.is_asserted or "error" in self._kinds

    @property
    def _kinds(self) -> set[Kind]:
        return {self.gold.kind, self.broken.kind if self.broken else self.gold.kind}


@dataclass(frozen=True)
class Oracle:
    """Scripts of a task and the answers to them; nothing of it but the scripts enters a sandbox."""

    scripts: Mapping[Group, tuple[Script, ...]]
    expected: Mapping[str, tuple[Expected, ...]]
    """By script id."""
    strength: ReplayStrength
    duration_s: float
    """Longest replay of gold in one process."""
    executed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Script of `pass_to_pass` -> functions (``path::first_line``) of the files of gold that run in it."""

    def where_agreed(self, gold: Replay) -> "Oracle":
        """Return the oracle without the steps on which ``gold``, one more replay, differs, and without what follows.

        Some answers depend on where objects lie in memory: three replays may agree by accident. A step that ``gold``
        does not reach stays.
        """
        scripts = (script for group in self.scripts.values() for script in group)
        agreed = {script.id: _agreed(self.expected[script.id], gold, script) for script in scripts}
        return replace(self, expected=agreed)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "scripts": {group: [script.to_json() for script in scripts] for group, scripts in self.scripts.items()},
            "expected": {
                script_id: [list(expected) for expected in steps] for script_id, steps in self.expected.items()
            },
            "strength": self.strength.model_dump(mode="json"),
            "duration_s": self.duration_s,
            "executed": {script_id: sorted(functions) for script_id, functions in self.executed.items()},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Oracle":
        """Return the oracle of a JSON form."""
        scripts = {group: tuple(map(Script.from_json, rows)) for group, rows in content["scripts"].items()}
        expected = {script_id: tuple(map(_expected, rows)) for script_id, rows in content["expected"].items()}
        strength = ReplayStrength.model_validate(content["strength"])
        executed = {script_id: frozenset(functions) for script_id, functions in content["executed"].items()}
        return cls(scripts, expected, strength, content["duration_s"], executed)


def _expected(row: Sequence[Any]) -> Expected:
    step, part, gold, broken, is_asserted = row
    return Expected(step, part, Value(*gold), Value(*broken) if broken else None, is_asserted)


def expect(script: Script, golds: Sequence[Replay], broken: Replay) -> tuple[Expected, ...]:
    """Return the judged steps of ``script``: those on which all replays of gold agree, by order of the steps.

    They agree at least in raising no exception where the broken code raises one.
    """
    observed = [values_of(gold.observations.get(script.id, ())) for gold in golds]
    there = values_of(broken.observations.get(script.id, ()))
    asserted = {observation.step for observation in golds[0].observations.get(script.id, ()) if observation.is_asserted}
    tainted = _unstable(script, {step for step, _ in _differing(observed)})
    expected = []
    for place, gold in observed[0].items():
        answer, is_told = there.get(place), place[0] not in tainted and gold.kind != "opaque"
        if not is_told and answer and answer.kind == "error" and not any(map(_is_error, observed, repeat(place))):
            gold, is_told = ANY, True
        if is_told:
            expected.append(Expected(place[0], place[1], gold, answer, place[0] in asserted))
    return tuple(expected)


def _agreed(expected: Sequence[Expected], gold: Replay, script: Script) -> tuple[Expected, ...]:
    """Return those of ``expected`` that no other answer of ``gold`` makes doubtful."""
    values = values_of(gold.observations.get(script.id, ()))
    differing = {own.step for own in expected if own.place in values and not own.accepts(values[own.place])}
    unstable = _unstable(script, differing)
    return tuple(own for own in expected if own.step not in unstable)


def _unstable(script: Script, differing: Collection[int]) -> frozenset[int]:
    """Return the steps ``differing``, those that do the same with no object of the script, and what follows from them.

    A call that draws at random may give the same answer in each of a few replays, but seldom wherever it stands.
    """
    forms = {_form(script.steps[number]) for number in differing} - {""}
    alike = {number for number, step in enumerate(script.steps) if _form(step) in forms} if forms else set()
    return tainted_steps(script.steps, {*differing, *alike})


def _form(step: Step) -> str:
    """Return what ``step`` does; empty where an object of the script decides."""
    return "" if used_handles(step) else json.dumps([step.get(part) for part in ("op", "name", "args", "kwargs")])


def _is_error(values: Mapping[Place, Value], place: Place) -> bool:
    """Return True where a replay raised, or did not get to ``place``."""
    return place not in values or values[place].kind == "error"


def values_of(observations: Sequence[Observation]) -> dict[Place, Value]:
    """Return the values by place."""
    return {(observation.step, observation.part): Value.of(observation) for observation in observations}


def _differing(observed: Sequence[Mapping[Place, Value]]) -> Iterator[Place]:
    """Yield the places without one value that all replays gave."""
    for place in {place for values in observed for place in values}:
        if len({values.get(place) for values in observed}) > 1:
            yield place
