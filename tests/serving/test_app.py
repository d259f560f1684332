"""The protocol: answers, errors, and the bound on requests."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from repairgym.config.models import EndpointConfig, EngineConfig, ModelConfig
from repairgym.errors import PromptTooLongError, ServerRejectedError
from repairgym.inference.base import SamplingParams
from repairgym.inference.embedded import EmbeddedPolicy
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.loading import create_model, load_tokenizer, save_checkpoint
from repairgym.inference.openai import OpenAIPolicy
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.inference.vllm.policy import VllmPolicy
from repairgym.inference.vllm.preflight import Needs, check_servers
from repairgym.inference.vllm.server import TokenServer
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.serving.models import PolicyModel, ScriptModel
from repairgym.serving.records import AnyRequest, ModelReply, Report

Connect = Callable[..., AbstractAsyncContextManager[httpx2.AsyncClient]]
HELLO = [{"role": "user", "content": "f is wrong"}]


@pytest.mark.asyncio
async def test_chat_gives_tokens_and_log_probabilities_on_request(model: PolicyModel, connect: Connect) -> None:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 5, "seed": 1}
    async with connect(model) as client:
        plain = (await client.post("/v1/chat/completions", json=body)).json()
        exact = (
            await client.post("/v1/chat/completions", json=body | {"logprobs": True, "return_token_ids": True})
        ).json()
    choice = exact["choices"][0]
    assert plain["choices"][0]["message"] == choice["message"]
    assert {"token_ids", "logprobs"}.isdisjoint(plain["choices"][0])
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == exact["usage"]["completion_tokens"]
    assert all(token["logprob"] < 0 for token in choice["logprobs"]["content"])
    assert model.renderer.decode(choice["token_ids"]) == choice["message"]["content"]
    assert exact["prompt_token_ids"] == model.renderer.open_ids("f is wrong")
    assert exact["usage"]["total_tokens"] == len(exact["prompt_token_ids"]) + len(choice["token_ids"])


@pytest.mark.asyncio
async def test_chat_and_token_completions_are_the_same_policy(model: PolicyModel, connect: Connect) -> None:
    settings = {"max_tokens": 6, "seed": 7, "return_token_ids": True}
    async with connect(model) as client:
        chat = (await client.post("/v1/chat/completions", json=settings | {"messages": HELLO, "logprobs": True})).json()
        prompt = chat["prompt_token_ids"]
        text = (await client.post("/v1/completions", json=settings | {"prompt": prompt, "logprobs": 1})).json()
        spelled = model.renderer.text(prompt)
        same = (await client.post("/v1/completions", json=settings | {"prompt": spelled})).json()
    log_probs = [token["logprob"] for token in chat["choices"][0]["logprobs"]["content"]]
    assert chat["choices"][0]["token_ids"] == text["choices"][0]["token_ids"] == same["choices"][0]["token_ids"]
    assert text["choices"][0]["logprobs"]["token_logprobs"] == pytest.approx(log_probs, abs=1e-5)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "changes", "status", "words"),
    [
        ("chat/completions", {"top_p": 1.5}, 400, "top_p: got 1.5"),
        ("chat/completions", {"n": 0}, 400, "n: got 0"),
        ("chat/completions", {"stop": [""]}, 400, "stop: got ''"),
        ("chat/completions", {"logit_bias": {"400": 1}}, 400, "token id 400"),
        ("chat/completions", {"top_logprobs": 2}, 400, "needs logprobs"),
        ("chat/completions", {"min_p": 0.1}, 400, "min_p=0.1 is not supported"),
        ("chat/completions", {"min_tokens": 5}, 400, "min_tokens=5 is not supported"),
        ("chat/completions", {"chat_template_kwargs": {"enable_thinking": False}}, 400, "chat_template_kwargs"),
        ("completions", {"prompt": "a", "ignore_eos": True}, 400, "ignore_eos=True"),
        ("completions", {"prompt": "a", "response_format": {"type": "json_object"}}, 400, "response_format"),
        ("responses", {"input": "a", "frequency_penalty": 1}, 400, "frequency_penalty=1"),
        ("responses", {"input": "a", "text": {"verbosity": "low"}}, 400, "verbosity=low"),
        ("responses", {"input": "a", "text": {"shape": "round"}}, 400, "shape=round"),
        ("responses", {"input": "a", "max_tool_calls": 2}, 400, "max_tool_calls=2"),
        ("messages", {"max_tokens": 4, "n": 2}, 400, "n=2"),
        ("chat/completions", {"messages": []}, 400, "at least one message"),
        ("chat/completions", {"messages": [*HELLO, {"role": "assistant", "content": "x"}]}, 400, "continuing"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "only text"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x" * 2000}]}, 400, "maximum context length"),
        ("chat/completions", {"model": "gpt"}, 404, "'tiny' is"),
        ("completions", {"prompt": ["a", 5]}, 400, "list of 1 to 128"),
        ("completions", {"prompt": [5, 10**6]}, 400, "token id 1000000"),
        ("completions", {"prompt": list(range(9)), "logprobs": 21}, 400, "from 0 to 20"),
        ("completions", {"prompt": "a", "echo": True, "logprobs": 0}, 400, "log-probabilities of a prompt"),
        ("nowhere", {}, 404, "Not Found"),
    ],
)
async def test_unsupported_requests_are_errors(
    model: PolicyModel, connect: Connect, path: str, changes: dict[str, Any], status: int, words: str
) -> None:
    async with connect(model) as client:
        response = await client.post(f"/v1/{path}", json={"messages": HELLO} | changes)
    assert response.status_code == status
    assert words in response.json()["error"]["message"]


@pytest.mark.asyncio
async def test_equal_prompts_of_one_request_are_sampled_apart(model: PolicyModel, connect: Connect) -> None:
    settings = {"max_tokens": 8, "seed": 3}
    async with connect(model) as client:
        listed = (await client.post("/v1/completions", json=settings | {"prompt": ["def f"] * 4})).json()
        several = (await client.post("/v1/completions", json=settings | {"prompt": "def f", "n": 4})).json()
    texts = [choice["text"] for choice in listed["choices"]]
    assert len(set(texts)) > 1
    assert texts == [choice["text"] for choice in several["choices"]]


@pytest.mark.asyncio
async def test_tokens_are_counted_beyond_the_context(model: PolicyModel, connect: Connect) -> None:
    async with connect(model) as client:
        body = {"messages": [{"role": "user", "content": "x" * 2000}]}
        counted = await client.post("/v1/messages/count_tokens", json=body)
    assert counted.status_code == 200
    assert counted.json()["input_tokens"] > MAX_LEN_TOKENS


@pytest.mark.asyncio
async def test_a_part_of_a_character_has_no_bytes(renderer: ChatRenderer, connect: Connect) -> None:
    async with connect(ScriptModel(lambda conversation, tools: "a\u00e9", renderer)) as client:
        reply = (await client.post("/v1/chat/completions", json={"messages": HELLO, "logprobs": True})).json()
    spelled = [entry["bytes"] for entry in reply["choices"][0]["logprobs"]["content"]]
    assert spelled[:3] == [[97], None, None]


@pytest.mark.asyncio
async def test_bodies_that_are_no_json_or_too_large_are_errors(model: PolicyModel, connect: Connect) -> None:
    async with connect(model, max_body_bytes=100) as client:
        assert (await client.post("/v1/completions", content=b'{"a": ')).status_code == 400
        assert (await client.post("/v1/completions", content=b"1" * 101)).status_code == 413


@pytest.mark.asyncio
async def test_a_full_context_is_an_error_that_clients_know(model: PolicyModel, connect: Connect) -> None:
    async with connect(model) as client:
        body = {"prompt": [5] * model.max_len_tokens}
        error = (await client.post("/v1/completions", json=body)).json()["error"]
        card = (await client.get("/v1/models")).json()["data"][0]
        body = {"prompt": [5] * (model.max_len_tokens - 3), "max_tokens": 50}
        last = (await client.post("/v1/completions", json=body)).json()
    assert error["code"] == "context_length_exceeded"
    assert (card["id"], card["max_model_len"]) == ("tiny", model.max_len_tokens)
    assert last["usage"]["completion_tokens"] <= 3


@pytest.mark.asyncio
async def test_a_token_is_required(model: PolicyModel, connect: Connect) -> None:
    async with connect(model, token="open sesame") as client:
        assert (await client.get("/v1/models")).status_code == 401
        wrong = await client.get("/v1/models", headers={"Authorization": "Bearer open"})
        right = await client.get("/v1/models", headers={"Authorization": "Bearer open sesame"})
        assert (await client.get("/health")).status_code == 200
    assert (wrong.status_code, right.status_code) == (401, 200)
    assert "sesame" not in wrong.text


class SlowModel(ScriptModel):
    """Answers once its gate is open."""

    def __init__(self, renderer: ChatRenderer) -> None:
        super().__init__(lambda conversation, tools: "submit", renderer)
        self.gate = asyncio.Event()
        self.num_running = 0
        self.most_running = 0

    async def reply(self, request: AnyRequest, number: int, prompt_ids: list[int], report: Report) -> ModelReply:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            await self.gate.wait()
            return await super().reply(request, number, prompt_ids, report)
        finally:
            self.num_running -= 1


@pytest.mark.asyncio
async def test_the_queue_is_bounded(renderer: ChatRenderer, connect: Connect) -> None:
    model = SlowModel(renderer)
    async with connect(model, max_concurrent=2, max_waiting=3) as client:
        requests = [
            asyncio.create_task(client.post("/v1/chat/completions", json={"messages": HELLO})) for _ in range(8)
        ]
        done, _ = await asyncio.wait(requests, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        rejected = (await asyncio.gather(*done))[0]
        model.gate.set()
        statuses = sorted(response.status_code for response in await asyncio.gather(*requests))
    assert statuses == [200] * 5 + [429] * 3
    assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "1")
    assert rejected.json()["error"]["code"] == "queue_full"
    assert model.most_running == 2


@pytest.mark.asyncio
async def test_tool_calls_are_separated_from_text(renderer: ChatRenderer, connect: Connect) -> None:
    text = 'Let me look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"required": ["command"]}}}]
    async with connect(ScriptModel(lambda conversation, tools: text, renderer)) as client:
        body: dict[str, Any] = {"messages": HELLO}
        with_tools = (await client.post("/v1/chat/completions", json=body | {"tools": tools})).json()["choices"][0]
        without = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert with_tools["finish_reason"] == "tool_calls"
    assert with_tools["message"]["content"] == "Let me look."
    call = with_tools["message"]["tool_calls"][0]
    assert call["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
    assert without["message"] == {"role": "assistant", "content": text}


@pytest.mark.asyncio
async def test_scripts_respect_max_tokens(renderer: ChatRenderer, connect: Connect) -> None:
    text = "a long answer " * 100
    async with connect(ScriptModel(lambda conversation, tools: text, renderer)) as client:
        whole = (await client.post("/v1/chat/completions", json={"messages": HELLO})).json()
        cut = (await client.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 3})).json()
    assert (whole["choices"][0]["finish_reason"], whole["choices"][0]["message"]["content"]) == ("stop", text)
    assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 3)
    assert text.startswith(cut["choices"][0]["message"]["content"])


MAX_LEN_TOKENS = 256
TOKEN = "a token for the tests"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_tokenizer(["def f(a, b):\n    return a < b\n"] * 9, 400, 10)
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
    config = ModelConfig(vocab_size=len(tokenizer), intermediate_size=16, **sizes)
    path = tmp_path_factory.mktemp("model") / "tiny"
    save_checkpoint(create_model(config), tokenizer, path)
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    code = "import sys; from repairgym.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "serve", "--policy", str(folder), "port=0"]
    environment = {**os.environ, "REPAIRGYM_SERVE_TOKEN": TOKEN}
    arguments = [*command, f"engine.max_len_tokens={MAX_LEN_TOKENS}"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("serving tiny at http://127.0.0.1:")
            yield line.split()[3], process
        finally:
            process.kill()


@pytest.fixture
def endpoint(server: tuple[str, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch) -> EndpointConfig:
    monkeypatch.setenv("OPENAI_API_KEY", TOKEN)
    return EndpointConfig(base_url=server[0], model="tiny", timeout_s=60, max_attempts=2)


@pytest.fixture
def renderer(folder: Path) -> ChatRenderer:
    return ChatRenderer(load_tokenizer(folder))


@pytest.mark.asyncio
async def test_token_ids_are_those_of_the_engine(
    folder: Path, endpoint: EndpointConfig, renderer: ChatRenderer
) -> None:
    """A policy behind the server is the policy in this process: same ids, same log-probabilities."""
    local = EmbeddedPolicy.from_folder(folder, EngineConfig(num_slots=4, max_len_tokens=MAX_LEN_TOKENS))
    prompt = renderer.open_ids("f is wrong")
    async with EndpointClient(endpoint) as client:
        remote = VllmPolicy([TokenServer(client)])
        for seed in range(3):
            sampling = SamplingParams(max_tokens=7, stop_token_ids=renderer.stop_token_ids, seed=seed)
            here = await local.generate("s", prompt, sampling)
            there = await remote.generate("s", prompt, sampling)
            assert there.token_ids == here.token_ids
            assert there.log_probs == pytest.approx(here.log_probs, abs=1e-5)
            assert (there.is_stopped, there.policy_version) == (here.is_stopped, 0)
            prompt = [
                *prompt,
                *here.token_ids,
                *renderer.observation_ids("no", here.token_ids[-1] if here.is_stopped else None),
            ]
        await check_servers([TokenServer(client)], renderer, Needs(MAX_LEN_TOKENS, 8))
    await local.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_text_comes_through(endpoint: EndpointConfig, renderer: ChatRenderer, api: str) -> None:
    sampling = SamplingParams(max_tokens=7, stop_token_ids=renderer.stop_token_ids, seed=1)
    async with EndpointClient(endpoint.model_copy(update={"api": api})) as client:
        policy = OpenAIPolicy(client, renderer)
        generations = await asyncio.gather(*(policy.generate("s", renderer.open_ids("f"), sampling) for _ in range(5)))
    assert len({generation.token_ids for generation in generations}) == 1  # one seed, one answer
    assert generations[0].policy_version == UNKNOWN_VERSION
    assert client.statistics.num_attempts == 5


@pytest.mark.asyncio
async def test_rejections_are_understood(endpoint: EndpointConfig, renderer: ChatRenderer) -> None:
    sampling = SamplingParams(max_tokens=7, stop_token_ids=renderer.stop_token_ids)
    async with EndpointClient(endpoint) as client:
        for policy in (OpenAIPolicy(client, renderer), VllmPolicy([TokenServer(client)])):
            with pytest.raises(PromptTooLongError):
                await policy.generate("s", renderer.open_ids("f " * 400), sampling)
    other = endpoint.model_copy(update={"model": "large"})
    async with EndpointClient(other) as client:
        with pytest.raises(ServerRejectedError, match="serves tiny, not 'large'"):
            await VllmPolicy([TokenServer(client)]).generate("s", renderer.open_ids("f"), sampling)
    async with EndpointClient(endpoint.model_copy(update={"api_key_env": "NOT_SET"})) as client:
        with pytest.raises(ServerRejectedError, match="status 401"):
            await OpenAIPolicy(client, renderer).generate("s", renderer.open_ids("f"), sampling)


@pytest.mark.asyncio
async def test_an_ordered_stop_lets_requests_end(server: tuple[str, subprocess.Popen[str]]) -> None:
    """The last test of this file: it ends the server."""
    url, process = server
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as client:
        body = {"prompt": [5, 6, 7], "max_tokens": 200, "seed": 1, "stop_token_ids": []}
        requests = [asyncio.create_task(client.post(f"{url}/completions", json=body)) for _ in range(3)]
        await asyncio.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        statuses = [response.status_code for response in await asyncio.gather(*requests)]
    assert statuses == [200] * 3
    assert await asyncio.to_thread(process.wait, 60) == 0
