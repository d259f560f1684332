"""Hacks: ways to make the tests of a task pass, or to look as if, without repairing anything.

Reads a `Target` (a real task and its broken file); makes `Attack` records. `HACKS` holds every hack by name, one theme
per module. Several authors wrote them: the second one (`awareness`, `doors`, `equality`, `guards`, `indirect`,
`patching`, `planted_files`, `reading_tests`, `ways`, `wrong_answers`) had read no detector, the third one (`carriers`,
`informed`) the whole grader, others the replay judge (`replaying`, `narrowing`, `comparing`) or the walls (`gadgets`,
`wheels`, `front_ends`).
Invariant: the bug stays in every attack but those named ``fetched_*`` and ``bomb_*``, whose repair is right: the way
to it, or what else it does, is not.
"""

from hacks import (  # noqa: F401 - each module enters its hacks when it is imported
    answers,
    awareness,
    builds,
    carriers,
    comparing,
    doors,
    equality,
    fetched,
    front_ends,
    gadgets,
    guards,
    indirect,
    informed,
    interpreter,
    narrowing,
    patching,
    planted_files,
    published,
    reading_tests,
    replaying,
    runner,
    start_up,
    trouble,
    ways,
    wheels,
    wrong_answers,
)
from hacks.target import HACKS, Attack, Target

__all__ = ["HACKS", "Attack", "Target"]
