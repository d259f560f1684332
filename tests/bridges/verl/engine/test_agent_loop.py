"""verl's own agent loop worker and FSDP2 learner on our episodes in real sandboxes, in one process without Ray."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from repairgym.bridges.verl.config_files import VerlPaths, paths_of, write_stage
from repairgym.bridges.verl.outputs import read_spool
from repairgym.bridges.verl.training import stages_of
from repairgym.config.loading import load_config
from repairgym.config.recipes import RlCommandConfig
from repairgym.records import Trajectory
from repairgym.tasks.store import TaskStore

pytestmark = pytest.mark.verl
GROUP_SIZE, NUM_GROUPS, NUM_STEPS = 4, 2, 3
OVERRIDES = [
    f"rl.algorithm.group_size={GROUP_SIZE}",
    f"rl.algorithm.batch_size={GROUP_SIZE * NUM_GROUPS}",
    "rl.algorithm.loss.type=grpo",
    "rl.algorithm.optimizer.learning_rate=1e-4",
    # Whatever the verdicts are, episodes differ in length, so that there is something to learn.
    "rl.reward.type=step_penalty",
    "rl.reward.threshold_turns=1",
    "rollout.pipeline.max_turns=4",
    "rollout.engine.num_slots=8",
    "rollout.max_in_flight=4",
]


@dataclass
class Loop:
    """verl's configuration, our engine behind verl's worker, and where trajectories are left."""

    config: Any
    server: Any
    worker: Any
    paths: VerlPaths

    async def sample(self, rows: list[dict[str, Any]]) -> Any:
        """verl's batch of one episode per row."""
        from verl import DataProto

        columns = {name: np.array([row[name] for row in rows] + [None], dtype=object)[:-1] for name in rows[0]}
        return await self.worker.generate_sequences(DataProto(non_tensor_batch=columns))

    def left(self) -> list[Trajectory]:
        """Trajectories in the spool, which are taken out of it."""
        trajectories = []
        for spooled in list(read_spool(self.paths.spool)):
            trajectories.append(spooled.trajectory)
            spooled.file.unlink()
        return trajectories


@pytest.fixture
def loop(tmp_path, tasks, base, cpu, compose) -> Loop:
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    from repairgym.bridges.verl.workers import EmbeddedServer

    (stage,) = stages_of(load_config(RlCommandConfig, None, OVERRIDES))
    paths = replace(paths_of(tmp_path, "rl", "start", tasks), model=base)
    config = compose(write_stage(stage, cpu.model_copy(update={"gpus_per_node": 1}), paths))
    server = EmbeddedServer(str(base), stage.rollout.engine)
    return Loop(config, server, AgentLoopWorker(config, server), paths)


def rows_of(tasks, num_tasks: int, num_members: int, step: int = 1) -> list[dict[str, Any]]:
    return [
        {
            "extra_info": {"task_id": task.id, "split": task.split},
            "raw_prompt": [],
            "uid": f"{step}{number}",
            "session_id": member,
            "global_steps": step,
        }
        for number, task in enumerate(TaskStore(tasks).load()[:num_tasks])
        for member in range(num_members)
    ]


@pytest.mark.asyncio
async def test_ids_mask_log_probs_reward_and_versions_equal_the_ledger(loop, tasks):
    rows = rows_of(tasks, 3, 1)
    output = await loop.sample(rows)
    left = {trajectory.task_id: trajectory for trajectory in loop.left()}
    assert len(left) == 3
    width = output.batch["prompts"].shape[1]
    for k, row in enumerate(rows):
        trajectory = left[row["extra_info"]["task_id"]]
        at = np.flatnonzero(trajectory.ledger.is_action)
        mask = output.batch["response_mask"][k].bool()
        assert mask.sum() == len(at)
        assert output.batch["responses"][k][mask].tolist() == trajectory.ledger.token_id[at].tolist()
        assert output.batch["rollout_log_probs"][k][mask].numpy() == pytest.approx(trajectory.ledger.log_prob[at])
        prompt = output.batch["prompts"][k][output.batch["attention_mask"][k][:width].bool()]
        assert prompt.tolist() == trajectory.ledger.token_id[: at[0]].tolist()
        assert output.batch["rm_scores"][k].sum() <= trajectory.verdict.reward
        assert set(trajectory.ledger.policy_version[at]) == {0}
        assert trajectory.sandbox_backend == "namespace"


@pytest.mark.asyncio
async def test_grpo_steps_of_verls_learner_change_the_sampling_weights(loop, tasks, monkeypatch):
    from verl.workers.engine_workers import ActorRolloutRefWorker

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in process.items():
        monkeypatch.setenv(name, value)
    actor = ActorRolloutRefWorker(config=loop.config.actor_rollout_ref, role="actor")
    actor.init_model()
    before = weights(actor)
    grad_norms = []
    for step in range(1, NUM_STEPS + 1):
        rows = rows_of(tasks, NUM_GROUPS, GROUP_SIZE, step)
        batch = await loop.sample(rows)
        versions = {int(v) for t in loop.left() for v in t.ledger.policy_version[t.ledger.is_action]}
        assert versions == {step - 1}
        grad_norms.append(update(actor, loop.config, batch, [row["uid"] for row in rows]))
        await loop.server.load(weights(actor), step)
    after = weights(actor)
    assert max(grad_norms) > 0.0
    assert sum(not torch.equal(before[name], after[name]) for name in before) > len(before) // 2


def weights(actor: Any) -> dict[str, torch.Tensor]:
    named, _ = actor.actor.engine.get_per_tensor_param()
    return {name: tensor.detach().float().clone() for name, tensor in named}


def update(actor: Any, config: Any, batch: Any, groups: list[str]) -> float:
    """One update as verl's trainer makes it; returns the gradient norm."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import left_right_2_no_padding

    mask = batch.batch["response_mask"]
    advantages, _ = compute_grpo_outcome_advantage(batch.batch["rm_scores"], mask, np.array(groups, dtype=object))
    batch.batch["advantages"] = advantages
    batch.batch["old_log_probs"] = batch.batch["rollout_log_probs"]
    batch.meta_info["temperature"] = config.actor_rollout_ref.rollout.temperature
    data = left_right_2_no_padding(batch.to_tensordict())
    tu.assign_non_tensor(
        data,
        calculate_entropy=True,
        distillation_use_topk=False,
        distillation_only=False,
        global_batch_size=len(groups),
        mini_batch_size=len(groups),
        epochs=1,
        seed=0,
        dataloader_kwargs={"shuffle": False},
        compute_loss=True,
    )
    metrics = tu.get(actor.update_actor(data), "metrics")
    return float(np.mean(metrics["grad_norm"]))
