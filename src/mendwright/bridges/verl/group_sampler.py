"""Which groups verl's trainer learns from: those of which at least two members are valid and differ in reward.

Reads finished groups from verl's replay buffer; makes the batch of one iteration. Stands in for
`verl.trainer.ppo.v1.replay_buffer.ReplayBuffer` (verl 0.9.1), which can filter equal groups but then refills without
bound, and which learns from the lone survivor of a failed group with its raw reward as advantage. Invariants: the same
groups are kept as by `learning.advantages`; a dropped group is counted by its reason; an iteration without two valid
members in any group stops the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from mendwright.bridges.verl.group_rules import GroupCounts, keep_groups
from mendwright.errors import SandboxError


class GroupSampler(ReplayBuffer):  # type: ignore[misc] # verl is in an environment of its own
    """Samples an iteration's groups; drops what teaches nothing and refills at most ``max_refills`` times."""

    def __init__(self, *, sampler_kwargs: Mapping[str, Any], **kwargs: Any) -> None:
        """``sampler_kwargs``: ``num_groups`` wanted per iteration, ``max_refills``; the rest is verl's."""
        super().__init__(sampler_kwargs=sampler_kwargs, gen_batch_size=1, **kwargs)
        self._num_groups = int(sampler_kwargs["num_groups"])
        self._max_refills = int(sampler_kwargs["max_refills"])

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """The trajectories of one iteration with metrics.

        Raises:
            SandboxError: no group has two valid members.
        """
        if partition_id == "val":
            every: tuple[KVBatchMeta, dict[str, Any]] = super().sample(global_steps, partition_id, batch_size)
            return every
        batches: list[KVBatchMeta] = []
        rewards: dict[str, dict[str, float]] = {}
        metrics: dict[str, Any] = {}
        missing = batch_size
        for refill in range(1 + self._max_refills):
            if refill:
                self.refill_fn(missing)
            batch, found = super().sample(global_steps, partition_id, missing)
            batches.append(batch)
            metrics |= found
            rewards |= _rewards_of(batch)
            kept, counts = keep_groups(rewards)
            missing = self._num_groups - counts.num_kept
            if missing <= 0:
                break
        return self._learned(batches, kept, counts), metrics | counts.as_metrics()

    def _learned(self, batches: list[KVBatchMeta], kept: set[str], counts: GroupCounts) -> KVBatchMeta:
        partition_id = batches[0].partition_id
        tags = {key: tag for batch in batches for key, tag in zip(batch.keys, batch.tags, strict=True)}
        if not kept:
            raise SandboxError(
                f"none of {counts.num_groups} groups has two valid episodes; the reasons are in the run's trajectories "
                "(mend view). Run `mend doctor`, mend the cause, then run the same command again"
            )
        dropped = [key for key in tags if _group_of(key) not in kept]
        if dropped:
            tq.kv_clear(partition_id=partition_id, keys=dropped)
        keys = [key for key in tags if _group_of(key) in kept]
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[tags[key] for key in keys])


def _rewards_of(batch: KVBatchMeta) -> dict[str, dict[str, float]]:
    """Group -> member -> reward; all rows of one episode have its reward."""
    scores = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["rm_scores"])["rm_scores"]
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for key, score in zip(batch.keys, scores, strict=True):
        found[_group_of(key)][key.rsplit("_", 1)[0]] = float(score.sum())
    return dict(found)


def _group_of(key: str) -> str:
    """Keys in verl's store are ``group_member_row``."""
    return str(key).split("_", 1)[0]
