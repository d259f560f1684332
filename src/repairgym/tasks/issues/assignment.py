"""Assignment of changelog entries to the fixes of one release pair.

Reads the fit of each entry to each fix. Makes at most one entry per fix. Guarantees: the sum of all fits is the largest
one possible, so that an entry is not given to a fix while another fix has more right to it; an entry that two fixes
claim alike is given to none, and neither is one of two entries that fit a fix alike.
"""

from collections.abc import Sequence

Fit = tuple[int, int]
"""Fit to names and tests, and fit to the changed lines, which decides between equal ones."""
_FINE = 1000
"""Larger than any fit to changed lines."""
MIN_SHARE = 0.6
"""Least fit of an assigned entry, as a share of the fit of the one that fits best: that one may be another fix's."""


def assign_entries(fits: Sequence[Sequence[Fit]], min_fit: int) -> list[int | None]:
    """Return the number of the entry of each fix, None without one; ``fits`` has one row per fix.

    ``min_fit`` is the least fit to names and tests; with the fit to the changed lines it takes one more.
    """
    num_fixes, num_entries = len(fits), max(map(len, fits), default=0)
    if not num_entries:
        return [None] * num_fixes
    gains = [[_gain(fit, min_fit) for fit in row] + [0] * num_fixes for row in fits]
    chosen = _largest_sum(gains)
    return [
        entry if entry < num_entries and _is_clear(gains, chosen, fix, num_entries) else None
        for fix, entry in enumerate(chosen)
    ]


def _gain(fit: Fit, min_fit: int) -> int:
    return fit[0] * _FINE + min(fit[1], _FINE - 1) if fit[0] >= min_fit or sum(fit) > min_fit else 0


def _is_clear(gains: list[list[int]], chosen: list[int], fix: int, num_entries: int) -> bool:
    """Return whether the chosen entry of ``fix`` fits it much better than the others, and better than it fits rivals.

    A rival is a fix that the entry fits no worse than its own chosen one.
    """
    entry, own = chosen[fix], gains[fix][:num_entries]
    rivals = [row[entry] for n, row in enumerate(gains) if n != fix and row[entry] >= row[chosen[n]] and row[entry]]
    return own[entry] > max(rivals, default=0) and own.count(own[entry]) == 1 and own[entry] >= MIN_SHARE * max(own)


def _largest_sum(gains: list[list[int]]) -> list[int]:
    """Return a column per row, all different, with the largest sum (Hungarian algorithm with potentials)."""
    num_rows, num_columns = len(gains), len(gains[0])
    row_potential, potential = [0] * (num_rows + 1), [0] * (num_columns + 1)
    owner = [0] * (num_columns + 1)  # row of each column; rows and columns count from 1, column 0 is the entering row
    for row in range(1, num_rows + 1):
        owner[0], column = row, 0
        slack: list[float] = [float("inf")] * (num_columns + 1)
        way, is_used = [0] * (num_columns + 1), [False] * (num_columns + 1)
        while owner[column]:
            is_used[column] = True
            here = owner[column]
            free = [number for number in range(1, num_columns + 1) if not is_used[number]]
            for number in free:
                cost = -gains[here - 1][number - 1] - row_potential[here] - potential[number]
                if cost < slack[number]:
                    slack[number], way[number] = cost, column
            following = min(free, key=slack.__getitem__)
            step = int(slack[following])
            for number in range(num_columns + 1):
                if is_used[number]:
                    row_potential[owner[number]] += step
                    potential[number] -= step
                else:
                    slack[number] -= step
            column = following
        while column:
            owner[column], column = owner[way[column]], way[column]
    places = {owner[column]: column - 1 for column in range(1, num_columns + 1)}
    return [places[row] for row in range(1, num_rows + 1)]
