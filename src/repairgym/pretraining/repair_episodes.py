"""Simulated episodes on repairs that no operator made: real changes of releases, and free damage.

Reads the two texts of a function; makes `Segment` lists, as `synthetic` does for mutations. Invariants: an episode ends
in success; wrong attempts carry no loss; after a failed test they are undone.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from repairgym.agent.tools.window import render_line
from repairgym.agent.tools.window_edits import CompactEdit, token_spans
from repairgym.config.models import TeacherNoise
from repairgym.pretraining.repair_actions import repair_actions, text_of
from repairgym.pretraining.synthetic import Segment, SimulatedEpisode, random_message
from repairgym.tasks.build.assembly import mutation_issue

MAX_ACTIONS = 8
MAX_WRONG = 5
_WORD = re.compile(r"[A-Za-z_]\w*")
_SWAPS = {"==": "!=", "<": "<=", ">": ">=", "<=": "<", ">=": ">", "and": "or", "or": "and", "0": "1", "1": "0"} | {
    "+": "-", "-": "+", "True": "False", "False": "True", "is": "==", "in": "not in", "None": "0",
}  # fmt: skip
_FOUND = (
    "`{call}` should be `{value}`. Found: {message}",
    "`{call}` should raise no exception. Found: {message}",
    "After `{word} = {call}`, `{word}` should be `{value}`. Found: {message}",
    "{call} in {path} should be {value}, but: {message}",
)
"""Wordings of issues that were derived from tests (`tasks/issues`)."""
WORDINGS_SHARE = 0.4
"""Share of the issues in the plain wordings of mutations."""


@dataclass(frozen=True)
class Repair:
    """A function before and after a fix."""

    path: str
    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]


def play_repair(repair: Repair, noise: TeacherNoise, generator: random.Random) -> list[Segment] | None:
    """Return a successful episode; None where the repair is too long or cannot be written."""
    actions = repair_actions(repair.before, repair.after)
    if actions is None or len(actions) > MAX_ACTIONS:
        return None
    message = _message(repair, generator)
    episode = SimulatedEpisode(repair.path, text_of(repair.after), text_of(repair.before), message, generator)
    observation = episode.opening(_issue(repair, message, generator))
    segments: list[Segment] = []

    def act(text: str, kind: str) -> None:
        nonlocal observation
        segments.extend((Segment(observation, "context"), Segment(text, kind)))
        observation = episode.step(text)

    for _ in range(MAX_WRONG):
        if generator.random() < noise.knows_fix:
            break
        act(wrong_action(repair.before, actions, generator), "guess")
        if observation.startswith("error"):
            continue
        if episode.is_repaired:
            return None
        act("test", "test")
        act("undo", "undo")
    for action in actions:
        act(action, "fix")
    act("test", "test")
    act("submit", "submit")
    return segments if episode.is_repaired else None


def wrong_action(lines: Sequence[str], right: Sequence[str], generator: random.Random) -> str:
    """Return a plausible action on ``lines`` that is none of ``right``."""
    for _ in range(8):
        label = generator.randint(1, len(lines))
        line = lines[label - 1]
        tokens = [line[start:end] for start, end in token_spans(line)]
        swaps = [token for token in tokens if token in _SWAPS]
        names = [token for token in tokens if _WORD.fullmatch(token)]
        others = sorted(set(_WORD.findall(" ".join(lines))) - set(names))
        roll = generator.random()
        if roll < 0.4 and swaps:
            old = generator.choice(swaps)
            action = f"edit {CompactEdit(label, old, _SWAPS[old])}"
        elif roll < 0.7 and names and others:
            action = f"edit {CompactEdit(label, generator.choice(names), generator.choice(others))}"
        elif roll < 0.85:
            action = f"delete @{label}"
        else:
            other = generator.choice(list(lines))
            action = f"insert {render_line(label, other)}"
        if action not in right:
            return action
    return f"delete @{len(lines)}" if f"delete @{len(lines)}" not in right else "delete @1"


def _new_words(repair: Repair) -> list[str]:
    old = set(_WORD.findall(" ".join(repair.before)))
    return [word for word in dict.fromkeys(_WORD.findall(" ".join(repair.after))) if word not in old]


def _message(repair: Repair, generator: random.Random) -> str:
    words = _new_words(repair)
    if words and generator.random() < 0.3:
        word = generator.choice(words)
        short = repair.name.rpartition(".")[2]
        return generator.choice(
            (
                f"TypeError: {short}() got an unexpected keyword argument '{word}'",
                f"AttributeError: '{short}' object has no attribute '{word}'",
                f"NameError: name '{word}' is not defined",
                f"AssertionError: {word}",
            )
        )
    return random_message("\n".join(repair.before), generator)


def _issue(repair: Repair, message: str, generator: random.Random) -> str:
    if generator.random() < WORDINGS_SHARE:
        return mutation_issue(repair.name, repair.path, message, generator)
    words = (_new_words(repair) if generator.random() < 0.5 else []) or _WORD.findall(" ".join(repair.after)) or ["x"]
    arguments = ", ".join(_argument(words, generator) for _ in range(generator.randint(0, 3)))
    return generator.choice(_FOUND).format(
        call=f"{repair.name}({arguments})",
        value=_argument(words, generator),
        word=generator.choice(("result", "x", "value", "out")),
        path=repair.path,
        message=message,
    )


def _argument(words: Sequence[str], generator: random.Random) -> str:
    word = generator.choice(words)
    number = generator.randint(-3, 40)
    return generator.choice((str(number), f"'{word}'", f"{word}={number}", word, "None", "True", "[]", f"['{word}']"))
