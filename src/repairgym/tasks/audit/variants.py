"""Variants of a task's repair: wrong ones that its tests should refute, and rewrites that they should accept.

Reads a task with its gold and broken texts and the other tasks of its tree. Makes `Variant` records. Guarantees: no two
variants of a task have equal texts, none equals the gold or the broken text; the same seed gives the same variants; a
wrong variant may still behave like the gold code (an equivalent), which only a run can tell.
"""

import ast
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal

from repairgym.records import Record, Task
from repairgym.tasks.audit import java_rewrites, javascript_rewrites, rewrites
from repairgym.tasks.build.test_files import first_lines
from repairgym.tasks.java.breaks import find_java_breaks
from repairgym.tasks.java.project import is_java_check
from repairgym.tasks.javascript.mutation_sites import find_sites as javascript_sites
from repairgym.tasks.javascript.syntax import function_codes, is_javascript
from repairgym.tasks.mutation.file_functions import functions_in
from repairgym.tasks.mutation.free_operators import find_free_sites
from repairgym.tasks.mutation.mutants import has_odd_line_ends, shuffled_turns
from repairgym.tasks.mutation.operators import FunctionSpan, Mutation, Site, apply, find_functions, find_sites
from repairgym.tasks.mutation.settings_operators import SettingsEdit, find_edits
from repairgym.tasks.synthetic import NUM_BUGS

Texts = Mapping[str, str | None]
TextsKey = tuple[tuple[str, str | None], ...]
VariantKind = Literal[
    "operator", "free_operator", "settings", "half_patch", "sibling_function", "sibling_file", "rewrite"
]
"""One operator of the closed vocabulary or of the free ones, an edit of a build, a part of the gold patch, the bug of
another task in the same function or file; and the right variants."""
GROUPS: dict[str, tuple[str, ...]] = {
    "operator": ("operator", "free_operator", "settings"),
    "half_patch": ("half_patch",),
    "sibling": ("sibling_function", "sibling_file"),
    "rewrite": ("rewrite",),
}
"""Kinds that are told together where a task has none of them."""


class VariantBounds(Record):
    """Most variants of a task by kind."""

    operators: int = 6
    half_patches: int = 3
    siblings: int = 2
    """Of the same function, and as many of other functions of the file."""
    rewrites: int = 3
    seed: int = 0


@dataclass(frozen=True)
class Variant:
    """Another repair of a task."""

    kind: VariantKind
    detail: str
    """The edit in words."""
    files: Texts
    """Path -> text, for every file of the gold patch."""
    places: frozenset[tuple[str, int]] = field(default_factory=frozenset)
    """(path, first line with decorators) of the changed functions; empty when code outside of functions changed."""

    @property
    def key(self) -> TextsKey:
        """The texts, to compare variants."""
        return texts_key(self.files)


def texts_key(texts: Texts) -> TextsKey:
    """Return ``texts`` in a form that can be compared."""
    return tuple(sorted(texts.items()))


@dataclass(frozen=True)
class Place:
    """A function that the gold patch repairs."""

    path: str
    span: FunctionSpan


def repaired_functions(task: Task) -> list[Place]:
    """Return the functions of the gold texts that differ from the broken ones."""
    if (place := task.location) and task.source == "mutations" and NUM_BUGS not in task.labels:
        spans = _functions(place.path, task.gold_files[place.path] or "") or {}
        return [Place(place.path, span) for span in spans if span.first_line == place.first_line]
    places = []
    for path, gold in task.gold_files.items():
        if gold is not None and (new := _functions(path, gold)) is not None:
            old = _functions(path, task.base_files.get(path) or "") or {}
            known = {(span.qualified_name, code) for span, code in old.items()}
            places += [Place(path, span) for span, code in new.items() if (span.qualified_name, code) not in known]
    return places


def wrong_variants(task: Task, siblings: Iterable[Task], bounds: VariantBounds, tree: Path) -> list[Variant]:
    """Return variants of the gold patch that need not repair ``task``, at most as ``bounds`` says.

    ``tree`` is the pinned one: edits of Java look at the other files.
    """
    places = repaired_functions(task)
    chosen: dict[TextsKey, Variant] = {}
    broken = {path: task.base_files.get(path) for path in task.gold_files}
    taken = {texts_key(texts) for texts in (task.gold_files, broken)}
    sources = (
        (_half_patches(task, broken), bounds.half_patches),
        (_operators(task, places, bounds.seed, tree), bounds.operators),
        (_siblings(task, siblings, places, is_same_function=True), bounds.siblings),
        (_siblings(task, siblings, places, is_same_function=False), bounds.siblings),
    )
    for variants, most in sources:
        others = (variant for variant in variants if variant.key not in taken)
        for variant in islice(others, most):
            taken.add(variant.key)
            chosen[variant.key] = variant
    return list(chosen.values())


def right_variants(task: Task, bounds: VariantBounds) -> list[Variant]:
    """Return rewrites of the gold patch that behave like it."""
    variants: list[Variant] = []
    places: list[tuple[str, FunctionSpan | None]] = [(place.path, place.span) for place in repaired_functions(task)]
    places += [(path, None) for path, text in task.gold_files.items() if text and is_java_check(task.fail_to_pass)]
    random.Random(f"{bounds.seed}:{task.id}").shuffle(places)
    for path, span in places:
        left = bounds.rewrites - len(variants)
        for kinds, text in _rewrites(path, task.gold_files[path] or "", span, left, f"{bounds.seed}:{task.id}"):
            detail = f"{path} {span.qualified_name}: {kinds}" if span else f"{path}: {kinds}"
            variants.append(Variant("rewrite", detail, {**task.gold_files, path: text}))
    return variants


def _rewrites(path: str, gold: str, span: FunctionSpan | None, num: int, seed: str) -> Iterator[tuple[str, str]]:
    """Yield (kinds, text) of rewrites of a function, or of a file without functions, in its language."""
    if num <= 0:
        return
    if span is None:
        yield from java_rewrites.choose_rewrites(path, gold, num, seed)
    elif is_javascript(path):
        yield from javascript_rewrites.choose_rewrites(path, gold, span.first_line, num, seed)
    else:
        yield from rewrites.choose_rewrites(gold, span.first_line, num, seed)


# --- edits -----------------------------------------------------------------------------------------------------------


def _operators(task: Task, places: Sequence[Place], seed: int, tree: Path) -> Iterator[Variant]:
    """Yield gold texts with one token changed in a repaired function, families in turn; then with edits of a build."""
    families: dict[str, list[_Edit]] = {}
    for place in places:
        gold = task.gold_files[place.path] or ""
        for site, kind in _sites(place.path, gold):
            first, last = place.span.docstring_lines
            if place.span.first_line <= site.line <= place.span.last_line and not first <= site.line <= last:
                edits = families.setdefault(site.operator, [])
                edits += [_Edit(kind, place, Mutation(site, new)) for new in site.alternatives]
    for edit in shuffled_turns(families, random.Random(f"{seed}:{task.id}:operators")):
        yield edit.of(task)
    yield from _build_edits(task, seed, tree)


def _build_edits(task: Task, seed: int, tree: Path) -> Iterator[Variant]:
    """Yield gold texts with one edit of a build: of its settings, in Java of its sources, too."""
    for path, text in task.gold_files.items():
        if text is None or path.endswith(".py") or is_javascript(path):
            continue
        edits = find_edits(path, text)
        if is_java_check(task.fail_to_pass):
            families: dict[str, list[SettingsEdit]] = {}
            for edit in find_java_breaks(tree, path):
                families.setdefault(edit.operator, []).append(edit)
            edits = shuffled_turns(families, random.Random(f"{seed}:{task.id}:edits"))
        for edit in edits:
            yield Variant("settings", f"{path} {edit.recipe}", {**task.gold_files, path: edit.text})


@dataclass(frozen=True)
class _Edit:
    """One changed token of a repaired function."""

    kind: VariantKind
    place: Place
    mutation: Mutation

    def of(self, task: Task) -> Variant:
        """Return the gold texts of ``task`` with this edit."""
        path, site = self.place.path, self.mutation.site
        gold = task.gold_files[path] or ""
        detail = f"{path} {site.line}:{site.column + 1}: {site.old} -> {self.mutation.new}"
        changed = frozenset({(path, first_lines(path, gold)[self.place.span.first_line])})
        return Variant(self.kind, detail, {**task.gold_files, path: apply(gold, self.mutation)}, changed)


@lru_cache(maxsize=32)
def _sites(path: str, source: str) -> tuple[tuple[Site, VariantKind], ...]:
    if has_odd_line_ends(source):
        return ()
    if is_javascript(path):
        return tuple((site, "operator") for site in javascript_sites(path, source))
    closed, free = find_sites(source), find_free_sites(source)
    marked: list[tuple[Site, VariantKind]] = [(site, "operator") for site in closed]
    return (*marked, *((site, "free_operator") for site in free))


def _half_patches(task: Task, broken: Texts) -> Iterator[Variant]:
    """Yield the gold patch without one of its hunks, and its halves."""
    hunks = [(path, place) for path, gold in task.gold_files.items()
             for place in range(len(_changes(broken[path] or "", gold or "")))]  # fmt: skip
    if len(hunks) < 2:
        return
    halves = [set(hunks[: len(hunks) // 2]), set(hunks[len(hunks) // 2 :])]
    ones = [{hunk} for hunk in hunks]
    random.Random(task.id).shuffle(ones)
    for reverted in (ones + halves) if len(hunks) > 2 else ones:
        files: dict[str, str | None] = {}
        for path, gold in task.gold_files.items():
            own = {place for name, place in reverted if name == path}
            files[path] = _with_old(broken[path] or "", gold or "", own) if own else gold
        yield Variant("half_patch", f"{len(reverted)} of {len(hunks)} hunks taken back", files)


@lru_cache(maxsize=32)
def _changes(old: str, new: str) -> list[tuple[int, int, int, int]]:
    lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
    codes = SequenceMatcher(None, *lines, autojunk=False).get_opcodes()
    return [(i, j, k, m) for tag, i, j, k, m in codes if tag != "equal"]


def _with_old(old: str, new: str, reverted: set[int]) -> str:
    """Return ``new`` with the changes ``reverted`` taken back."""
    before, lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
    for place, (i, j, k, m) in reversed(list(enumerate(_changes(old, new)))):
        if place in reverted:
            lines[k:m] = before[i:j]
    return "".join(lines)


def _siblings(
    task: Task, siblings: Iterable[Task], places: Sequence[Place], is_same_function: bool
) -> Iterator[Variant]:
    """Yield the bugs of other tasks with the same gold texts, in the same function or elsewhere in the file."""
    own = {(place.path, place.span.qualified_name) for place in places}
    others = sorted((other for other in siblings if other.id != task.id), key=lambda other: other.id)
    random.Random(f"{task.id}:siblings").shuffle(others)
    for other in others:
        shared = [path for path, text in other.gold_files.items() if task.gold_files.get(path) == text]
        if len(shared) != len(other.gold_files):
            continue
        theirs = repaired_functions(other)
        is_same = bool(own & {(place.path, place.span.qualified_name) for place in theirs})
        if is_same == is_same_function and (theirs or is_java_check(other.fail_to_pass)):
            files = {**task.gold_files, **{path: other.base_files.get(path) for path in shared}}
            lines = {place.path: first_lines(place.path, other.gold_files[place.path] or "") for place in theirs}
            changed = frozenset((place.path, lines[place.path][place.span.first_line]) for place in theirs)
            kind: VariantKind = "sibling_function" if is_same else "sibling_file"
            yield Variant(kind, f"the bug of {other.id}", files, changed)


@lru_cache(maxsize=128)
def _functions(path: str, source: str) -> dict[FunctionSpan, object] | None:
    """Return function -> its code, to compare; None when ``source`` does not parse, or is of another language."""
    try:
        if is_javascript(path):
            return dict(zip(functions_in(path, source), function_codes(path, source), strict=True))
        if not path.endswith(".py"):
            return None
        nodes = {node.lineno: node for node in ast.walk(ast.parse(source))
                 if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}  # fmt: skip
        return {span: ast.dump(nodes[span.first_line]) for span in find_functions(source)}
    except SyntaxError:
        return None
