"""Puts candidates into splits: as they are, whole packages, or in time order.

Reads candidates; makes candidates with splits. Invariants: the same candidates and configuration give the same splits
whatever their order, a package is never divided by ``package``, and tasks of one time are never divided by ``time``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from repairgym.config.curation import SplitConfig
from repairgym.errors import InputError
from repairgym.records import Split
from repairgym.tasks.curation.candidate import Candidate

_SPLITS: tuple[Split, Split, Split] = ("train", "validation", "test")


def assign_splits(candidates: Sequence[Candidate], config: SplitConfig) -> list[Candidate]:
    """``candidates`` in their order, with splits.

    Raises:
        InputError: ``time`` was asked for and a task has no time.
    """
    if config.by == "keep":
        return list(candidates)
    if config.by == "package":
        order = _package_order(candidates, config.seed)
        groups = [order[one.package] for one in candidates]
    else:
        groups = _time_order(candidates)
    splits = _split_groups(groups, config.shares)
    return [replace(one, split=splits[group]) for one, group in zip(candidates, groups, strict=True)]


def _package_order(candidates: Iterable[Candidate], seed: int) -> dict[str, int]:
    packages = {one.package for one in candidates}
    ranked = sorted(packages, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    return {name: place for place, name in enumerate(ranked)}


def _time_order(candidates: Sequence[Candidate]) -> list[int]:
    times = [one.created_at for one in candidates if one.created_at]
    missing = [one.id for one in candidates if not one.created_at]
    if missing:
        raise InputError(
            f"split.by=time needs the time of every task, and {len(missing)} have none (the first: {missing[0]}); use "
            "split.by=package"
        )
    places = {time: place for place, time in enumerate(sorted(set(times)))}
    return [places[time] for time in times]


def _split_groups(groups: Iterable[int], shares: tuple[float, float, float]) -> dict[int, Split]:
    """The split of each group: groups in order, each where its middle falls among the shares."""
    sizes = Counter(groups)
    bounds = (shares[0], shares[0] + shares[1])
    total, done = sizes.total(), 0
    found: dict[int, Split] = {}
    for group in sorted(sizes):
        middle = (done + sizes[group] / 2) / total
        found[group] = _SPLITS[sum(middle >= bound for bound in bounds)]
        done += sizes[group]
    return found
