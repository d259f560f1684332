from __future__ import annotations

import random
from itertools import permutations

from repairgym.tasks.issues.assignment import assign_entries


def test_an_entry_goes_to_the_fix_with_more_right_to_it_and_the_other_gets_its_own() -> None:
    # Alone, both fixes would take the first entry.
    assert assign_entries([[(9, 0), (7, 0)], [(12, 0), (1, 0)]], 3) == [1, 0]


def test_what_two_fixes_or_two_entries_claim_alike_is_given_to_none() -> None:
    assert assign_entries([[(6, 1)], [(6, 1)]], 3) == [None, None]
    assert assign_entries([[(6, 1), (6, 1)]], 3) == [None]
    assert assign_entries([[(6, 2)], [(6, 1)]], 3) == [0, None]


def test_a_poor_rest_is_no_issue() -> None:
    assert assign_entries([[(2, 1)]], 3) == [None]
    # The second entry fits the first fix much less than the one that another fix took.
    assert assign_entries([[(12, 0), (5, 0)], [(20, 0), (0, 0)]], 3) == [None, 0]
    assert assign_entries([[], []], 3) == [None, None]


def test_the_sum_of_fits_is_the_largest_one() -> None:
    generator = random.Random(7)
    for _ in range(40):
        fits = [[(generator.randrange(50, 99), 0) for _ in range(4)] for _ in range(3)]
        best = max(permutations(range(4), 3), key=lambda chosen: sum(fits[n][e][0] for n, e in enumerate(chosen)))
        given = assign_entries(fits, 3)
        assert all(entry in (None, wanted) for entry, wanted in zip(given, best, strict=True))
