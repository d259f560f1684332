"""Tasks of one package that evolve from earlier ones: what failed repairs left, what a model proposed, what is planned.

Reads a pinned sdist, files of failed repairs and a plan. Makes tasks with one to three edits of one file. Every bug,
wherever it comes from, goes the way of a mutation (`MutationRun`): covering tests, at least two failing test functions
of which one stays hidden, its own certificate. Guarantees: no two tasks, and no task and a known one, have the same
broken file; each edit of a planned bug, and what a failed repair added, is a bug alone; equal input, equal tasks.
"""

import hashlib
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, zip_longest

from repairgym.config.tasks import PlanConfig
from repairgym.diffs.lines import source_lines
from repairgym.records import Task
from repairgym.tasks.build.assembly import read_text
from repairgym.tasks.build.concurrency import ordered_map
from repairgym.tasks.build.test_files import first_lines
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.mutation.file_functions import functions_in
from repairgym.tasks.mutation.give_aways import gives_away
from repairgym.tasks.mutation.mutants import (
    MutableFunction,
    Mutant,
    broken_texts,
    honest_edits,
    planned_mutants,
)
from repairgym.tasks.mutation.operators import Mutation
from repairgym.tasks.mutation.plan import Cell, Plan
from repairgym.tasks.mutation.text_edits import FAILED_REPAIR, PROPOSED, TextFamily, edits_between
from repairgym.tasks.sources.base import BuildContext, Drop, SourceResult
from repairgym.tasks.sources.mutations import MutantEvidence, MutationRun, Target

GENERATION = "generation"
"""Label: number of the generation that made the task."""
Propose = Callable[[MutableFunction], Awaitable[str | Drop]]
"""Returns the text of a function's file with a bug in the function."""


@dataclass(frozen=True)
class LeftBug:
    """The file of a task as a failed repair, or an injection, left it."""

    task: Task
    text: str
    family: TextFamily = FAILED_REPAIR


@dataclass(frozen=True)
class Order:
    """The tasks that one package is asked to make."""

    plan: Plan
    bounds: PlanConfig
    num_tries: int
    """Mutants per wanted task."""
    known: frozenset[str]
    """`text_digest` of the broken files of earlier tasks."""
    left: tuple[LeftBug, ...] = ()
    num_left: int = 0
    """Most tasks from ``left``; 0: all."""
    num_proposals: int = 0


@dataclass(frozen=True)
class Candidate:
    """A bug to try."""

    target: Target
    mutant: Mutant | None
    """None: a model is asked for it."""
    parts: tuple[Mutant, ...] = ()
    """Parts of it that have to be bugs alone, so that half a repair does not pass."""


@dataclass(frozen=True)
class Rejected:
    """A bug that is none without a run."""

    reason: Drop
    digest: str


def text_digest(path: str, text: str | None) -> str:
    """Return a digest of a broken file."""
    return hashlib.sha256(f"{path}\0{text}".encode()).hexdigest()[:16]


async def make_evolved(
    package: Package, context: BuildContext, order: Order, propose: Propose | None = None
) -> tuple[SourceResult, list[str]]:
    """Make at most ``context.quota`` tasks; raises as `TaskSource` does.

    Returns them, and the `text_digest` of each bug that was tried and is none of them.
    """
    made = Evolution(await MutationRun.set_up(package, context), order, propose, set(order.known))
    await made.try_all(made.left_bugs(), order.num_left or context.quota)
    await made.try_all(made.proposals(), order.num_proposals)
    await made.try_all(made.planned(), context.quota)
    for outcome in await made.run.certify(made.accepted):
        if isinstance(outcome, Task):
            labels = {**outcome.labels, GENERATION: str(order.plan.generation)}
            outcome = outcome.model_copy(update={"labels": labels})
        made.result.add(outcome)
    files = {text_digest(path, task.base_files[path]) for task in made.result.tasks for path in task.gold_files}
    return made.result, sorted(made.tried - order.known - files)


@dataclass
class Evolution:
    """The bugs of one package that were tried so far."""

    run: MutationRun
    order: Order
    propose: Propose | None
    known: set[str]
    """`text_digest` of every bug that is known or was begun."""
    tried: set[str] = field(default_factory=set)
    """That of each bug with an outcome. One that was in flight when there were tasks enough has none."""
    result: SourceResult = field(default_factory=SourceResult)
    accepted: list[MutantEvidence] = field(default_factory=list)

    async def try_all(self, candidates: Iterable[Candidate | Rejected], num: int) -> None:
        """Try ``candidates`` until ``num`` of them, or the quota of the package, are accepted."""
        most = min(len(self.accepted) + num, self.run.context.quota)
        if len(self.accepted) >= most:
            return
        async with aclosing(ordered_map(self._try, candidates, self.run.context.config.num_concurrent)) as tried:
            # Only what is reached in this order counts: how much was begun beyond it depends on num_concurrent.
            async for candidate, (digest, outcome) in tried:
                self.tried.update([digest] if digest else ())
                self.result.funnel.update({"bugs_tried": 1} if isinstance(candidate, Candidate) else {})
                if isinstance(outcome, Drop):
                    self.result.add(outcome)
                    continue
                self.accepted.append(outcome)
                if len(self.accepted) >= most:
                    break

    async def _try(self, candidate: Candidate | Rejected) -> tuple[str, MutantEvidence | Drop]:
        """Return the digest of the bug that was tried (empty: none) and what became of it."""
        if isinstance(candidate, Rejected):
            self.known.add(candidate.digest)
            return candidate.digest, candidate.reason
        mutant = candidate.mutant or await self._ask(candidate.target.function)
        if isinstance(mutant, Drop):
            return "", mutant
        ((path, text),) = broken_texts([mutant]).items()
        digest = text_digest(path, text)
        if digest in self.known:
            return "", Drop("known_already", mutant.recipe)
        self.known.add(digest)
        return digest, await self._outcome(candidate, mutant)

    async def _outcome(self, candidate: Candidate, mutant: Mutant) -> MutantEvidence | Drop:
        evidence = await self.run.try_mutant((candidate.target, mutant))
        if isinstance(evidence, Drop):
            return evidence
        for part in candidate.parts:
            if not await self.run.is_bug_alone(evidence, part):
                return Drop("edit_is_no_bug_alone", f"{mutant.recipe}\nwithout the others: {part.recipe}")
        return evidence

    async def _ask(self, function: MutableFunction) -> Mutant | Drop:
        """Return what a model makes of ``function``."""
        if self.propose is None:
            raise AssertionError("a proposal was asked for without a model")
        text = await self.propose(function)
        return text if isinstance(text, Drop) else _text_mutant(function, text, PROPOSED)

    def left_bugs(self) -> Iterator[Candidate | Rejected]:
        """Yield what failed repairs left."""
        for left in self.order.left:
            bug, path = self._left_bug(left), left.task.location.path if left.task.location else ""
            yield Rejected(bug, text_digest(path, left.text)) if isinstance(bug, Drop) else bug

    def _left_bug(self, left: LeftBug) -> Candidate | Drop:
        place = left.task.location
        if place is None or left.task.provenance.sdist_sha256 != self.run.package.sdist().sha256:
            return Drop("other_version", f"{left.task.id}: the catalogue has {self.run.package.version}")
        source = read_text(self.run.spec.tree / place.path)
        spans = functions_in(place.path, source)
        span = next((span for span in spans if span.qualified_name == place.name), None)
        if span is None:
            return Drop("no_function", f"{left.task.id}: {place.name}")
        function = MutableFunction(place.path, source, span, ())
        whole = _text_mutant(function, left.text, left.family)
        if isinstance(whole, Drop):
            return whole
        old = edits_between(source, left.task.base_files[place.path] or "", left.family)
        new = tuple(edit for edit in whole.mutations if edit not in old)
        if not new:
            return Drop("no_further_bug", left.task.id)
        touched = {edit.site.line for edit in whole.mutations}
        broken = [
            other for other in spans if other == span or touched & {*range(other.first_line, other.last_line + 1)}
        ]
        lines, near = first_lines(place.path, source), self.run.tests_near(place.path)
        target = self.run.target(function, broken, lines, near)
        if target is None:
            return Drop("too_few_tests", left.task.id)
        return Candidate(target, whole, (Mutant(function, new),) if len(new) < len(whole.mutations) else ())

    def proposals(self) -> Iterator[Candidate]:
        """Yield functions, in random order, of which a model is asked for bugs."""
        targets = self.run.targets() if self.order.num_proposals else []
        random.Random(f"{self._seed}:proposals").shuffle(targets)
        yield from (Candidate(target, None) for target in targets[: self.order.num_proposals])

    def planned(self) -> Iterator[Candidate]:
        """Yield mutants of cells that are drawn by their weights, until the tries or the mutants are used up."""
        queues = self._queues()
        generator = random.Random(f"{self._seed}:planned")
        for _ in range(self.order.num_tries * (self.run.context.quota - len(self.accepted))):
            candidate = None
            while queues and candidate is None:
                cells = sorted(queues)
                weights = [self.order.plan.weight(cell, self.order.bounds.floor) for cell in cells]
                (cell,) = generator.choices(cells, weights)
                candidate = next(queues[cell], None)
                if candidate is None:
                    del queues[cell]
            if candidate is None:
                return
            yield candidate

    def _queues(self) -> dict[Cell, Iterator[Candidate]]:
        """Return the mutants of each cell; functions take turns."""
        streams: dict[Cell, list[Iterator[Candidate]]] = {}
        for target in self.run.targets():
            edits = honest_edits(target.function)
            for family in sorted({edit.site.operator for edit in edits}):
                for num_edits in range(1, min(self.order.bounds.max_edits, len(edits)) + 1):
                    cell = Cell(self.run.package.name, family, num_edits)
                    mutants = planned_mutants(target.function, edits, family, num_edits, self._seed)
                    streams.setdefault(cell, []).append(map(partial(_planned_candidate, target), mutants))
        return {cell: _in_turns(own) for cell, own in streams.items()}

    @property
    def _seed(self) -> str:
        return f"{self.run.context.seed(self.run.package)}:{self.order.plan.generation}"


def _planned_candidate(target: Target, mutant: Mutant) -> Candidate:
    parts = tuple(Mutant(mutant.function, (edit,)) for edit in mutant.mutations)
    return Candidate(target, mutant, parts if len(parts) > 1 else ())


def _in_turns(streams: list[Iterator[Candidate]]) -> Iterator[Candidate]:
    turns = zip_longest(*streams)
    return (candidate for candidate in chain.from_iterable(turns) if candidate is not None)


def _text_mutant(function: MutableFunction, text: str, family: str) -> Mutant | Drop:
    """Return the file of ``function`` with ``text`` as a mutant, or why it is none."""
    try:
        functions_in(function.path, text)
    except (SyntaxError, ValueError) as error:
        return Drop("does_not_parse", f"{function.path}: {error}")
    edits = edits_between(function.source, text, family)
    if not edits:
        return Drop("no_change", function.path)
    if any(_gives_away(function.source, edit) for edit in edits):
        return Drop("gives_itself_away", Mutant(function, edits).recipe)
    return Mutant(function, edits)


def _gives_away(source: str, edit: Mutation) -> bool:
    is_inside = edit.site.line <= len(source_lines(source))
    return is_inside and "\n" not in edit.new and gives_away(source, edit)
