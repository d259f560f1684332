"""`repairgym serve` in front of a real vLLM: its tokens, its log-probabilities, schemas and required tools."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from repairgym.config.commands import ServeConfig
from repairgym.config.learning import ComputeConfig, OptimizerConfig
from repairgym.config.models import EndpointConfig
from repairgym.inference.loading import load_model, load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.vllm.server import TokenServer, ask_servers
from repairgym.learning.learner import Learner
from repairgym.learning.samples import text_sample
from repairgym.serving.app import ModelServer
from repairgym.serving.upstream import UpstreamModel

pytestmark = pytest.mark.vllm
OUTPUTS = '{"backend": "guidance", "disable_any_whitespace": true}'
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
HELLO = [{"role": "user", "content": "f in m.py is wrong: 1 < 2"}]
BODIES: dict[str, dict[str, Any]] = {
    "plain": {"max_tokens": 24, "seed": 3, "logprobs": True, "return_token_ids": True},
    "formed": {"max_tokens": 90, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    "called": {
        "max_tokens": 90,
        "tools": [{"type": "function", "function": {"name": "save", "parameters": SCHEMA}}],
        "tool_choice": "required",
    },
    "odd": {"max_tokens": 9, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "odd"}}}},
}


def test_a_real_server_behind_our_dialects(base: Path, start_server, note) -> None:
    renderer = ChatRenderer(load_tokenizer(base))

    async def ask(servers: list[TokenServer]) -> dict[str, Any]:
        app = ModelServer(UpstreamModel(servers[0], renderer, 1024), "tiny", ServeConfig()).app()
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1", timeout=600
        ) as client:
            asked = {kind: body | {"messages": HELLO} for kind, body in BODIES.items()}
            posts = (client.post("/v1/chat/completions", json=body) for body in asked.values())
            return dict(zip(asked, [answer.json() for answer in await asyncio.gather(*posts)], strict=True))

    with start_server(base, "--structured-outputs-config", OUTPUTS) as url:
        endpoint = EndpointConfig.model_validate({"base_url": url, "model": "tiny"})
        answers = asyncio.run(ask_servers(endpoint, ask, is_versioned=False))
    plain, [choice] = answers["plain"], answers["plain"]["choices"]
    ids = [*plain["prompt_token_ids"], *choice["token_ids"]]
    (measured,) = Learner(load_model(base), OptimizerConfig(), ComputeConfig()).measure([text_sample(ids)])
    reported = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    exact = measured.log_prob[-len(reported) :].tolist()
    gap = max(abs(one - other) for one, other in zip(reported, exact, strict=True))
    note("serve in front of vLLM: log-probs against the learner's, largest", f"{gap:.1e}")
    assert gap < 1e-4
    assert json.loads(answers["formed"]["choices"][0]["message"]["content"])["a"] in ("x", "y")
    [call] = answers["called"]["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["a"] in ("x", "y")
    assert answers["odd"]["error"]["code"] == "upstream_rejected"
