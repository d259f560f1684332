"""Issues of synthetic bugs, with the place told as far as wanted: function, file, or only the symptom.

Reads the broken functions, their failures and the test files. Makes the issue and the level that it really has, which
can be a lower one: a test may name the function in every failure. Guarantees: an issue of the level ``file`` names no
broken function, one of the level ``symptom`` no broken file either; the same seed gives the same text.
"""

import ast
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from repairgym.config.tasks import Localization
from repairgym.records import Task
from repairgym.tasks.build.assembly import first_line, mutation_issue, read_text
from repairgym.tasks.build.test_files import FunctionNode, function_id, walk_functions
from repairgym.tasks.issues.describing import Failure
from repairgym.tasks.issues.statement import Clues, state_behaviour
from repairgym.tasks.synthetic import LOCALIZATION, NUM_BUGS

_LEVELS: tuple[Localization, ...] = ("function", "file", "symptom")
"""From the most precise on."""
_FILE_WORDINGS = (
    "something in {path} is wrong: {message}",
    "{path} gives a wrong result: {message}",
    "bug in {path}: {message}",
)
_SYMPTOM_WORDINGS = ("this does not work any more: {message}", "wrong behaviour: {message}", "regression: {message}")


@dataclass(frozen=True)
class BrokenFunction:
    """A broken function and what shows it."""

    path: str
    name: str
    """Qualified name."""
    failures: Mapping[str, Failure]
    """Failing test -> its failure, the one to report first."""

    def is_named(self, text: str) -> bool:
        """Return True when ``text`` names the function."""
        return _is_word(self.name.rpartition(".")[2], text)

    def is_located(self, text: str) -> bool:
        """Return True when ``text`` names the function or its file."""
        return self.is_named(text) or self.path in text or _is_word(PurePosixPath(self.path).name, text)


def _is_word(word: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


def localized_issue(
    bugs: Sequence[BrokenFunction], level: Localization, tree: Path, seed: str
) -> tuple[str, Localization]:
    """Return the issue of ``bugs``, a paragraph each, and the most precise level of them; ``tree`` has the tests."""
    generator = random.Random(seed)
    told = [_told(bug, bugs, level, tree, generator) for bug in bugs]
    return "\n\n".join(text for text, _ in told), min((own for _, own in told), key=_LEVELS.index)


def _told(
    bug: BrokenFunction, bugs: Sequence[BrokenFunction], level: Localization, tree: Path, generator: random.Random
) -> tuple[str, Localization]:
    if level == "symptom":
        for text in (*_statements(bug, tree), *_failures(bug, _SYMPTOM_WORDINGS, generator)):
            if not any(other.is_located(text) for other in bugs):
                return text, "symptom"
    if level != "function":
        for text in _failures(bug, _FILE_WORDINGS, generator):
            if not any(other.is_named(text) for other in bugs):
                return text, "file"
    failure = next(iter(bug.failures.values()), Failure(""))
    return mutation_issue(bug.name, bug.path, failure.message, generator), "function"


def _failures(bug: BrokenFunction, wordings: Sequence[str], generator: random.Random) -> Iterator[str]:
    """Yield a report of each different message, and one of the test alone."""
    wording = generator.choice(wordings)
    messages = [failure.message for failure in bug.failures.values() if failure.message]
    for message in dict.fromkeys(first_line(message) for message in (*messages, "")):
        yield wording.format(path=bug.path, message=message)


def _statements(bug: BrokenFunction, tree: Path) -> Iterator[str]:
    """Yield what each failing test expects, with the failure."""
    for test_id, failure in bug.failures.items():
        path, _, name = function_id(test_id).partition("::")
        node = _functions(tree / path).get(name) if path.endswith(".py") else None
        own = [i.partition("[")[2].removesuffix("]") for i in bug.failures if function_id(i) == function_id(test_id)]
        statement = state_behaviour(node, Clues((), (), *failure), own).text if node else ""
        if statement:
            yield f"{statement} Found: {first_line(failure.message)}" if failure.message else statement


@lru_cache(maxsize=32)
def _functions(path: Path) -> dict[str, FunctionNode]:
    return {name: node for name, node, _ in walk_functions(ast.parse(read_text(path)))}


def retold(task: Task, failures: Mapping[str, Failure], level: Localization, tree: Path) -> Task:
    """Return ``task``, which has one synthetic bug, with an issue of ``level``, and its label."""
    place = task.location
    if place is None or NUM_BUGS in task.labels:
        return task
    shown = sorted(failures, key=lambda test_id: test_id not in task.visible_tests)
    bug = BrokenFunction(place.path, place.name, {test_id: failures[test_id] for test_id in shown})
    issue, told = localized_issue([bug], level, tree, task.id)
    return task.model_copy(update={"issue": issue, "labels": {**task.labels, LOCALIZATION: told}})
