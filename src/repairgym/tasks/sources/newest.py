"""Part of source `history`: old fixes reverted on the newest commit, so that one environment serves all of them.

Reads a clone and the newest commit as a pair that was set up. Makes a pair per commit: the newest sources, and these
without the difference that the commit made. Suite and baseline of the newest commit run once per unit. Guarantees: each
changed place is found exactly once in the newest sources, with at least one equal line on both sides (at an end of the
commit's file: at the same end of the newest one), else the whole commit counts as ``does_not_apply``.
"""

from dataclasses import dataclass, replace

from repairgym.diffs.lines import split_lines
from repairgym.tasks.layers.repositories import Commit, GitRepository
from repairgym.tasks.sources.base import Drop
from repairgym.tasks.sources.fixes import Hunk, Texts, find_hunks
from repairgym.tasks.sources.pairs import Pair

NUM_CONTEXT_LINES = (3, 2, 1)
"""Equal lines on each side of a change, as many as are found exactly once."""


@dataclass(frozen=True)
class NewestState:
    """The newest commit, ready to run."""

    clone: GitRepository
    pair: Pair
    """Its sources on both sides."""

    def without(self, commit: Commit, sources: tuple[str, ...]) -> Pair | Drop:
        """Return the newest commit without what ``commit`` changed in ``sources``."""
        before = {path: self.clone.text(commit.parents[0], path) for path in sources}
        after = {path: self.clone.text(commit.id, path) for path in sources}
        reverted = dict(self.pair.newer)
        for hunk in reversed(find_hunks(before, after)):
            text = _taken_back(hunk, after, reverted.get(hunk.path))
            if text is None:
                return Drop("does_not_apply", f"{hunk.path}: the change of line {hunk.first + 1} is not there once")
            reverted[hunk.path] = text
        provenance = self.pair.origin.provenance.model_copy(update={"recipe": f"commit {commit.id} reverted"})
        origin = replace(self.pair.origin, provenance=provenance, created_at=commit.date)
        return replace(self.pair, origin=origin, older=reverted, without={}, failures={})


def _taken_back(hunk: Hunk, after: Texts, newest: str | None) -> str | None:
    """Return the text ``newest`` without ``hunk`` of a commit; None where the change is not there exactly once."""
    if hunk.is_whole_file or newest is None:
        return None
    changed, lines = split_lines(after[hunk.path] or ""), split_lines(newest)
    is_at_start, is_at_end = hunk.first == 0, hunk.end == len(changed)
    for number in NUM_CONTEXT_LINES:
        first, end = max(0, hunk.first - number), min(len(changed), hunk.end + number)
        wanted = changed[first:end]
        last = len(lines) - len(wanted)
        places = [at for at in range(last + 1) if lines[at : at + len(wanted)] == wanted]
        # Without context on a side, only the end of the file says that nothing came between since.
        places = [at for at in places if (not is_at_start or at == 0) and (not is_at_end or at == last)]
        if len(places) == 1:
            old = (*changed[first : hunk.first], *hunk.old_lines, *changed[hunk.end : end])
            return "".join((*lines[: places[0]], *old, *lines[places[0] + len(wanted) :]))
    return None
