"""Filter `contamination`: training tasks that tell about held-out ones.

Held-out tasks (validation, test) always stay; the training task goes. Where a task has no split nothing can be said.
"""

from __future__ import annotations

from collections.abc import Sequence

from repairgym.config.curation import CurationConfig
from repairgym.tasks.curation.base import Ruling
from repairgym.tasks.curation.candidate import Candidate
from repairgym.tasks.curation.duplicates import PatchIndex


class Contamination:
    """Leave out training tasks that share a package, a time or a patch with held-out ones."""

    source = "paper A (splits in time order), paper B, section 4.1 (months held out)"

    def judge(self, candidates: Sequence[Candidate], config: CurationConfig) -> Ruling:
        """See `TaskFilter.judge`."""
        held_out = [one for one in candidates if one.split in ("validation", "test")]
        training = [one for one in candidates if one.split == "train"]
        removed: dict[str, str] = {}
        if config.contamination.by_package:
            removed |= _by_package(training, held_out)
        if config.contamination.by_time:
            removed = _by_time(training, held_out) | removed
        if config.contamination.by_patch:
            removed = _by_patch(training, held_out, config.duplicates.max_similarity) | removed
        unmeasured = [one.id for one in candidates if one.split is None]
        if config.contamination.by_time and held_out:
            unmeasured += [one.id for one in training if one.created_at is None and one.id not in removed]
        return Ruling(removed, tuple(unmeasured))


def _by_package(training: Sequence[Candidate], held_out: Sequence[Candidate]) -> dict[str, str]:
    splits = {_name(one): one.split for one in held_out if one.package}
    found = ((one.id, splits.get(_name(one))) for one in training)
    return {task_id: f"its package is in {split}" for task_id, split in found if split}


def _name(candidate: Candidate) -> str:
    # The same project is `boltons` on an index and `mahmoud/boltons` as a repository.
    return candidate.package.rpartition("/")[2].lower().replace("_", "-")


def _by_time(training: Sequence[Candidate], held_out: Sequence[Candidate]) -> dict[str, str]:
    times = [one.created_at for one in held_out if one.created_at]
    if not times:
        return {}
    first = min(times)
    late = (one for one in training if one.created_at and one.created_at >= first)
    return {one.id: f"it is not older than the first held-out task ({first:%Y-%m-%d})" for one in late}


def _by_patch(training: Sequence[Candidate], held_out: Sequence[Candidate], max_similarity: float) -> dict[str, str]:
    index = PatchIndex(max_similarity)
    for one in held_out:
        index.add(one)
    found = ((one.id, index.find(one)) for one in training if one.patch_lines)
    return {task_id: f"its patch is {hit[1]:.0%} that of {hit[0]}, which is held out" for task_id, hit in found if hit}
