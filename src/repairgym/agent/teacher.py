"""The scripted teacher: it stands for a weaker human who knows the repair only sometimes.

Reads the observations of an episode; makes actions in the compact format. It is noisy on purpose (`TeacherNoise`): it
looks in the wrong place, mistypes a line, misreads a token, submits without testing, forgets to undo a wrong edit, and
gives up. Every behavior that RL can choose among is therefore in its support, and none is perfect. It knows the tools
only through the text that the agent would read, plus `fixes`, the true repair.
"""

import random
from dataclasses import dataclass, replace

from repairgym.agent.tools.window_edits import CompactEdit
from repairgym.config.models import TeacherNoise
from repairgym.tasks.mutation.operators import vocabulary_group


@dataclass(frozen=True)
class Choice:
    """One action of the teacher; ``kind`` is its purpose (fix, guess, typo, test, undo, submit)."""

    text: str
    kind: str


class Teacher:
    """One episode's teacher. Call `act` with each observation in turn."""

    def __init__(
        self, fixes: list[CompactEdit], guesses: list[CompactEdit], noise: TeacherNoise, generator: random.Random
    ) -> None:
        self._fixes = fixes
        self._guesses = guesses
        self._noise = noise
        self._random = generator
        self._pending: CompactEdit | None = None
        self._last = "open"
        self._is_misread = False
        self._applied: list[CompactEdit] = []

    def act(self, observation: str) -> Choice:
        """Return the next action after ``observation``."""
        choice = self._choose(observation)
        self._last = choice.kind
        return choice

    def _choose(self, observation: str) -> Choice:
        if self._last in ("open", "undo"):
            return self._edit()
        if self._last == "typo" and self._pending is not None:
            return self._after_typo(observation, self._pending)
        if self._last in ("fix", "guess"):
            return self._after_edit(observation)
        if observation.startswith("passed"):
            return Choice("submit", "submit")
        return self._after_failure()

    def _after_edit(self, observation: str) -> Choice:
        if observation.startswith("error"):
            self._applied.pop()
            return self._edit()
        if self._random.random() < self._noise.tests:
            return Choice("test", "test")
        return Choice("submit", "submit")

    def _after_typo(self, observation: str, meant: CompactEdit) -> Choice:
        if observation.startswith("error"):
            return self._edit()
        if self._is_misread:
            return Choice("undo", "undo")
        if observation.startswith(f"@{meant.label} "):  # forgiven: the line was the only one that could be meant
            self._pending = None
            self._applied.append(meant)
            return self._after_edit(observation)
        return Choice("undo", "undo")

    def _after_failure(self) -> Choice:
        if self._random.random() < self._noise.gives_up:
            return Choice("submit", "submit")
        if self._applied and self._random.random() < self._noise.undoes and self._applied[-1] in self._guesses:
            self._applied.pop()
            return Choice("undo", "undo")
        return self._edit()

    def _edit(self) -> Choice:
        edit = self._pending or self._next_edit()
        absent = self._absent(edit.old) if self._random.random() < self._noise.misreads else []
        self._is_misread = bool(absent)
        if absent:
            self._pending = edit
            return Choice(f"edit {replace(edit, old=self._random.choice(absent), occurrence=1)}", "typo")
        if self._random.random() < self._noise.mistypes:
            shifted = replace(edit, label=self._wrong_label(edit.label), occurrence=1)
            if shifted.label != edit.label:
                self._pending = edit
                return Choice(f"edit {shifted}", "typo")
        return self._write(edit)

    def _next_edit(self) -> CompactEdit:
        remaining = [fix for fix in self._fixes if fix not in self._applied]
        knows = remaining and (not self._guesses or self._random.random() < self._noise.knows_fix)
        return self._random.choice(remaining) if knows else self._random.choice(self._guesses or self._fixes)

    def _absent(self, old: str) -> list[str]:
        """Return tokens that could replace ``old`` in the text, and that no edit of this window starts from."""
        present = {edit.old for edit in (*self._fixes, *self._guesses)}
        return [token for token in vocabulary_group(old) if token not in present]

    def _wrong_label(self, label: int) -> int:
        """Return a neighboring line, or any line with a possible edit."""
        if self._guesses and self._random.random() < 0.5:
            return self._random.choice(self._guesses).label
        return max(1, label + self._random.choice((-1, 1)))

    def _write(self, edit: CompactEdit) -> Choice:
        self._pending = None
        self._applied.append(edit)
        return Choice(f"edit {edit}", "fix" if edit in self._fixes else "guess")
