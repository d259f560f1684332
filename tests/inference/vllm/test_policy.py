"""Several servers behind one policy: sessions stay, caches hit, losses are survived, nobody is asked too much."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from repairgym.config.models import EndpointConfig
from repairgym.errors import ConfigError, ModelServerError, ServerDownError, ServerRejectedError, StaleWeightsError
from repairgym.inference.base import SamplingParams
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.vllm.policy import Sessions, VllmPolicy
from repairgym.inference.vllm.server import TokenServer
from repairgym.inference.vllm.weights import Lineage, Transfer, WeightUpdater
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.testing.fake_vllm import FakeVllm, Flaw
from repairgym.testing.servers import HttpRequest, send, url_of

SAMPLING = SamplingParams(max_tokens=6, stop_token_ids=())
PROMPT = list(range(5, 37))


def test_sessions_stay_and_spread() -> None:
    clock = [0.0]
    sessions = Sessions(["a", "b"], clock=lambda: clock[0])
    places = [sessions.server_of(f"s{number}") for number in range(4)]
    assert sorted(places) == ["a", "a", "b", "b"]
    assert [sessions.server_of(f"s{number}") for number in range(4)] == places
    assert sessions.lose("a")
    assert {sessions.server_of(f"s{number}") for number in range(4)} == {"b"}
    assert sessions.num_moves == 2
    assert not sessions.lose("b")  # somebody has to be asked
    assert sessions.lost_for(30.0) == []
    clock[0] = 31.0
    assert sessions.lost_for(30.0) == ["a"]
    assert sessions.lost_for(30.0) == []  # not at each request
    sessions.restore("a")
    assert sessions.server_of("s9") == "a"
    assert sessions.server_of("s0") == "b"  # its prefix is there by now


@pytest.mark.asyncio
async def test_the_prefix_cache_hits_between_turns(folders: list[Path], serving) -> None:
    """Four sessions on two servers, three turns: all whole blocks of earlier turns are found where the session is."""
    fakes = [FakeVllm(folders[0]), FakeVllm(folders[0])]
    async with serving(*fakes, is_versioned=False) as servers:
        policy = VllmPolicy(servers)
        for session in range(4):
            prompt = [token + session for token in PROMPT]
            for _ in range(3):
                results = await policy.generate(f"s{session}", prompt, SAMPLING)
                prompt = [*prompt, *results.token_ids, *range(20, 30)]
        assert {fake.num_prompt_tokens for fake in fakes} == {2 * (32 + 48 + 64)}
        assert sum(fake.num_cached_tokens for fake in fakes) == 4 * (32 + 48)


@pytest.mark.asyncio
async def test_an_episode_moves_when_its_server_is_gone(folders: list[Path], serving) -> None:
    async with serving(FakeVllm(folders[0])) as gone:
        config = gone[0].config
    async with serving(FakeVllm(folders[0])) as servers, EndpointClient(config) as client:
        dead = TokenServer(client)
        policy = VllmPolicy([dead, servers[0]], version=UNKNOWN_VERSION)
        results = await policy.generate("s", PROMPT, SAMPLING)
        assert len(results.token_ids) == 6
        assert policy.sessions.num_moves == 1
        num_attempts = client.statistics.num_attempts
        await policy.generate("another", PROMPT, SAMPLING)
        assert client.statistics.num_attempts == num_attempts  # it is not tried for each episode
        with pytest.raises(ServerDownError):
            await VllmPolicy([dead]).generate("s", PROMPT, SAMPLING)


@pytest.mark.asyncio
async def test_a_server_that_was_started_again_has_other_weights(
    folders: list[Path], serving, lineage: Lineage
) -> None:
    fakes = [FakeVllm(folders[0]), FakeVllm(folders[0])]
    async with serving(*fakes) as servers:
        updater = WeightUpdater(servers, Transfer(), lineage)
        await updater.load(folders[1], 1)
        policy = VllmPolicy(servers, 1, lineage)
        fakes[0].version = "default"
        assert (await policy.generate("s", PROMPT, SAMPLING)).policy_version == 1
        assert policy.sessions.num_moves == 1
        fakes[1].version = "run:0"
        with pytest.raises(StaleWeightsError, match="weights 'run:0'; expected version 1 of this run or a newer"):
            await policy.generate("s", PROMPT, SAMPLING)
        await updater.load(folders[1], 2)
        policy.expect(2)
        assert {policy.sessions.server_of(name) for name in ("t", "u", "v")} == set(servers)


@pytest.mark.asyncio
async def test_many_sessions_wait_for_a_dead_server_at_the_same_time(folders: list[Path], serving) -> None:
    async with serving(FakeVllm(folders[0])) as gone:
        config = gone[0].config.model_copy(update={"max_attempts": 2})
    together = asyncio.Barrier(4)

    async def wait(_: float) -> None:
        await together.wait()

    async with EndpointClient(config, sleep=wait) as client, asyncio.timeout(20):
        policy = VllmPolicy([TokenServer(client)])
        asked = (policy.generate(f"s{number}", PROMPT, SAMPLING) for number in range(4))
        results = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(item) for item in results] == [ServerDownError] * 4


@pytest.mark.asyncio
async def test_orders_do_not_wait_behind_requests(folders: list[Path], serving) -> None:
    fake, is_asked = FakeVllm(folders[0]), asyncio.Event()

    async def on_token(number: int) -> None:
        is_begun.set()
        await is_asked.wait()

    fake.on_token, is_begun = on_token, asyncio.Event()
    async with serving(fake, max_concurrent=1) as servers, asyncio.timeout(20):
        running = asyncio.create_task(servers[0].sample(PROMPT, SAMPLING))
        await is_begun.wait()
        assert await servers[0].client.is_healthy()
        await servers[0].client.command("/resume")
        is_asked.set()
        assert len((await running).reply.token_ids) == SAMPLING.max_tokens


@pytest.mark.asyncio
async def test_nobody_waits_long_for_a_server_that_accepts_and_says_nothing() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as silent, asyncio.timeout(20):
        config = EndpointConfig(base_url=url_of(silent), model="tiny", connect_timeout_s=0.2)
        async with EndpointClient(config) as client:
            assert not await client.is_healthy()


class Starting(FakeVllm):
    """Says 503 to the first requests for a page, as a proxy does before its server is up."""

    num_left = 0

    async def answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        if request.method == "GET" and self.num_left:
            self.num_left -= 1
            return await send(writer, 503, b"{}")
        return await super().answer(request, writer)


@pytest.mark.asyncio
async def test_a_server_that_is_not_up_yet_is_described_later(folders: list[Path], serving) -> None:
    fake = Starting(folders[0], max_len_tokens=99)
    async with serving(fake) as servers:
        fake.num_left = 3
        with pytest.raises(ModelServerError, match="3 attempts failed, the last: status 503"):
            await servers[0].max_len_tokens()
        fake.num_left = 2
        assert await servers[0].max_len_tokens() == 99
        assert await servers[0].client.get("/no-such-page") is None


@pytest.mark.asyncio
async def test_closed_connections_are_tried_again(folders: list[Path], serving) -> None:
    async with serving(FakeVllm(folders[0], [Flaw.CLOSES])) as servers:
        policy = VllmPolicy(servers, version=UNKNOWN_VERSION)
        results = [await policy.generate(f"s{number}", PROMPT, SAMPLING) for number in range(4)]
        assert servers[0].client.statistics.num_disconnects > 0
    assert len({item.token_ids for item in results}) == 1  # the same seed, the same tokens, whatever was lost


@pytest.mark.asyncio
async def test_no_more_requests_than_allowed_and_waiting_is_counted(folders: list[Path], serving) -> None:
    fake = FakeVllm(folders[0])
    running, most = 0, 0

    async def on_token(number: int) -> None:
        nonlocal running, most
        running += number == 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= number == SAMPLING.max_tokens

    fake.on_token = on_token
    async with serving(fake, is_versioned=False, max_concurrent=2) as servers:
        policy = VllmPolicy(servers)
        results = await asyncio.gather(*(policy.generate(f"s{number}", PROMPT, SAMPLING) for number in range(6)))
        waits = sorted(item.queue_s for item in results)
        assert most == 2
        assert waits[1] < waits[2]
        assert servers[0].client.statistics.queue_s == pytest.approx(sum(waits))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("flaw", "words"), [(Flaw.CAPS_REPLIES, "after 3 of max_tokens=6"), (Flaw.OWN_STOP, "none of the stop tokens")]
)
@pytest.mark.parametrize("is_versioned", [True, False])
async def test_replies_that_end_by_themselves_stop_the_run(
    folders: list[Path], serving, flaw: Flaw, words: str, is_versioned: bool
) -> None:
    async with serving(FakeVllm(folders[0], [flaw]), is_versioned=is_versioned) as servers:
        with pytest.raises(ServerRejectedError, match=rf"{words}.*--generation-config vllm"):
            await VllmPolicy(servers, UNKNOWN_VERSION).generate("s", PROMPT, SAMPLING)


def test_extra_fields_may_not_change_what_is_sampled() -> None:
    config = EndpointConfig(base_url="http://127.0.0.1:1/v1", model="m", extra={"top_k": 20, "priority": 1})
    with pytest.raises(ConfigError, match=r"extra sets top_k; the policy vllm sets it itself"):
        TokenServer(EndpointClient(config))


def test_replicas_are_servers_of_their_own() -> None:
    urls = [f"http://127.0.0.1:{port}/v1" for port in (1, 2, 3)]
    config = EndpointConfig(base_url=urls[0], replicas=tuple(urls[1:]), model="m")
    assert [item.base_url for item in config.servers()] == urls
    with pytest.raises(ConfigError, match="only the policy vllm asks several"):
        EndpointClient(config)
    with pytest.raises(ValueError, match="names a server twice"):
        EndpointConfig(base_url=urls[0], replicas=(urls[0],), model="m")
    with pytest.raises(ValueError, match="replicas: 'b:8000' is no http"):
        EndpointConfig(base_url=urls[0], replicas=("b:8000",), model="m")
