"""Filter `duplicates`: gold patches that are nearly the same; and how similar patches are found.

Similarity is the Jaccard index of the patches' lines (sign and text without spacing, context included), so that the
same change in another version or a vendored copy is found and two bugs in one function are told apart. Candidates for
a pair come from an index of lines: nothing is compared that shares no line, and lines that nearly all patches have are
skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from repairgym.config.curation import CurationConfig
from repairgym.tasks.curation.base import Ruling
from repairgym.tasks.curation.candidate import Candidate


class PatchIndex:
    """Patches that can be asked for the most similar one."""

    def __init__(self, max_similarity: float) -> None:
        """Find patches that are more similar than ``max_similarity``."""
        self._bound = max_similarity
        self._members: dict[str, Candidate] = {}
        self._by_line: dict[int, list[str]] = {}

    def add(self, candidate: Candidate) -> None:
        """Remember the patch of ``candidate``."""
        self._members[candidate.id] = candidate
        for line in candidate.patch_lines:
            self._by_line.setdefault(line, []).append(candidate.id)

    def find(self, candidate: Candidate) -> tuple[str, float] | None:
        """Id and similarity of the most similar patch above the bound; None when there is none."""
        shared: Counter[str] = Counter()
        for line in self._rare_lines(candidate):
            shared.update(self._by_line.get(line, ()))
        similar = ((self._similarity(candidate, self._members[task_id]), task_id) for task_id in shared)
        best = max(similar, default=None, key=lambda found: (found[0], found[1]))
        return (best[1], best[0]) if best and best[0] >= self._bound else None

    def _rare_lines(self, candidate: Candidate) -> list[int]:
        """Enough lines that a patch above the bound must share one of them: the rarest ones.

        Patches with Jaccard index J share at least J of the lines of each, so one of any ``(1 - J) n + 1`` is shared.
        """
        num_needed = int((1 - self._bound) * len(candidate.patch_lines) + 1e-9) + 1
        ranked = sorted(candidate.patch_lines, key=lambda line: (len(self._by_line.get(line, ())), line))
        return ranked[:num_needed]

    @staticmethod
    def _similarity(one: Candidate, other: Candidate) -> float:
        return len(one.patch_lines & other.patch_lines) / len(one.patch_lines | other.patch_lines)


class Duplicates:
    """Leave out tasks whose gold patch another task of the same split has already."""

    source = "ours; no paper gives a bound"

    def judge(self, candidates: Sequence[Candidate], config: CurationConfig) -> Ruling:
        """See `TaskFilter.judge`."""
        removed: dict[str, str] = {}
        indexes: dict[str | None, PatchIndex] = {}
        for candidate in _with_patch(candidates):
            index = indexes.setdefault(candidate.split, PatchIndex(config.duplicates.max_similarity))
            found = index.find(candidate)
            if found:
                removed[candidate.id] = f"its patch is {found[1]:.0%} that of {found[0]}"
            else:
                index.add(candidate)
        return Ruling(removed, tuple(candidate.id for candidate in candidates if not candidate.patch_lines))


def _with_patch(candidates: Iterable[Candidate]) -> Iterable[Candidate]:
    return (candidate for candidate in candidates if candidate.patch_lines)
