"""Unfit servers are rejected before a run, each with the command that fixes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from repairgym.config.models import EndpointConfig
from repairgym.errors import ServerDownError, ServerRejectedError
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.vllm.preflight import FOLDER_ROUTES, Draw, Needs, chance_of, check_servers, preflight
from repairgym.testing.fake_vllm import FakeVllm, Flaw

NEEDS = Needs(num_context_tokens=48, num_reply_tokens=8)
TRAINING = Needs(48, 8, FOLDER_ROUTES)


@pytest.mark.asyncio
async def test_a_good_server_passes(folders: list[Path], renderer: ChatRenderer, serving) -> None:
    """One that training needs passes below, once it is not paused any more."""
    fake = FakeVllm(folders[0])
    async with serving(fake, is_versioned=False) as servers:
        await check_servers(servers, renderer, NEEDS)
    assert fake.log == []  # looking changes nothing


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("flaw", "needs", "words"),
    [
        (Flaw.OLD, NEEDS, r"runs vLLM 0\.9\.2.*pip install --upgrade vllm"),
        (Flaw.NO_UPDATES, TRAINING, r"has no /inference/v1/generate, /pause.*VLLM_SERVER_DEV_MODE=1 vllm serve"),
        (Flaw.OTHER_TOKENIZER, NEEDS, "has another tokenizer.*serve the same folder"),
        (Flaw.TEXT_ONLY, NEEDS, "returns text and no token ids.*--policy openai"),
        (Flaw.TRUNCATES, TRAINING, "read 8 tokens of a prompt of .*it truncates prompts"),
        (Flaw.TRUNCATES_IDS, NEEDS, "read a prompt of 8 tokens, not the 47.*it truncates prompts"),
        (Flaw.CAPS_REPLIES, TRAINING, "cut a reply off after 3 of max_tokens=8"),
        (Flaw.GREEDY, NEEDS, "does not sample from the distribution.*--generation-config vllm"),
        (Flaw.TOP_K, TRAINING, "does not sample from the distribution.*it changes temperature, top_p or top_k"),
    ],
)
async def test_bad_servers_are_rejected(
    folders: list[Path], renderer: ChatRenderer, serving, flaw: Flaw, needs: Needs, words: str
) -> None:
    async with serving(FakeVllm(folders[0], [flaw]), is_versioned=bool(needs.update_routes)) as servers:
        with pytest.raises(ServerRejectedError, match=words):
            await check_servers(servers, renderer, needs)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "needs", "words"),
    [
        ({"model": "other"}, NEEDS, "serves tiny, not 'other'.*--served-model-name other"),
        ({}, Needs(400, 8), "a context of 256 tokens, the pipeline has 400.*--max-model-len 400"),
    ],
)
async def test_another_model_and_a_short_context(
    folders: list[Path], renderer: ChatRenderer, serving, changes: dict[str, str], needs: Needs, words: str
) -> None:
    async with serving(FakeVllm(folders[0]), is_versioned=False, **changes) as servers:
        with pytest.raises(ServerRejectedError, match=words):
            await check_servers(servers, renderer, needs)


@pytest.mark.asyncio
async def test_a_server_that_a_killed_run_left_paused_is_named(
    folders: list[Path], renderer: ChatRenderer, serving
) -> None:
    fake = FakeVllm(folders[0])
    async with serving(fake, timeout_s=1.0) as servers:
        await servers[0].client.command("/pause?mode=keep")
        with pytest.raises(ServerRejectedError, match=r"is paused.*curl -X POST http://127.0.0.1:\d+/resume$"):
            await check_servers(servers, renderer, TRAINING)
        await servers[0].client.command("/resume")
        await check_servers(servers, renderer, TRAINING)
    assert fake.log == ["/pause", "/resume"]  # looking changes nothing


def test_one_of_several_is_enough_to_reject(folders: list[Path], renderer: ChatRenderer) -> None:
    with FakeVllm(folders[0]).in_thread() as good, FakeVllm(folders[0], [Flaw.TEXT_ONLY]).in_thread() as bad:
        endpoint = EndpointConfig(base_url=good, replicas=(bad,), model="tiny", backoff_s=0.001)
        with pytest.raises(ServerRejectedError, match="returns text and no token ids") as caught:
            preflight(endpoint, renderer, NEEDS)
    assert str(caught.value).startswith(bad)
    with pytest.raises(ServerDownError, match="is the server up"):
        preflight(endpoint, renderer, NEEDS)


NUM_TOKENS = 400


def bfloat16(values: np.ndarray) -> np.ndarray:
    spacing = 2.0 ** (np.floor(np.log2(np.abs(values) + 1e-9)) - 7)
    return np.round(values / spacing) * spacing


def coarse_draws_of(seed: int) -> list[list[Draw]]:
    """The server is honest and computes in bfloat16: its logits differ a little from batch to batch."""
    generator = np.random.default_rng(seed)
    results = []
    for _ in range(4):
        exact, draws = generator.normal(10.0, 10.0, NUM_TOKENS), []
        for _ in range(64):
            logits = bfloat16(exact + generator.normal(0.0, 0.02, NUM_TOKENS))
            chances = np.exp(logits - logits.max())
            chances /= chances.sum()
            token = int(generator.choice(NUM_TOKENS, p=chances))
            draws.append(Draw(token, float(np.log(chances[token]))))
        results.append(draws)
    return results


def draws_of(seed: int, power: float = 1.0, top_k: int = NUM_TOKENS) -> list[list[Draw]]:
    """64 draws after each of four prompts; the server samples from ``p ** power`` of the ``top_k`` likeliest."""
    generator = np.random.default_rng(seed)
    results = []
    for _ in range(4):
        reported = generator.dirichlet(np.full(NUM_TOKENS, 0.2))
        used = reported**power * (reported >= np.sort(reported)[-top_k])
        tokens = generator.choice(NUM_TOKENS, size=64, p=used / used.sum())
        results.append([Draw(int(token), float(np.log(reported[token]))) for token in tokens])
    return results


def test_honest_servers_pass() -> None:
    chances = [chance_of(draws_of(seed)) for seed in range(200)]
    assert min(chances) > 1e-4
    assert 0.4 < np.mean(chances) < 0.7


def test_honest_servers_of_low_precision_pass() -> None:
    assert min(chance_of(coarse_draws_of(seed)) for seed in range(20, 40)) > 1e-4


@pytest.mark.parametrize(("power", "top_k"), [(1.0, 8), (20.0, NUM_TOKENS), (2.5, NUM_TOKENS)])
def test_changed_distributions_do_not(power: float, top_k: int) -> None:
    assert max(chance_of(draws_of(seed, power, top_k)) for seed in range(20)) < 1e-8


def test_probabilities_above_one_and_certain_tokens() -> None:
    assert chance_of([[Draw(token, -0.1) for token in range(64)]]) == 0.0
    assert chance_of([[Draw(3, 0.0)] * 64]) > 0.9
