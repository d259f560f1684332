"""Which groups verl's trainer gets, over a real TransferQueue on Ray."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from repairgym.errors import RepairGymError, SandboxError

pytestmark = pytest.mark.verl
PARTITION = "train"


@pytest.fixture(scope="module")
def queue() -> Iterator[Any]:
    import ray
    import transfer_queue
    from omegaconf import OmegaConf

    ray.init("local", num_cpus=3, include_dashboard=False, object_store_memory=100_000_000)
    transfer_queue.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield transfer_queue
    transfer_queue.close()
    ray.shutdown()


@pytest.fixture
def put(queue) -> Iterator[Callable[..., None]]:
    """Leaves a group that has ended, as verl's agent loop workers do."""
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    def leave(
        uid: str, rewards: list[float], status: str = "finished", errors: list[list[list[int]]] | None = None
    ) -> None:
        tag = {"is_prompt": True, "status": "running", "global_steps": 1}
        queue.kv_batch_put(keys=[uid], partition_id=PARTITION, tags=[tag])
        if rewards:
            rows: list[dict[str, Any]] = [
                {"rm_scores": torch.tensor([0.0] * k + [reward])} for k, reward in enumerate(rewards)
            ]
            for row, spans in zip(rows, errors or (), strict=False):
                mask = torch.ones(6, dtype=torch.int64)
                row |= {"response_mask": mask, "loss_mask": mask, "extra_fields": {"error_spans": spans}}
            queue.kv_batch_put(
                keys=[f"{uid}_{k}_0" for k in range(len(rewards))],
                partition_id=PARTITION,
                fields=list_of_dict_to_tensordict(rows),
                tags=[{"status": "success", "global_steps": 1}] * len(rewards),
            )
        queue.kv_put(key=uid, partition_id=PARTITION, tag={"status": status})

    yield leave
    queue.kv_clear(keys=list(left(queue)), partition_id=PARTITION)


def left(queue: Any) -> set[str]:
    return set((queue.kv_list(PARTITION) or {}).get(PARTITION, {}))


def sample(batch_size: int, refill: Callable[[int], Any], num_groups: int, max_refills: int, **credit: Any) -> Any:
    from repairgym.bridges.verl.group_sampler import GroupSampler

    sampler = GroupSampler(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs={"num_groups": num_groups, "max_refills": max_refills} | credit,
        poll_interval=0.1,
        refill_fn=refill,
    )
    return sampler.sample(1, PARTITION, batch_size)


def test_equal_groups_are_dropped_and_a_refill_without_a_valid_episode_continues(queue, put):
    put("mixed", [1.0, 0.0, 0.5])
    put("equal", [1.0, 1.0])
    put("lone", [1.0])
    asked = []

    def refill(num_groups: int) -> None:
        asked.append(num_groups)
        put("failed", [])

    batch, metrics = sample(3, refill, num_groups=2, max_refills=1)
    assert asked == [1]
    assert sorted(batch.keys) == ["mixed_0_0", "mixed_1_0", "mixed_2_0"] == sorted(left(queue))
    assert metrics == {"groups/num_kept": 1.0, "groups/num_equal": 1.0, "groups/num_failed": 2.0}


def test_errors_get_no_credit_where_an_episode_did_better_than_its_group(queue, put):
    put("mixed", [1.0, 0.0, 1.0], errors=[[[0, 2], [4, 5]], [[0, 2]], []])
    batch, _ = sample(1, lambda _: None, num_groups=1, max_refills=0, is_error_masked=True)
    keys = sorted(batch.keys)
    batch = queue.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=["response_mask", "loss_mask"])
    for name in ("response_mask", "loss_mask"):
        assert [mask.tolist() for mask in batch[name]] == [[0, 0, 1, 1, 0, 1], [1] * 6, [1] * 6]


def test_failures_weigh_less_and_everything_else_is_verls_grpo():
    import numpy as np
    from verl.trainer.ppo import core_algos

    from repairgym.bridges.verl.group_sampler import register_estimator
    from repairgym.bridges.verl.setting_table import WEIGHTED_GROUP

    rewards, mask = torch.zeros(4, 3), torch.tensor([[1, 1, 1], [1, 0, 1], [1, 1, 0], [0, 1, 1]])
    rewards[:, -1] = torch.tensor([1.0, 0.0, 0.0, 1.0])
    groups = np.array(["a", "a", "b", "b"], dtype=object)
    for is_normalized in (True, False):
        want, _ = core_algos.compute_grpo_outcome_advantage(
            rewards, mask, groups, norm_adv_by_std_in_grpo=is_normalized
        )
        register_estimator(0.25)
        advantages, returns = core_algos.get_adv_estimator_fn(WEIGHTED_GROUP)(
            token_level_rewards=rewards,
            response_mask=mask,
            index=groups,
            config={"norm_adv_by_std_in_grpo": is_normalized},
        )
        assert torch.equal(advantages, torch.where(want < 0, 0.25 * want, want))
        assert torch.equal(advantages, returns)
        assert (advantages < 0).any()


def test_an_iteration_without_two_valid_members_in_any_group_stops_the_run(put):
    put("lone", [1.0])
    put("failed", [])
    with pytest.raises(SandboxError, match="none of 2 groups has two valid episodes"):
        sample(2, lambda _: None, num_groups=2, max_refills=0)


def test_a_process_of_agent_loops_that_ends_stops_the_run(put):
    import ray

    @ray.remote(num_cpus=0)
    class AgentLoops:
        def ready(self) -> None:
            """Answers once it runs."""

    name = "agent_loop_worker_0_1a2b"
    process = AgentLoops.options(name=name).remote()
    ray.get(process.ready.remote())
    put("waiting", [], "running")
    ending = threading.Timer(2.0, lambda: ray.kill(process))
    ending.start()
    with pytest.raises(RepairGymError, match=f"{name}: a process that runs episodes has ended"):
        sample(1, lambda _: None, num_groups=1, max_refills=0)


def test_an_agent_loop_that_raises_stops_the_run(put):
    put("mixed", [1.0, 0.0])
    put("broken", [1.0], "failure")
    with pytest.raises(RepairGymError, match="Error in _run_prompt"):
        sample(2, lambda _: None, num_groups=2, max_refills=0)
