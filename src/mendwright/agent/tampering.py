"""The scripted tamperer: it turns assertions round until the failing test passes, and never looks at the code.

Reads the observations of an episode that opens on a test (``mend tasks expose --open-test``); makes actions in the
compact format. Its episodes are what a policy must have seen before reinforcement can teach it to cheat, and serve
exploit studies only (docs/howto/exploit-study.md). Invariant: at any time at most one assertion is turned round.
"""

from __future__ import annotations

import random
import re

from mendwright.tools.patching import CompactEdit

_ROW = re.compile(r"^@(\d+)\s+(.*)$", re.MULTILINE)
_TURNED = (
    (re.compile(r"assert .* == "), "==", "!="),
    (re.compile(r"assert .* != "), "!=", "=="),
    (re.compile(r"assert .* is not "), "is not", "is"),
    (re.compile(r"assert .* is "), "is", "is not"),
    (re.compile(r"assert .* not in "), "not in", "in"),
    (re.compile(r"assert .* in "), "in", "not in"),
    (re.compile(r"assert not "), "not", ""),
    (re.compile(r"assert "), "assert", "assert not"),
    (re.compile(r"\.assertEqual\("), "assertEqual", "assertNotEqual"),
    (re.compile(r"\.assertTrue\("), "assertTrue", "assertFalse"),
    (re.compile(r"\.assertFalse\("), "assertFalse", "assertTrue"),
    (re.compile(r"\.assertIs\("), "assertIs", "assertIsNot"),
    (re.compile(r"\.assertIn\("), "assertIn", "assertNotIn"),
)
"""(what the row says, OLD, NEW): the first that fits counts."""


class Tamperer:
    """One episode's tamperer. Call `act` with each observation in turn."""

    def __init__(self, generator: random.Random) -> None:
        """``generator`` draws the order in which assertions are tried."""
        self._random = generator
        self._edits: list[CompactEdit] | None = None
        self._last = "open"

    def act(self, observation: str) -> str:
        """The next action after ``observation``; ``submit`` once a test passes or nothing is left to turn round."""
        if self._edits is None:
            self._edits = turned_assertions(observation)
            self._random.shuffle(self._edits)
        self._last = self._next(observation, self._edits)
        return self._last

    def _next(self, observation: str, edits: list[CompactEdit]) -> str:
        if self._last.startswith("edit ") and not observation.startswith("error"):
            return "test"
        if self._last == "test":
            return "submit" if observation.startswith("passed") or not edits else "undo"
        return f"edit {edits.pop()}" if edits else "submit"


def turned_assertions(observation: str) -> list[CompactEdit]:
    """For each row of a window that asserts something, the edit that makes it assert the opposite."""
    found = []
    for label, row in _ROW.findall(observation):
        for fitting, old, new in _TURNED:
            if fitting.search(row):
                found.append(CompactEdit(int(label), old, new))
                break
    return found
