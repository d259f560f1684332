"""Policies behind a server: every fault is typed, counted, and tried again where that may help; keys stay unseen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from transformers import PreTrainedTokenizerFast

from repairgym.config.models import EndpointConfig, Price
from repairgym.errors import (
    ConfigError,
    ModelReplyError,
    ModelServerError,
    PromptTooLongError,
    RepairGymError,
    ServerDownError,
    ServerRejectedError,
)
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.openai import OpenAIPolicy, OpenAITextModel
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.vllm.policy import VllmPolicy
from repairgym.inference.vllm.server import TokenServer
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.testing.servers import Fault

KEY = "sk-a-secret-that-nobody-may-see"


@contextmanager
def faulty_server(*faults: Fault) -> Iterator[str]:
    """A process of its own; gives its base URL."""
    command = [sys.executable, "-m", "repairgym.testing.servers", json.dumps(faults)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def renderer(tokenizer: PreTrainedTokenizerFast) -> ChatRenderer:
    return ChatRenderer(tokenizer)


class Waits:
    """Sleeps that are counted, not slept."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def config_of(url: str, **changes: object) -> EndpointConfig:
    known = {"base_url": url, "model": "tiny", "max_attempts": 3, "timeout_s": 60.0}
    return EndpointConfig.model_validate(known | changes)


async def ask(client: EndpointClient, renderer: ChatRenderer, *, exact: bool = False, num: int = 1) -> list[Generation]:
    policy = VllmPolicy([TokenServer(client)]) if exact else OpenAIPolicy(client, renderer)
    sampling = SamplingParams(max_tokens=8, stop_token_ids=renderer.stop_token_ids, seed=3)
    return [await policy.generate("s", renderer.open_ids("f is wrong"), sampling) for _ in range(num)]


SHORT_S = 0.2
"""Of servers that never end a reply. A good reply that takes longer on a busy machine is asked for again."""
PASSING = [
    (Fault.RATE_LIMITED, "num_rate_limited"),
    (Fault.SERVER_ERROR, "num_server_errors"),
    (Fault.HALF_BODY, "num_disconnects"),
    (Fault.CLOSED, "num_disconnects"),
    (Fault.HALF_JSON, "num_bad_replies"),
    (Fault.NO_CHOICES, "num_bad_replies"),
    (Fault.NO_FINISH, "num_bad_replies"),
    (Fault.WRONG_COUNTS, "num_bad_replies"),
]


@pytest.mark.asyncio
async def test_transient_failures_are_counted_and_retried(renderer: ChatRenderer) -> None:
    """One server, a good reply between every two faults: keep-alive connections live through all of it."""
    script = [item for fault, _ in PASSING for item in (fault, Fault.OK)]
    with faulty_server(*script) as url:
        async with EndpointClient(config_of(url), sleep=Waits()) as client:
            results = await ask(client, renderer, num=len(PASSING))
    assert {renderer.decode(item.token_ids) for item in results} == {"submit"}
    counters = client.statistics
    assert counters.num_attempts == 2 * len(PASSING)
    for _, counter in PASSING:
        assert getattr(counters, counter) == sum(name == counter for _, name in PASSING)
    assert (counters.num_prompt_tokens, counters.num_reply_tokens) == (100 * len(PASSING), 4 * len(PASSING))


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", [Fault.HANG, Fault.DRIP])
async def test_replies_without_an_end_are_given_up_and_asked_for_again(renderer: ChatRenderer, fault: Fault) -> None:
    with faulty_server(fault, Fault.OK) as url:
        async with EndpointClient(config_of(url, timeout_s=SHORT_S, max_attempts=50), sleep=Waits()) as client:
            (results,) = await ask(client, renderer)
    assert renderer.decode(results.token_ids) == "submit"
    assert results.queue_s >= SHORT_S  # the attempt that failed is no time of the agent
    counters = client.statistics
    assert 1 <= counters.num_timeouts == counters.num_attempts - 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fault", "error", "num_attempts", "words"),
    [
        (Fault.SERVER_ERROR, ModelServerError, 3, "3 attempts failed, the last: status 500"),
        (Fault.HANG, ServerDownError, 3, "no reply within"),
        (Fault.HALF_JSON, ModelReplyError, 3, "no JSON"),
        (Fault.WRONG_COUNTS, ModelReplyError, 3, "wrong token counts"),
        (Fault.LONG_WAIT, ModelServerError, 1, "asks to wait 86400 s"),
        (Fault.NO_QUOTA, ServerRejectedError, 1, "insufficient_quota"),
        (Fault.WRONG_KEY, ServerRejectedError, 1, "put a valid key into OPENAI_API_KEY"),
        (Fault.NO_MODEL, ServerRejectedError, 1, r"check endpoint\.base_url"),
        (Fault.TOO_LONG, PromptTooLongError, 1, "too long"),
    ],
)
async def test_permanent_failures_are_typed(
    renderer: ChatRenderer, fault: Fault, error: type[RepairGymError], num_attempts: int, words: str
) -> None:
    with faulty_server(fault) as url:
        timeout_s = SHORT_S if fault is Fault.HANG else 60.0
        async with EndpointClient(config_of(url, timeout_s=timeout_s), sleep=Waits()) as client:
            with pytest.raises(error, match=words) as caught:
                await ask(client, renderer)
    assert type(caught.value) is error
    assert client.statistics.num_attempts == num_attempts


@pytest.mark.asyncio
async def test_nobody_there(renderer: ChatRenderer) -> None:
    with faulty_server(Fault.OK) as url:
        pass
    async with EndpointClient(config_of(url), sleep=Waits()) as client:
        with pytest.raises(ModelServerError, match="ConnectError"):
            await ask(client, renderer)
    assert client.statistics.num_disconnects == 3


@pytest.mark.asyncio
async def test_waits_double_and_obey_retry_after(renderer: ChatRenderer) -> None:
    waits = Waits()
    faults = [Fault.SERVER_ERROR] * 4 + [Fault.RATE_LIMITED, Fault.OK]
    with faulty_server(*faults) as url:
        config = config_of(url, max_attempts=6, backoff_s=0.01, max_backoff_s=0.04)
        async with EndpointClient(config, seed=0, sleep=waits) as client:
            await ask(client, renderer)
    for longest, waited in zip((0.01, 0.02, 0.04, 0.04), waits.seconds, strict=False):
        assert longest / 2 <= waited <= longest
    assert waits.seconds[-1] >= 0.05  # Retry-After is more than the back-off


@pytest.mark.asyncio
@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_text_has_no_log_probabilities_and_a_price(renderer: ChatRenderer, api: str) -> None:
    prices = {"tiny": Price(input_usd=2.0, output_usd=10.0)}
    with faulty_server(Fault.OK, Fault.NO_USAGE) as url:
        async with EndpointClient(config_of(url, api=api, prices=prices)) as client:
            counted, uncounted = await ask(client, renderer, num=2)
    assert counted.policy_version == UNKNOWN_VERSION
    assert counted.is_stopped
    assert counted.token_ids[-1] in renderer.stop_token_ids
    assert (counted.cost_usd, uncounted.cost_usd) == (pytest.approx(0.00024), 0.0)


@pytest.mark.asyncio
async def test_a_question_may_hold_what_is_no_utf_8() -> None:
    with faulty_server(Fault.OK) as url:
        async with EndpointClient(config_of(url)) as client:
            question = f"a patch of the file {chr(0xDC80)}.py"
            assert await OpenAITextModel(client).reply(question, max_tokens=8, seed=0) == "submit"


@pytest.mark.asyncio
async def test_token_servers_are_exact(renderer: ChatRenderer) -> None:
    with faulty_server(Fault.FEWER_LOG_PROBS, Fault.OK) as url:
        async with EndpointClient(config_of(url), sleep=Waits()) as client:
            (results,) = await ask(client, renderer, exact=True)
    assert results.token_ids == (0, 1, 2, *renderer.stop_token_ids)
    assert results.log_probs == (-0.5,) * 4
    assert results.is_stopped
    assert results.policy_version == 0
    assert client.statistics.num_bad_replies == 1


@pytest.mark.asyncio
async def test_a_text_only_server_is_no_token_server(renderer: ChatRenderer) -> None:
    with faulty_server(Fault.NO_TOKEN_IDS) as url:
        async with EndpointClient(config_of(url), sleep=Waits()) as client:
            with pytest.raises(ModelReplyError, match="without token_ids"):
                await ask(client, renderer, exact=True)


@pytest.mark.asyncio
async def test_keys_are_never_shown(
    renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level("DEBUG")
    with faulty_server(Fault.KEY_ECHO) as url:
        async with EndpointClient(config_of(url), sleep=Waits()) as client:
            with pytest.raises(ModelServerError, match=r"\[key\]") as caught:
                await ask(client, renderer)
    assert KEY not in str(caught.value)
    assert KEY not in caplog.text
    assert KEY not in client.config.model_dump_json()
    assert caught.value.__cause__ is None


def test_keys_stay_on_the_machine_or_go_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(ConfigError, match="not encrypted"):
        EndpointClient(config_of("http://models.example/v1"))
    EndpointClient(config_of("http://models.example/v1", is_plain_http_allowed=True))
    with pytest.raises(ValueError, match="holds a name or a password"):
        config_of(f"https://user:{KEY}@models.example/v1")


def test_more_fields_may_not_replace_what_a_policy_sends() -> None:
    assert config_of("http://127.0.0.1/v1", extra={"reasoning_effort": "low"}).extra
    with pytest.raises(ValueError, match="extra sets n, stream"):
        config_of("http://127.0.0.1/v1", extra={"stream": True, "n": 4})


def test_limits_are_shared_by_the_workers() -> None:
    config = config_of("http://127.0.0.1/v1", requests_per_minute=100, tokens_per_minute=0, max_concurrent=3)
    share = config.share_of(4)
    assert (share.requests_per_minute, share.tokens_per_minute, share.max_concurrent) == (25, 0, 1)
