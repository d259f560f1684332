"""Our clients against a real server process: `repairgym serve` over a tiny model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from repairgym.config.endpoint import EndpointConfig
from repairgym.config.models import EngineConfig, ModelConfig
from repairgym.errors import PromptTooLongError, ServerRefusedError
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
            prompt = [*prompt, *here.token_ids, *renderer.observation_ids("no", here.is_stopped)]
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
        with pytest.raises(ServerRefusedError, match="serves tiny, not 'large'"):
            await VllmPolicy([TokenServer(client)]).generate("s", renderer.open_ids("f"), sampling)
    async with EndpointClient(endpoint.model_copy(update={"api_key_env": "NOT_SET"})) as client:
        with pytest.raises(ServerRefusedError, match="status 401"):
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
