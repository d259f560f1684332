"""A real model, a history with cuts: what the sampler said of each token is what a forward over its history says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from repairgym.agent.pipelines.base import EpisodeRunner
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.agent.tools.base import ToolContext
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.models import EngineConfig, ModelConfig
from repairgym.config.pipeline import ContextConfig, ElisionConfig, PipelineConfig, SummaryConfig
from repairgym.errors import SandboxError
from repairgym.inference.embedded import EmbeddedPolicy
from repairgym.inference.engine.core import Engine
from repairgym.inference.loading import create_model
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.learning.samples import policy_sample, split_histories
from repairgym.records import Trajectory, Verdict, VerdictKind
from repairgym.sandbox.cache import ExecutionCache


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("context", "num_histories"),
    [(ElisionConfig(num_kept=1, every_turns=2), 4), (SummaryConfig(full_share=0.1, num_actions=2), 2)],
    ids=["elision", "summary"],
)
async def test_every_history_has_the_log_probs_of_a_full_forward(
    task, tmp_path, context: ContextConfig, num_histories: int
):
    tokenizer = train_tokenizer(["user assistant edit test lines left out"] * 9, 400, 40)
    renderer = ChatRenderer(tokenizer)
    model = create_model(
        ModelConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_layers=2,
            num_heads=2,
            num_kv_heads=1,
            head_dim=16,
            intermediate_size=32,
            max_len_tokens=2048,
        )
    )
    policy = EmbeddedPolicy(Engine(model, EngineConfig(num_slots=2, max_len_tokens=2048)), is_threaded=False)

    async def no_sandbox(files):
        raise SandboxError("no sandbox in this test")

    pipeline = make_pipeline(
        PipelineConfig(context=context, max_turns=8, max_action_tokens=6, max_len_tokens=2048), ExecutionCache()
    )
    workspace = Workspace(tmp_path, task.base_files, no_sandbox)
    runner = EpisodeRunner(pipeline, policy, renderer)
    episode = await runner.run("s", ToolContext(task=task, workspace=workspace), 3)
    verdict = Verdict(kind=VerdictKind.PASSED, reason="", grader_version="1")
    trajectory = Trajectory(
        "t", "t", "g", "p", "m", "", episode.turns, episode.ledger, episode.stop_reason, {}, "", verdict, 3
    )
    parts = split_histories(trajectory)
    assert len(parts) >= num_histories
    samples = [policy_sample(part, 1.0) for part in parts]
    assert sum(sample.num_learned for sample in samples) == episode.ledger.is_action.sum()
    for sample in samples:
        with torch.no_grad():
            logits = model(torch.tensor(sample.token_id[None].astype(np.int64))).logits[0, :-1].float()
        ids = torch.tensor(sample.token_id[1:].astype(np.int64))
        found = torch.log_softmax(logits, -1).gather(1, ids[:, None])[:, 0].numpy()
        learned = sample.weight[1:] > 0
        np.testing.assert_allclose(found[learned], sample.old_log_prob[1:][learned], atol=2e-5)
