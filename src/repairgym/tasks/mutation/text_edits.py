"""Edits of any text as mutations: what a failed repair left of a file, or what a model proposed.

Reads two texts of a module, or the recipe of their difference. Makes `Mutation` objects. No operator can make these
edits again from the module alone, so their recipes hold them as data: the place, the number of characters that go and
the text that comes. Guarantees: the edits lead from the first text to the second byte for byte; a recipe read again
gives the same edits; a recipe has no line break.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Literal, get_args

from repairgym.diffs.lines import source_lines
from repairgym.tasks.mutation.operators import Mutation, Site

TextFamily = Literal["failed_repair", "proposed_edit", "injected_edit"]
"""Maker of the edits: a failed repair, a model that was asked for bugs, a policy that injects them."""
FAILED_REPAIR: TextFamily = "failed_repair"
PROPOSED: TextFamily = "proposed_edit"
INJECTED: TextFamily = "injected_edit"
TEXT_FAMILIES: tuple[TextFamily, ...] = get_args(TextFamily)
_TOKEN = re.compile(r"\w+|[<>=!+\-*/%&|^]+|[ \t]+|.", re.DOTALL)
_PLACE = re.compile(rf"(\d+):(\d+): ({'|'.join(TEXT_FAMILIES)}) ")
_SEPARATOR = "; "


def edits_between(source: str, text: str, family: str) -> tuple[Mutation, ...]:
    """Return the replacements of whole tokens that lead from ``source`` to ``text``, from the first line on."""
    old, new = source_lines(source, keepends=True), source_lines(text, keepends=True)
    edits: list[Mutation] = []
    for tag, first, last, new_first, new_last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            edits += _token_edits("".join(old[first:last]), "".join(new[new_first:new_last]), first + 1, family)
    return tuple(edits)


def _token_edits(old: str, new: str, first_line: int, family: str) -> Iterator[Mutation]:
    """Yield the edits of a block of lines that begins at ``first_line``."""
    left, right = _TOKEN.findall(old), _TOKEN.findall(new)
    starts, lines = [0, *accumulate(map(len, left))], source_lines(old, keepends=True)
    line_starts = [0, *accumulate(map(len, lines))]
    if lines and not lines[-1].endswith(("\r", "\n")):
        line_starts.pop()  # the end of the text is no start of a line
    for tag, first, last, new_first, new_last in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        number = bisect_right(line_starts, starts[first]) - 1
        column = starts[first] - line_starts[number]
        written = "".join(right[new_first:new_last])
        site = Site(family, first_line + number, column, "".join(left[first:last]), (written,))
        yield Mutation(site, written)


def text_recipe(mutation: Mutation) -> str:
    """Return one edit as data, ``12:5: failed_repair [1, "<="]`` with line and column from 1."""
    site = mutation.site
    return f"{site.line}:{site.column + 1}: {site.operator} {json.dumps([len(site.old), mutation.new])}"


def is_text_recipe(recipe: str) -> bool:
    """Return True when ``recipe`` holds its edits as data."""
    return _PLACE.match(recipe) is not None


def read_text_edits(source: str, recipe: str) -> tuple[Mutation, ...]:
    """Return the edits of ``recipe`` in ``source``; ValueError when it holds none there."""
    starts = [0, *accumulate(len(line) for line in source_lines(source, keepends=True))]
    edits, position, decoder = [], 0, json.JSONDecoder()
    while position < len(recipe):
        place = _PLACE.match(recipe, position)
        if place is None or int(place[1]) > len(starts):
            raise ValueError(f"no edit of this text at character {position} of {recipe!r}")
        (num_chars, new), position = decoder.raw_decode(recipe, place.end())
        line, column = int(place[1]), int(place[2]) - 1
        first = starts[line - 1] + column
        edits.append(Mutation(Site(place[3], line, column, source[first : first + num_chars], (new,)), new))
        position += len(_SEPARATOR)
    return tuple(edits)
