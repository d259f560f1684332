"""How noisy the scripted teacher is (`agent/teacher.py`)."""

from __future__ import annotations

from repairgym.records import Record


class TeacherNoise(Record):
    """Probabilities of the teacher's choices."""

    knows_fix: float = 0.45
    """An edit is the true repair; otherwise a guess among the window's editable tokens."""
    mistypes: float = 0.06
    """An edit names a wrong line first."""
    misreads: float = 0.0
    """An edit first replaces a token that is not in the window, of the same kind as the one meant."""
    tests: float = 0.5
    """After an edit it runs the tests; otherwise it submits blind."""
    undoes: float = 0.85
    """After a failed run it takes the edit back; otherwise it edits on top."""
    gives_up: float = 0.15
    """After a failed run it submits as it is."""
