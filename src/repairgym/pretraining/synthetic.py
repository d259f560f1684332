"""Simulated repair episodes on corpus functions, for pre-training: no sandbox, no tests, any number of them.

Reads `CorpusFunction` records; makes `Segment` lists in the very texts that the tools write. The simulated tests pass
exactly when the function is as it was. Invariants: an episode ends in success; guesses and typos carry no loss, so that
the model learns where the bug is and never imitates a wrong edit.
"""

import random
from dataclasses import dataclass, replace

from repairgym.agent.teacher import Teacher
from repairgym.agent.tools.check import describe_failure, describe_pass
from repairgym.agent.tools.edit import UNDONE
from repairgym.agent.tools.window import Window
from repairgym.agent.tools.window_edits import USAGES, CompactEdit, change_of, edit_at
from repairgym.config.models import TeacherNoise
from repairgym.pretraining.corpus import CorpusFunction
from repairgym.pretraining.repair_actions import whole_window
from repairgym.tasks.build.assembly import mutation_issue
from repairgym.tasks.mutation.operators import Mutation, Site, apply

MAX_TURNS = 20
OPERATOR_WEIGHTS = {"constant": 0.6, "negation": 0.6, "name": 0.7}
"""Frequent site families are thinned so that comparisons and arithmetic get their share."""


@dataclass(frozen=True)
class Segment:
    """A piece of an episode. Context has ``kind`` "context"; actions have the teacher's kind."""

    text: str
    kind: str


def mutate(function: CorpusFunction, num_bugs: int, generator: random.Random) -> tuple[str, list[Mutation]]:
    """Function text with ``num_bugs`` bugs on different lines, and the mutations that made them."""
    weights = [OPERATOR_WEIGHTS.get(site.operator, 1.0) for site in function.sites]
    chosen: dict[int, Mutation] = {}
    for _ in range(num_bugs * 3):
        site = generator.choices(function.sites, weights)[0]
        if len(chosen) < num_bugs and site.line not in chosen:
            chosen[site.line] = Mutation(site, generator.choice(site.alternatives))
    mutations = list(chosen.values())
    return apply(function.text, *mutations), mutations


def guesses_for(text: str, sites: list[Site], mutations: list[Mutation], fixes: list[CompactEdit]) -> list[CompactEdit]:
    """Every edit of the mutation vocabulary on the broken ``text`` that is not one of ``fixes``.

    ``sites`` are those of the function without its bugs ``mutations``, of which a line has one at most.
    """
    lines = text.splitlines()
    by_line = {mutation.site.line: mutation for mutation in mutations}
    edits = (
        edit_at(lines[site.line - 1], site.line, site.column, site.old, new)
        for site in (_site_after(site, by_line.get(site.line)) for site in sites)
        for new in site.alternatives
    )
    return [edit for edit in edits if edit is not None and edit not in fixes]


def _site_after(site: Site, mutation: Mutation | None) -> Site:
    """``site`` in the text after ``mutation`` on its line; the mutated site itself has the new text."""
    if mutation is None or site.column < mutation.site.column:
        return site
    if site.column == mutation.site.column:
        others = tuple(text for text in site.alternatives if text != mutation.new)
        return replace(site, old=mutation.new, alternatives=others)
    return replace(site, column=site.column + len(mutation.new) - len(mutation.site.old))


class SimulatedEpisode:
    """A broken text of a function, and the answers that the tools would give."""

    def __init__(self, path: str, good: str, broken: str, message: str, generator: random.Random) -> None:
        self._good = good
        self.text = broken
        self._window = whole_window(path, broken.splitlines())
        self._message = message
        self._random = generator
        self._undo: list[tuple[str, Window]] = []
        self._num_tests = generator.randint(1, 6)
        self._num_failed = generator.randint(1, self._num_tests)

    @property
    def is_repaired(self) -> bool:
        """True when the function is as it was."""
        return self.text == self._good

    def opening(self, issue: str) -> str:
        """The first observation."""
        return f"{issue}\n{self._window.render(self.text)}"

    def step(self, action: str) -> str:
        """The tools' answer to an action."""
        name, _, argument = action.partition(" ")
        if name == "undo":
            self.text, self._window = self._undo.pop()
            return UNDONE
        if name == "test":
            return self._test()
        if name == "submit":
            return "submitted"
        change = change_of(name, self.text, self._window, argument) if name in USAGES else f"no tool {name}"
        if isinstance(change, str):
            return f"error: {change}"
        self._undo.append((self.text, self._window))
        self.text, self._window = change.text, change.window
        return change.observation

    def _test(self) -> str:
        if self.is_repaired:
            return describe_pass(self._num_tests)
        message = self._message if self._random.random() < 0.5 else random_message(self.text, self._random)
        return describe_failure(self._num_failed, self._num_tests, message)


def random_message(text: str, generator: random.Random) -> str:
    """A plausible failure message, with values that may come from the code."""
    words = [word for word in text.replace("(", " ").replace(")", " ").split() if word.isidentifier()] or ["value"]

    def value() -> str:
        return generator.choice(
            [str(generator.randint(-3, 40)), "True", "False", "None", "[]", f"'{generator.choice(words)}'"]
        )

    return generator.choice(
        [
            f"assert {value()} == {value()}",
            f"assert {value()} == {value()}",
            f"AssertionError: assert {value()} == {value()}",
            f"assert {value()} is {value()}",
            f"AssertionError: {value()} != {value()}",
            "IndexError: list index out of range",
            f"TypeError: unsupported operand type(s): '{generator.choice(words)}'",
            f"AttributeError: 'NoneType' object has no attribute '{generator.choice(words)}'",
            f"KeyError: '{generator.choice(words)}'",
            f"ValueError: {generator.choice(words)} {generator.choice(words)}",
            "timed out",
            "Failed: DID NOT RAISE",
        ]
    )


@dataclass(frozen=True)
class Case:
    """A broken function and what repairs it."""

    function: CorpusFunction
    broken: str
    mutations: list[Mutation]
    fixes: list[CompactEdit]
    message: str
    issue: str

    def episode(self, generator: random.Random) -> SimulatedEpisode:
        """A fresh episode on it."""
        return SimulatedEpisode(self.function.path, self.function.text, self.broken, self.message, generator)


def break_function(function: CorpusFunction, num_bugs: int, generator: random.Random) -> Case | None:
    """``function`` with bugs and its report; None when a repair cannot be written as a compact edit."""
    broken, mutations = mutate(function, num_bugs, generator)
    sites = [mutation.inverse.site for mutation in mutations]
    lines = broken.splitlines()
    fixes = [edit_at(lines[site.line - 1], site.line, site.column, site.old, site.alternatives[0]) for site in sites]
    known = [fix for fix in fixes if fix is not None]
    if len(known) != len(mutations) or not known:
        return None
    message = random_message(broken, generator)
    issue = mutation_issue(function.name, function.path, message, generator)
    return Case(function, broken, mutations, known, message, issue)


def synthesize(
    function: CorpusFunction, num_bugs: int, noise: TeacherNoise, generator: random.Random
) -> list[Segment] | None:
    """A successful episode of the teacher on ``function``; None when the teacher failed too often."""
    case = break_function(function, num_bugs, generator)
    if case is None:
        return None
    if num_bugs > 1:
        return _play_list(case.episode(generator), case.fixes, case.issue, generator)
    guesses = guesses_for(case.broken, list(function.sites), case.mutations, case.fixes)
    for _ in range(8):
        episode = case.episode(generator)
        segments = _play(episode, Teacher(case.fixes, guesses, noise, generator), case.issue)
        if episode.is_repaired and segments[-1].kind == "submit":
            return segments
    return None


def _play(episode: SimulatedEpisode, teacher: Teacher, issue: str) -> list[Segment]:
    observation = episode.opening(issue)
    segments: list[Segment] = []
    for _ in range(MAX_TURNS):
        choice = teacher.act(observation)
        segments += [Segment(observation, "context"), Segment(choice.text, choice.kind)]
        if choice.kind == "submit":
            break
        observation = episode.step(choice.text)
    return segments


def _play_list(
    episode: SimulatedEpisode, fixes: list[CompactEdit], issue: str, generator: random.Random
) -> list[Segment]:
    """All repairs one after the other, then a test: dense supervision on where bugs are."""
    generator.shuffle(fixes)
    actions = [(f"edit {fix}", "fix") for fix in fixes] + [("test", "test"), ("submit", "submit")]
    observation = episode.opening(f"{len(fixes)} bugs, {issue}")
    segments: list[Segment] = []
    for text, kind in actions:
        segments += [Segment(observation, "context"), Segment(text, kind)]
        observation = episode.step(text)
    return segments
