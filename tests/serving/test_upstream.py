"""The server in front of another one: the same tokens in every dialect, and what clients ask for reaches it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from tests.serving.conftest import MODEL

from repairgym.config.commands import ServeConfig
from repairgym.config.learning import ComputeConfig, OptimizerConfig
from repairgym.config.models import EndpointConfig
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.loading import create_model, load_model, save_checkpoint
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.inference.vllm.server import TokenServer
from repairgym.learning.learner import Learner
from repairgym.learning.samples import text_sample
from repairgym.serving.app import ModelServer
from repairgym.serving.upstream import UpstreamModel
from repairgym.testing.fake_vllm import FakeVllm, Flaw
from repairgym.testing.servers import url_of

HELLO = [{"role": "user", "content": "f is wrong"}]
ASK = {"messages": HELLO, "max_tokens": 8, "seed": 3, "return_token_ids": True, "logprobs": True}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "save", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_tokenizer(["def f(a, b):\n    return a < b\n"] * 9, 400, 10)
    path = tmp_path_factory.mktemp("model")
    save_checkpoint(create_model(MODEL.model_copy(update={"vocab_size": len(tokenizer)})), tokenizer, path)
    return path


@asynccontextmanager
async def in_front_of(fake: FakeVllm, renderer: ChatRenderer, **settings: Any) -> AsyncIterator[httpx2.AsyncClient]:
    listening = await fake.serve()
    fields = {"base_url": url_of(listening), "model": "tiny", "max_attempts": 2, "backoff_s": 0.001, "timeout_s": 20.0}
    try:
        async with EndpointClient(EndpointConfig.model_validate(fields)) as client:
            model = UpstreamModel(TokenServer(client), renderer, 512)
            app = ModelServer(model, "tiny", ServeConfig(**settings)).app()
            async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as asking:
                yield asking
    finally:
        listening.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 (the fake has no event for it)
            await asyncio.sleep(0.01)


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def learner_log_probs(folder: Path, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
    learner = Learner(load_model(folder), OptimizerConfig(), ComputeConfig())
    (measured,) = learner.measure([text_sample([*prompt, *ids])])
    return [float(value) for value in measured.log_prob[len(prompt) :]]


@pytest.mark.asyncio
async def test_tokens_and_log_probs_are_those_of_the_server(folder: Path, renderer: ChatRenderer) -> None:
    async with in_front_of(FakeVllm(folder), renderer, is_strict=True) as client:
        answer = (await client.post("/v1/chat/completions", json=ASK)).json()
        streamed = events_of((await client.post("/v1/chat/completions", json=ASK | {"stream": True})).text)
    [choice] = answer["choices"]
    assert answer["policy_version"] == 0
    assert choice["token_ids"] == [token for event in streamed for token in event["choices"][0].get("token_ids") or ()]
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in streamed)
    assert text == choice["message"]["content"]
    reported = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    exact = learner_log_probs(folder, answer["prompt_token_ids"], choice["token_ids"])
    assert np.allclose(reported, exact, atol=1e-4)


@pytest.mark.asyncio
async def test_a_conversation_continues_from_the_sampled_tokens(folder: Path, renderer: ChatRenderer) -> None:
    async with in_front_of(FakeVllm(folder), renderer) as client:
        first = (await client.post("/v1/chat/completions", json=ASK)).json()
        messages = [*HELLO, first["choices"][0]["message"], {"role": "user", "content": "more"}]
        second = (await client.post("/v1/chat/completions", json=ASK | {"messages": messages})).json()
    tokens = first["prompt_token_ids"] + first["choices"][0]["token_ids"]
    assert second["prompt_token_ids"][: len(tokens)] == tokens


@pytest.mark.asyncio
async def test_every_setting_reaches_the_server(folder: Path, renderer: ChatRenderer) -> None:
    fake = FakeVllm(folder)
    asked = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "presence_penalty": 0.1, "frequency_penalty": 0.2}
    async with in_front_of(fake, renderer) as client:
        body = ASK | asked | {"logit_bias": {"65": 100}, "top_logprobs": 2, "n": 2}
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    sent = fake.streamed[0]
    assert {name: sent[name] for name in asked} == asked
    assert (sent["seed"], fake.streamed[1]["seed"], sent["max_tokens"], sent["min_p"]) == (3, 4, 8, 0.0)
    assert sent["ignore_eos"] is True
    assert answer["choices"][0]["token_ids"] == [65] * 8
    assert answer["policy_version"] == -1  # the server's log-probabilities are not those of what was sampled
    assert {len(entry["top_logprobs"]) for entry in answer["choices"][0]["logprobs"]["content"]} == {2}


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
async def test_schemas_and_required_tools_hold_in_every_dialect(
    folder: Path, renderer: ChatRenderer, path: str
) -> None:
    form: dict[str, Any] = {"type": "json_schema", "schema": SCHEMA}
    bodies: dict[str, dict[str, Any]] = {
        "chat/completions": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
            "messages": HELLO,
        },
        "responses": {"text": {"format": form}, "input": "f is wrong"},
        "messages": {"output_config": {"format": form}, "messages": HELLO, "max_tokens": 90},
    }
    async with in_front_of(FakeVllm(folder), renderer, default_reply_tokens=90) as client:
        formed = (await client.post(f"/v1/{path}", json=bodies[path])).json()
        called = (
            await client.post(
                "/v1/chat/completions",
                json={"messages": HELLO, "tools": [TOOL], "tool_choice": "required", "max_tokens": 90},
            )
        ).json()
    text = {
        "chat/completions": lambda: formed["choices"][0]["message"]["content"],
        "responses": lambda: formed["output"][0]["content"][0]["text"],
        "messages": lambda: formed["content"][0]["text"],
    }[path]()
    assert json.loads(text)["a"] in ("x", "y")
    [call] = called["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["a"] in ("x", "y")


@pytest.mark.asyncio
async def test_a_stop_text_and_a_client_that_goes_end_the_sampling(folder: Path, renderer: ChatRenderer) -> None:
    fake = FakeVllm(folder)
    async with in_front_of(fake, renderer) as client:
        body = {"messages": HELLO, "max_tokens": 200, "logit_bias": {"65": 100}, "return_token_ids": True}
        letter = renderer.text([65])
        answer = (await client.post("/v1/chat/completions", json=body | {"stop": letter * 3})).json()
        assert len(answer["choices"][0]["token_ids"]) == 3
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await until(lambda: fake.num_running == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: not fake.num_running)
    assert len(fake.streamed) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("flaws", "changes", "status", "message"),
    [
        ([], {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "odd"}}}}, 400, "odd"),
        ([Flaw.TEXT_ONLY], {}, 502, "0.10.2"),
        ([Flaw.TRUNCATES_IDS], {"messages": [{"role": "user", "content": "f " * 40}]}, 502, "prompt of"),
        ([Flaw.BREAKS_STREAMS], {}, 503, "last event"),
    ],
    ids=["schema", "text", "truncates", "breaks"],
)
async def test_faults_of_the_server_are_named(
    folder: Path, renderer: ChatRenderer, flaws: list[Flaw], changes: dict[str, Any], status: int, message: str
) -> None:
    async with in_front_of(FakeVllm(folder, flaws), renderer) as client:
        answer = await client.post("/v1/chat/completions", json=ASK | changes)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), answer.text


@pytest.mark.asyncio
async def test_a_server_that_is_gone_is_a_status_not_a_crash(folder: Path, renderer: ChatRenderer) -> None:
    fields = {"base_url": "http://127.0.0.1:9/v1", "model": "tiny", "max_attempts": 2, "backoff_s": 0.001}
    async with EndpointClient(EndpointConfig.model_validate(fields)) as client:
        app = ModelServer(UpstreamModel(TokenServer(client), renderer, 256), "tiny", ServeConfig()).app()
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as asking:
            answer = await asking.post("/v1/messages", json={"messages": HELLO, "max_tokens": 3})
    assert answer.status_code == 503
    assert answer.json()["type"] == "error"
