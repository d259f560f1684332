"""vLLM's CPU build with the shipped model: what the fake server stands for is so, down to the log-probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from repairgym.config.algorithms import GaeAdvantageConfig, PpoLossConfig
from repairgym.config.learning import AlgorithmConfig, ComputeConfig, LoraConfig, OptimizerConfig
from repairgym.config.models import EndpointConfig, ModelConfig, VllmSamplerConfig
from repairgym.config.recipes import RlConfig
from repairgym.errors import PromptTooLongError, ServerRejectedError, StaleWeightsError
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.loading import create_model, load_model, load_tokenizer, save_checkpoint
from repairgym.inference.openai import OpenAIPolicy
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.vllm.policy import VllmPolicy
from repairgym.inference.vllm.preflight import FOLDER_ROUTES, LORA_ROUTES, Needs, preflight
from repairgym.inference.vllm.server import TokenServer, ask_servers
from repairgym.inference.vllm.weights import Lineage, Probe, Transfer, WeightUpdater, compare
from repairgym.learning.export import save_model
from repairgym.learning.learner import Learner
from repairgym.learning.samples import text_sample
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.training.rl_loop import RLLoop

pytestmark = pytest.mark.vllm
NUM_LONG = 880
"""Tokens of the turn during which the weights change: as many as the context has room for, some seconds."""
MAX_GAP = 1e-4
LINEAGE = Lineage("test")
PROBE_IDS = tuple(torch.randint(2048, (64,), generator=torch.Generator().manual_seed(0)).tolist())
Note = Callable[[str, str], None]


def learner_of(folder: Path, trained: LoraConfig | None = None) -> Learner:
    return Learner(load_model(folder), OptimizerConfig(), ComputeConfig(), trained=trained)


def log_probs_of(learner: Learner, ids: list[int]) -> list[float]:
    """Of each token after the first, by what learns."""
    (found,) = learner.measure([text_sample(ids)])
    return [float(value) for value in found.log_prob[1:]]


def moved(folder: Path, target: Path, scale: float, seed: int = 1) -> Path:
    """The model with all its weights changed at random, as a model folder."""
    model = load_model(folder)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * parameter.std() * torch.randn(parameter.shape, generator=generator)
    save_checkpoint(model, load_tokenizer(folder), target)
    return target


def distance(one: list[float] | tuple[float, ...], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def endpoint_of(url: str, **changes: object) -> EndpointConfig:
    return EndpointConfig.model_validate({"base_url": url, "model": "tiny", "backoff_s": 0.2} | changes)


@pytest.fixture(scope="module")
def server(base: Path, start_server) -> Iterator[str]:
    with start_server(base) as url:
        yield url


def test_the_checks_pass_and_reject_a_short_context(server: str, base: Path) -> None:
    renderer = ChatRenderer(load_tokenizer(base))
    preflight(endpoint_of(server), renderer, Needs(400, 24, FOLDER_ROUTES))
    preflight(endpoint_of(server), renderer, Needs(400, 24))
    with pytest.raises(ServerRejectedError, match="--max-model-len 4096"):
        preflight(endpoint_of(server), renderer, Needs(4096, 24))
    with pytest.raises(ServerRejectedError, match="serves tiny, not 'base'"):
        preflight(endpoint_of(server, model="base"), renderer, Needs(400, 24))


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_text_and_token_clients_agree(server: str, base: Path, api: str) -> None:
    """`OpenAIPolicy` against vLLM's own chat template: two greedy turns, then what it refuses."""
    renderer = ChatRenderer(load_tokenizer(base))
    sampling = SamplingParams(temperature=0.0, max_tokens=16, stop_token_ids=renderer.stop_token_ids)
    prompt = renderer.open_ids("f in m.py is wrong: 1 < 2")

    async def turns(servers: list[TokenServer]) -> None:
        heard, policy = prompt, VllmPolicy(servers)
        async with EndpointClient(endpoint_of(server, api=api)) as client:
            text = OpenAIPolicy(client, renderer)
            for _ in range(2):
                want, found = [await asked.generate("s", heard, sampling) for asked in (policy, text)]
                assert found.is_stopped == want.is_stopped
                assert renderer.decode(found.token_ids) == renderer.decode(want.token_ids)
                assert found.policy_version == UNKNOWN_VERSION
                heard = [
                    *heard,
                    *want.token_ids,
                    *renderer.observation_ids("1 failed", want.token_ids[-1] if want.is_stopped else None),
                ]
            with pytest.raises(PromptTooLongError):
                await text.generate("s", renderer.open_ids("word " * 2000), sampling)

    async def ask_for_another() -> None:
        async with EndpointClient(endpoint_of(server, api=api, model="other")) as client:
            await OpenAIPolicy(client, renderer).generate("s", prompt, sampling)

    asyncio.run(ask_servers(endpoint_of(server), turns, is_versioned=False))
    with pytest.raises(ServerRejectedError, match=r"endpoint\.model='other'"):
        asyncio.run(ask_for_another())


async def updated_turn(
    policy: VllmPolicy, updater: WeightUpdater, folder: Path, version: int, prompt: list[int]
) -> tuple[Generation, bool]:
    """A long turn, and whether it still ran when ``version`` was ordered.

    A short turn that was asked for after it has ended by then: the server computes all requests in step, so the long
    one has begun, and most of it is still to come.
    """
    sampling = SamplingParams(max_tokens=NUM_LONG, stop_token_ids=(), seed=version)
    asked = asyncio.create_task(policy.generate("episode", prompt, sampling))
    await policy.generate("beside", prompt, sampling.model_copy(update={"max_tokens": 16}))
    is_running = not asked.done()
    await updater.load(folder, version)
    return await asked, is_running


@pytest.mark.parametrize("pause", ["keep", "wait"])
def test_an_update_during_an_episode(server: str, base: Path, tmp_path: Path, note: Note, pause: str) -> None:
    """Three turns; the weights change in the middle of the first one, which begins again where they came too early or
    too late."""
    folders = (moved(base, tmp_path / "new", 0.05), base)  # of even versions and of odd ones
    learners = [learner_of(folder) for folder in folders]
    opening = ChatRenderer(load_tokenizer(base)).open_ids("f in m.py is wrong: assert f(1, 1)")

    async def first_turn(policy: VllmPolicy, updater: WeightUpdater) -> Generation:
        for version in range(4, 10):
            found, is_running = await updated_turn(policy, updater, folders[version % 2], version, opening)
            ends_as_expected = is_running if pause == "wait" else found.versions[-1] == version
            if found.versions[0] == version - 1 and ends_as_expected:
                return found
        return pytest.fail("no update came in the middle of an answer")

    async def episode(servers: list[TokenServer]) -> tuple[list[tuple[list[int], Generation]], int]:
        updater = WeightUpdater(servers, Transfer(pause=pause), LINEAGE)
        await updater.load(base, 3)
        policy, statistics = VllmPolicy(servers, 3, LINEAGE), servers[0].client.statistics
        turns, prompt, num_cached = [(opening, await first_turn(policy, updater))], opening, 0
        for number in (1, 2):
            prompt = [*prompt, *turns[-1][1].token_ids, *opening[-12:]]
            num_cached = statistics.num_cached_tokens
            sampling = SamplingParams(max_tokens=24, stop_token_ids=(), seed=number)
            turns.append((prompt, await policy.generate("episode", prompt, sampling)))
        learner = learners[turns[-1][1].policy_version % 2]
        probe = Probe(PROBE_IDS, tuple(log_probs_of(learner, list(PROBE_IDS))))
        note(f"{pause}: probe after the update, mean distance", f"{await compare(servers, probe, MAX_GAP):.1e}")
        return turns, statistics.num_cached_tokens - num_cached

    turns, num_cached = asyncio.run(ask_servers(endpoint_of(server), episode, is_versioned=True))
    first, newest = turns[0][1].versions, turns[-1][1].policy_version
    num_old = first.count(newest - 1)
    assert first == (newest - 1,) * num_old + (newest,) * (NUM_LONG - num_old)
    assert num_old == NUM_LONG if pause == "wait" else 0 < num_old < NUM_LONG, num_old
    assert {version for _, found in turns[1:] for version in found.versions} == {newest}
    worst = 0.0
    for prompt, found in turns:
        ids = [*prompt, *found.token_ids]
        by_parity = [log_probs_of(learner, ids)[len(prompt) - 1 :] for learner in learners]
        expected = [by_parity[version % 2][place] for place, version in enumerate(found.versions)]
        worst = max(worst, distance(found.log_probs, expected))
    apart = distance(by_parity[0], by_parity[1])
    note(f"{pause}: tokens of the first turn by old and new weights", f"{num_old} and {NUM_LONG - num_old}")
    note(
        f"{pause}: log-probs of all turns against the learner's, largest", f"{worst:.1e} (versions: {apart:.2g} apart)"
    )
    assert worst < MAX_GAP
    assert num_cached >= 256  # the third turn finds whole blocks (of 128 tokens on a CPU) of the first two


def test_training_with_a_server_as_sampler(server: str, base: Path, tmp_path: Path, open_run, note: Note) -> None:
    """The loop of `repairgym train rl`: two iterations, weights pushed after each, by the embedded engine's path."""
    config = RlConfig(
        algorithm=AlgorithmConfig(
            loss=PpoLossConfig(),
            advantage=GaeAdvantageConfig(),
            group_size=4,
            batch_size=8,
            # The decay alone moves all matrices by a twentieth: every iteration has an update, whatever is sampled.
            optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=50.0),
        ),
        sampler=VllmSamplerConfig(endpoint=endpoint_of(server), max_log_prob_gap=MAX_GAP),
        num_groups=2,
        num_groups_sampled=2,
        max_refills=0,
        max_iterations=2,
    )
    run = open_run(tmp_path)
    loop = RLLoop(run, config, "base")
    found = list(loop.iterations())
    for step in (0, 1):
        ledgers = [trajectory.ledger for trajectory in run.store.trajectories(phase="rl", step=step)]
        assert {int(version) for one in ledgers for version in one.policy_version[one.is_action]} == {step}
    gaps = dict(run.store.metrics("rl", "sync/log_prob_gap"))
    times = dict(run.store.metrics("rl", "time/sync_s"))
    assert set(gaps) == {0, 1, 2}
    note("training: probe after each push, mean distance", ", ".join(f"{gap:.1e}" for gap in gaps.values()))
    note("training: seconds of each push with its probe", ", ".join(f"{time_s:.2f}" for time_s in times.values()))
    sampled = [metrics["policy/log_prob_gap"] for metrics in found]
    note("training: sampled log-probs against the learner's, mean", ", ".join(f"{gap:.1e}" for gap in sampled))
    assert max(abs(gap) for gap in sampled) < MAX_GAP


def test_a_stale_tied_head_is_detected(base: Path, tmp_path: Path, start_server, note: Note) -> None:
    tokenizer = load_tokenizer(base)
    config = ModelConfig(vocab_size=len(tokenizer), hidden_size=64, num_layers=1, num_heads=2, head_dim=32, seed=5)
    save_checkpoint(create_model(config), tokenizer, tmp_path / "tied")
    new = moved(tmp_path / "tied", tmp_path / "new", 1.0)
    probe = Probe(PROBE_IDS, tuple(log_probs_of(learner_of(new), list(PROBE_IDS))))
    before = Probe(PROBE_IDS, tuple(log_probs_of(learner_of(tmp_path / "tied"), list(PROBE_IDS))))

    async def ask(servers: list[TokenServer]) -> None:
        assert await compare(servers, before, MAX_GAP) < MAX_GAP
        assert await WeightUpdater(servers, Transfer(), LINEAGE).load(new, 1) == servers
        assert await servers[0].weight_version() == "test:1"
        with pytest.raises(StaleWeightsError, match="stale output head") as caught:
            await compare(servers, probe, 1e-3)
        note("tied embeddings: the refusal", str(caught.value).split(" from the learner")[0].split(" is ")[1])

    with start_server(tmp_path / "tied") as url:
        asyncio.run(ask_servers(endpoint_of(url), ask, is_versioned=True))


def test_an_adapter_is_replaced_in_place(base: Path, tmp_path: Path, start_server, note: Note) -> None:
    learner = learner_of(base, LoraConfig(rank=8, alpha=16))
    renderer = ChatRenderer(load_tokenizer(base))

    def next_adapter(seed: int) -> Probe:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in learner.model.named_parameters():
                if ".lora_B." in name:
                    parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
        save_model(learner, load_tokenizer(base), tmp_path / f"model-{seed}")
        return Probe(PROBE_IDS, tuple(log_probs_of(learner, list(PROBE_IDS))))

    async def ask(servers: list[TokenServer]) -> None:
        updater = WeightUpdater(servers, Transfer("lora", adapter_name="policy"), LINEAGE)
        gaps = []
        for version in (1, 2):
            probe = next_adapter(version)
            await updater.load(tmp_path / f"model-{version}", version)
            gaps.append(await compare(servers, probe, MAX_GAP))
            found = await VllmPolicy(servers, version, LINEAGE).generate(
                "s", list(PROBE_IDS), SamplingParams(max_tokens=16, stop_token_ids=())
            )
            assert found.policy_version == version
            expected = log_probs_of(learner, [*PROBE_IDS, *found.token_ids])[len(PROBE_IDS) - 1 :]
            assert distance(found.log_probs, expected) < MAX_GAP
        note("adapters in place: probe after each, mean distance", ", ".join(f"{gap:.1e}" for gap in gaps))

    with start_server(base, "--enable-lora", "--max-lora-rank", "16") as url:
        preflight(endpoint_of(url), renderer, Needs(400, 24, LORA_ROUTES))
        asyncio.run(ask_servers(endpoint_of(url, model="policy"), ask, is_versioned=True))
