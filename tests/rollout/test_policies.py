"""The policies of one process: what they count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from repairgym.config.models import EngineConfig, ModelConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.inference.base import SamplingParams
from repairgym.inference.loading import create_model, save_checkpoint
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.policies import PolicyCache


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["user assistant edit test undo submit"] * 9, 400, 40)


@pytest.mark.asyncio
async def test_counters_of_an_engine_have_their_names_once(
    tokenizer: PreTrainedTokenizerFast, tiny_config: Callable[..., ModelConfig], tmp_path: Path
) -> None:
    save_checkpoint(create_model(tiny_config(len(tokenizer), max_len_tokens=128)), tokenizer, tmp_path)
    engine, pipeline = EngineConfig(num_slots=2, max_len_tokens=128), PipelineConfig(max_len_tokens=128)
    config = RolloutConfig(engine=engine, pipeline=pipeline)
    policies = PolicyCache(config, ChatRenderer(tokenizer))
    policy = await policies.get(PolicyRef("tiny", str(tmp_path)))
    await policy.generate("s", [5, 6, 7], SamplingParams(max_tokens=4, stop_token_ids=()))
    counters = policies.counters()
    await policies.close()
    assert counters["engine/num_prefill_tokens"] == 3.0
    assert all(name.count("engine/") == 1 for name in counters)
