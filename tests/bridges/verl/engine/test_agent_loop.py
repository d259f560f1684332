"""verl's own agent loop worker runs our episodes in real sandboxes, without Ray; the embedded engine answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mendwright.bridges.verl.spool import spooled
from mendwright.config.commands import RlCommandConfig
from mendwright.config.loading import load_config
from mendwright.recipes.verl import places_of, stages_of, write_stage
from mendwright.tasks.store import TaskStore

pytestmark = pytest.mark.verl
OVERRIDES = [
    "rl.dapo.batch_size=130",
    "rollout.pipeline.max_turns=4",
    "rollout.engine.num_slots=8",
    "rollout.max_in_flight=4",
]


@pytest.mark.asyncio
async def test_ids_mask_log_probs_reward_and_versions_are_the_ledgers(tmp_path, tasks, base, cpu, compose):
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    from mendwright.bridges.verl.embedded_rollout import EmbeddedServer

    (stage,) = stages_of(load_config(RlCommandConfig, None, OVERRIDES))
    places = replace(places_of(tmp_path, "dapo", "start", tasks), model=base)
    config = compose(write_stage(stage, cpu, places))
    server = EmbeddedServer(str(base), stage.rollout.engine)
    worker = AgentLoopWorker(config, server)
    rows = [
        {"extra_info": {"task_id": task.id, "split": task.split}, "raw_prompt": [], "uid": f"{k}", "session_id": 0}
        for k, task in enumerate(TaskStore(tasks).load()[:3])
    ]
    columns = {name: np.array([row[name] for row in rows] + [None], dtype=object)[:-1] for name in rows[0]}
    found = await worker.generate_sequences(DataProto(non_tensor_batch=columns))

    left = {one.trajectory.task_id: one.trajectory for _, one in spooled(places.spool)}
    assert len(left) == 3
    for k, row in enumerate(rows):
        trajectory = left[row["extra_info"]["task_id"]]
        at = np.flatnonzero(trajectory.ledger.is_action)
        mask = found.batch["response_mask"][k].bool()
        assert mask.sum() == len(at)
        assert found.batch["responses"][k][mask].tolist() == trajectory.ledger.token_id[at].tolist()
        assert found.batch["rollout_log_probs"][k][mask].numpy() == pytest.approx(trajectory.ledger.log_prob[at])
        prompt = found.batch["prompts"][k][found.batch["attention_mask"][k][: found.batch["prompts"].shape[1]].bool()]
        assert prompt.tolist() == trajectory.ledger.token_id[: at[0]].tolist()
        assert found.batch["rm_scores"][k].sum() == trajectory.verdict.reward
        assert set(trajectory.ledger.policy_version[at]) == {0}
        assert trajectory.sandbox_backend == "namespace"
