"""Errors get no credit and failures weigh less (ADR 015), in verl's trainer.

Rewrites masks in verl's store and adds an estimator of advantages to verl's registry. Invariants: a mask changes before
the trainer reads the batch, and only where an episode did better than its group, so that errors are unlearned where it
did worse; the advantages are those of verl's GRPO but for the factor on negative ones.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transfer_queue as tq
from verl.trainer.ppo import core_algos
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from repairgym.bridges.verl.learned_settings import WEIGHTED_GROUP


def mask_errors(partition_id: str, keys: list[str]) -> None:
    """Leave the turns that ended in an error out of these rows of verl's store."""
    if not keys:
        return
    found = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["response_mask", "extra_fields"])
    masked = {
        key: _without(mask, _plain(extra)["error_spans"])
        for key, mask, extra in zip(keys, found["response_mask"], found["extra_fields"], strict=True)
        if _plain(extra)["error_spans"]
    }
    if masked:
        # verl keeps one mask under two names: its losses read the first, its count of a batch's tokens the second.
        rows = [{"response_mask": mask, "loss_mask": mask} for mask in masked.values()]
        tq.kv_batch_put(keys=list(masked), partition_id=partition_id, fields=list_of_dict_to_tensordict(rows))


def register_estimator(negative_weight: float) -> None:
    """Add verl's GRPO with a factor on negative advantages as ``WEIGHTED_GROUP``; a later call replaces it."""
    core_algos.ADV_ESTIMATOR_REGISTRY[WEIGHTED_GROUP] = partial(_weighted_group, negative_weight)


def _weighted_group(
    negative_weight: float,
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Any,
    config: Any,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, tokens] advantages, and the same as returns, by the arguments that verl gives every estimator."""
    advantages, _ = core_algos.compute_grpo_outcome_advantage(
        token_level_rewards, response_mask, index, norm_adv_by_std_in_grpo=config.get("norm_adv_by_std_in_grpo", True)
    )
    weighted = torch.where(advantages < 0, negative_weight * advantages, advantages)
    return weighted, weighted


def _without(mask: torch.Tensor, spans: list[list[int]]) -> torch.Tensor:
    left = mask.clone()
    for start, end in spans:
        left[start:end] = 0
    return left


def _plain(value: Any) -> Any:
    """What verl's store gives for what is no tensor, out of its wrapper."""
    return getattr(value, "data", value)
