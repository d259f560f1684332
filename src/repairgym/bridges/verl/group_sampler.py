"""Which groups verl's trainer learns from: those of which at least two members are valid and differ in reward.

Reads finished groups from verl's replay buffer; makes the batch of one iteration. Stands in for
`verl.trainer.ppo.v1.replay_buffer.ReplayBuffer` (verl 0.9.1), which can filter equal groups but then refills without
bound, which learns from the lone survivor of a failed group with its raw reward as advantage, and which stops at a
refill without a valid episode. Invariants: the same groups are kept as by `learning.advantages`; a dropped group is
counted by its reason; an iteration without two valid members in any group stops the run. So does an agent loop that
raised (an episode that fails for the sandbox's or the server's sake ends as invalid and does not raise), and a process
of agent loops that has ended, whose groups verl would wait for without end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ray
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from repairgym.bridges.verl.credit import mask_errors, register_estimator
from repairgym.bridges.verl.group_rules import GroupCounts, keep_groups, positive_members
from repairgym.errors import RepairGymError, SandboxError

_VALIDATION = "val"
_WORKER_PREFIX = "agent_loop_worker_"
"""Of the names that verl gives the actors which run agent loops."""


class GroupSampler(ReplayBuffer):  # type: ignore[misc] # verl is in an environment of its own
    """Samples an iteration's groups; drops what teaches nothing and refills at most ``max_refills`` times.

    Where errors get no credit, what it returns is masked so (`credit`).
    """

    def __init__(self, *, sampler_kwargs: Mapping[str, Any], **kwargs: Any) -> None:
        """Take verl's arguments.

        Args:
            sampler_kwargs: ``num_groups`` wanted per iteration, ``max_refills``, and of `AlgorithmConfig`
                ``is_error_masked`` and ``negative_weight``, where these are set.
            kwargs: The rest of verl's.
        """
        super().__init__(sampler_kwargs=sampler_kwargs, **kwargs)
        self._num_groups = int(sampler_kwargs["num_groups"])
        self._max_refills = int(sampler_kwargs["max_refills"])
        self._is_error_masked = bool(sampler_kwargs.get("is_error_masked", False))
        register_estimator(float(sampler_kwargs.get("negative_weight", 1.0)))

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """The rows of one iteration with metrics.

        Raises:
            RepairGymError: an agent loop raised, or a process of them has ended.
            SandboxError: no group has two valid members.
        """
        if partition_id == _VALIDATION:
            every: tuple[KVBatchMeta, dict[str, Any]] = super().sample(global_steps, partition_id, batch_size)
            return every
        tags: dict[str, Any] = {}
        rewards: dict[str, dict[str, float]] = {}
        missing = batch_size
        for refill in range(1 + self._max_refills):
            if refill:
                self.refill_fn(missing)
            uids, batch = self._finished(partition_id, missing)
            tags |= zip(batch.keys, batch.tags, strict=True)
            rewards |= {uid: {} for uid in uids}
            _add_rewards(rewards, batch)
            kept, counts = keep_groups(rewards)
            missing = self._num_groups - counts.num_kept
            if missing <= 0:
                break
        learned = _learned(partition_id, tags, kept, counts)
        if self._is_error_masked:
            members = positive_members(rewards)
            mask_errors(partition_id, [key for key in learned.keys if _member_of(key) in members])
        return learned, counts.as_metrics()

    def _finished(self, partition_id: str, num_groups: int) -> tuple[list[str], KVBatchMeta]:
        """Ids and rows of the next ``num_groups`` groups that have ended; waits for them."""
        workers = _workers()
        while True:
            self._sync_metadata_from_transfer_queue()
            if self.failure_keys[partition_id]:
                raise RepairGymError(
                    "an agent loop of verl's raised; its traceback is above, at 'Error in _run_prompt'"
                )
            ended = self.finished_keys[partition_id]
            if len(ended) >= num_groups:
                break
            if lost := workers - _workers():
                raise RepairGymError(
                    f"{', '.join(sorted(lost))}: a process that runs episodes has ended, often for want of memory "
                    "(lower rollout.max_in_flight or rollout.num_workers)"
                )
            time.sleep(self.poll_interval)
        uids, rows, _ = self._select_prompt_uids(partition_id, ended, num_groups)
        return uids, self._materialize_batch(partition_id, uids, rows)


def _workers() -> set[str]:
    """Names of the actors that run agent loops and are alive."""
    return {name for name in ray.util.list_named_actors() if name.startswith(_WORKER_PREFIX)}


def _learned(partition_id: str, tags: Mapping[str, Any], kept: set[str], counts: GroupCounts) -> KVBatchMeta:
    """The rows of the kept groups; the others are removed from verl's store."""
    if not kept:
        raise SandboxError(
            f"none of {counts.num_groups} groups has two valid episodes; the reasons are in the run's trajectories "
            "(repairgym view). Run `repairgym doctor`, fix the cause, then run the same command again"
        )
    dropped = [key for key in tags if _group_of(key) not in kept]
    if dropped:
        tq.kv_clear(partition_id=partition_id, keys=dropped)
    keys = [key for key in tags if _group_of(key) in kept]
    return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[tags[key] for key in keys])


def _add_rewards(rewards: Mapping[str, dict[str, float]], batch: KVBatchMeta) -> None:
    """Fill group -> member -> reward; all rows of one episode have its reward."""
    if not batch.keys:
        return
    scores = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["rm_scores"])["rm_scores"]
    for key, score in zip(batch.keys, scores, strict=True):
        rewards[_group_of(key)][_member_of(key)] = float(score.sum())


def _group_of(key: str) -> str:
    """Keys in verl's store are ``group_member_row``."""
    return str(key).split("_", 1)[0]


def _member_of(key: str) -> str:
    return str(key).rsplit("_", 1)[0]
