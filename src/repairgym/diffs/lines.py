"""Lines of a text, and the stretches of lines in which two texts differ.

Two searches with one result type: `line_edits` (difflib, for readable patches) and `bounded_edits` (Myers, for
texts of untrusted code: its time is bounded whatever the texts are).
"""

import re
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher

_SOURCE_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_MAX_EDITS = 1000
_MAX_STEPS = 3_000_000
_MAX_SEARCHED_LINES = 10_000
"""Changed lines in between; difflib takes the square of it at worst: 2 s."""
Edit = tuple[int, int, int, int]
"""Old lines [a, b) become new lines [c, d)."""


def split_lines(text: str) -> list[str]:
    """Return the lines with their ends; only a line feed ends a line (unlike ``str.splitlines``)."""
    *lines, last = text.split("\n")
    return [line + "\n" for line in lines] + ([last] if last else [])


def source_lines(text: str, *, keepends: bool = False) -> list[str]:
    """Return the lines of ``text`` as Python counts them: `str.splitlines` also ends them at a form feed or U+2028."""
    lines: list[str] = _SOURCE_LINE.findall(text)
    return lines if keepends else [line.rstrip("\r\n") for line in lines]


def line_edits(old: Sequence[str], new: Sequence[str]) -> list[Edit]:
    """Return the changed stretches in order, as `difflib` finds them."""
    opcodes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(a, b, c, d) for tag, a, b, c, d in opcodes if tag != "equal"]


def is_long(old: Sequence[str], new: Sequence[str]) -> bool:
    """Return True for texts that difflib may compare for minutes; `bounded_edits` does not.

    Equal ends do not count: a small change of a long file reads as it always did.
    """
    head, tail = _equal_ends(old, new)
    return len(old) + len(new) - 2 * (head + tail) > _MAX_SEARCHED_LINES


def _equal_ends(old: Sequence[Hashable], new: Sequence[Hashable]) -> tuple[int, int]:
    """Return the number of equal lines at the start, and at the end of the rest."""
    shortest = min(len(old), len(new))
    head = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    room = shortest - head
    return head, next((i for i in range(room) if old[-1 - i] != new[-1 - i]), room)


def bounded_edits(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[Edit]:
    """Return the changed stretches in order; texts that differ too much become a single stretch.

    Equal ends are cut off first; Myers' algorithm compares the rest.
    """
    head, tail = _equal_ends(old, new)
    middle_old, middle_new = old[head : len(old) - tail], new[head : len(new) - tail]
    common = _common(middle_old, middle_new) if middle_old and middle_new else []
    edits, a, b = [], 0, 0
    for x, y in [*common, (len(middle_old), len(middle_new))]:
        if x > a or y > b:
            edits.append((head + a, head + x, head + b, head + y))
        a, b = x + 1, y + 1
    return edits


def _common(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pairs of equal lines on a shortest edit path (Myers 1986, the greedy algorithm); empty when it is too long."""
    numbers: dict[Hashable, int] = {}
    left = [numbers.setdefault(line, len(numbers)) for line in old]
    right = [numbers.setdefault(line, len(numbers)) for line in new]
    bound = min(len(left) + len(right), _MAX_EDITS)
    furthest = [-1] * (2 * bound + 3)
    furthest[bound + 1] = 0
    trace: list[list[int]] = []
    num_steps = 0
    for num_edits in range(bound + 1):
        # This round reads the furthest positions on the diagonals -num_edits - 1 to num_edits + 1.
        trace.append(furthest[bound - num_edits - (num_edits < bound) : bound + num_edits + 2])
        for diagonal in range(-num_edits, num_edits + 1, 2):
            x, _ = _step(furthest, bound, diagonal, num_edits)
            start = x
            while x < len(left) and x - diagonal < len(right) and left[x] == right[x - diagonal]:
                x += 1
            furthest[bound + diagonal] = x
            num_steps += x - start + 1
            if x >= len(left) and x - diagonal >= len(right):
                return _walk_back(trace, bound, len(left), len(right))
        if num_steps > _MAX_STEPS:
            break
    return []


def _step(furthest: list[int], middle: int, diagonal: int, num_edits: int) -> tuple[int, bool]:
    """Start of the next path on ``diagonal``, and True when it came down (an added line), not right (a deleted one)."""
    above, below = middle + diagonal + 1, middle + diagonal - 1
    is_down = diagonal == -num_edits or (diagonal != num_edits and furthest[below] < furthest[above])
    return (furthest[above], True) if is_down else (furthest[below] + 1, False)


def _walk_back(trace: list[list[int]], bound: int, x: int, y: int) -> list[tuple[int, int]]:
    pairs = []
    for num_edits in range(len(trace) - 1, -1, -1):
        middle = num_edits + (num_edits < bound)
        start, is_down = _step(trace[num_edits], middle, x - y, num_edits)
        while x > start and y > 0:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = (x, y - 1) if is_down else (x - 1, y)
    return pairs[::-1]
