"""Part of source `history`: old fixes reverted on the newest commit, so that one environment serves all of them.

Reads a clone and the newest commit as a pair that was set up. Makes a pair per commit: the newest sources, and these
without the difference that the commit made. Suite and baseline of the newest commit run once per unit. Guarantees: a
difference applies as a whole and without fuzz, else the commit counts as ``does_not_apply``.
"""

from dataclasses import dataclass, replace

from repairgym.diffs.apply import apply_patch, reverse_patch
from repairgym.diffs.make import unified_diff
from repairgym.diffs.parse import PatchError
from repairgym.tasks.layers.repositories import Commit, GitRepository
from repairgym.tasks.sources.base import Drop
from repairgym.tasks.sources.pairs import Pair


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
        try:
            reverted = apply_patch(reverse_patch(unified_diff(before, after)), self.pair.newer.get)
        except PatchError as error:
            return Drop("does_not_apply", str(error))
        provenance = self.pair.origin.provenance.model_copy(update={"recipe": f"commit {commit.id} reverted"})
        origin = replace(self.pair.origin, provenance=provenance, created_at=commit.date)
        return replace(self.pair, origin=origin, older={**self.pair.newer, **reverted}, without={}, failures={})
