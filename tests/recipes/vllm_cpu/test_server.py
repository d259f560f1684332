"""vLLM's CPU build with the shipped model: what the fake server stands for is so, down to the log-probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
import torch

from mendwright.config.algorithms import GaeAdvantageConfig, PpoLossConfig
from mendwright.config.endpoint import EndpointConfig
from mendwright.config.learning import ComputeConfig, DapoConfig, LoraConfig, OptimizerConfig
from mendwright.config.models import ModelConfig
from mendwright.config.recipes import RlConfig
from mendwright.config.sampler import VllmSamplerConfig
from mendwright.errors import ServerRefusedError, StaleWeightsError
from mendwright.learning.checkpoints import save_model
from mendwright.learning.learner import Learner
from mendwright.learning.samples import text_sample
from mendwright.models.base import Generation, Sampling
from mendwright.models.loading import create_model, load_model, load_tokenizer, save_checkpoint
from mendwright.models.renderer import ChatRenderer
from mendwright.models.vllm.policy import VllmPolicy
from mendwright.models.vllm.preflight import FOLDER_ROUTES, LORA_ROUTES, Needs, preflight
from mendwright.models.vllm.server import TokenServer, ask_servers
from mendwright.models.vllm.weights import Probe, Transfer, WeightUpdater, compare
from mendwright.recipes.dapo import DapoLoop

pytestmark = pytest.mark.vllm
NUM_LONG = 880
"""Tokens of the turn during which the weights change: some seconds."""
MAX_GAP = 1e-4
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


def num_generated(url: str) -> float:
    """Tokens that the server has sampled in all."""
    text = httpx2.get(url.replace("/v1", "/metrics"), timeout=60.0, trust_env=False).text
    rows = [row for row in text.splitlines() if row.startswith("vllm:generation_tokens_total")]
    return sum(float(row.rsplit(" ", 1)[1]) for row in rows)


async def until_generated(url: str, num_tokens: float) -> None:
    for _ in range(10_000):
        if num_generated(url) >= num_tokens:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"the server has sampled {num_generated(url):.0f} tokens, expected {num_tokens:.0f}")


@pytest.fixture(scope="module")
def server(base: Path, start_server) -> Iterator[str]:
    with start_server(base) as url:
        yield url


def test_the_checks_pass_and_refuse_a_short_context(server: str, base: Path) -> None:
    renderer = ChatRenderer(load_tokenizer(base))
    preflight(endpoint_of(server), renderer, Needs(400, 24, FOLDER_ROUTES))
    preflight(endpoint_of(server), renderer, Needs(400, 24))
    with pytest.raises(ServerRefusedError, match="--max-model-len 4096"):
        preflight(endpoint_of(server), renderer, Needs(4096, 24))
    with pytest.raises(ServerRefusedError, match="serves tiny, not 'base'"):
        preflight(endpoint_of(server, model="base"), renderer, Needs(400, 24))


@pytest.mark.parametrize("pause", ["keep", "wait"])
def test_an_update_during_an_episode(server: str, base: Path, tmp_path: Path, note: Note, pause: str) -> None:
    """Three turns; the weights change in the middle of the first one."""
    new = moved(base, tmp_path / "new", 0.05)
    learners = {3: learner_of(base), 4: learner_of(new)}
    opening = ChatRenderer(load_tokenizer(base)).open_ids("f in m.py is wrong: assert f(1, 1)")

    async def episode(servers: list[TokenServer]) -> list[tuple[list[int], Generation]]:
        updater = WeightUpdater(servers, Transfer(pause=pause))
        await updater.load(base, 3)
        policy = VllmPolicy(servers, version=3)
        turns, prompt = [], opening
        for number, max_tokens in enumerate((NUM_LONG, 24, 24)):
            sampling = Sampling(max_tokens=max_tokens, stop_token_ids=(), seed=number)
            before = num_generated(server)
            asked = asyncio.create_task(policy.generate("episode", prompt, sampling))
            if number == 0:
                await until_generated(server, before + 10)
                await updater.load(new, 4)
            found = await asked
            turns.append((prompt, found))
            prompt = [*prompt, *found.token_ids, *opening[-12:]]
        probe = Probe(PROBE_IDS, tuple(log_probs_of(learners[4], list(PROBE_IDS))))
        note(f"{pause}: probe after the update, mean distance", f"{await compare(servers, probe, MAX_GAP):.1e}")
        return turns

    async def ask(servers: list[TokenServer]) -> tuple[list[tuple[list[int], Generation]], int]:
        return await episode(servers), servers[0].client.statistics.num_cached_tokens

    turns, num_cached = asyncio.run(ask_servers(endpoint_of(server), ask, is_versioned=True))
    first = turns[0][1].versions
    num_old = first.count(3)
    assert first == (3,) * num_old + (4,) * (NUM_LONG - num_old)
    assert num_old == NUM_LONG if pause == "wait" else 10 <= num_old < NUM_LONG, num_old
    assert {version for _, found in turns[1:] for version in found.versions} == {4}
    worst = 0.0
    for prompt, found in turns:
        ids = [*prompt, *found.token_ids]
        by_version = {one: log_probs_of(learner, ids)[len(prompt) - 1 :] for one, learner in learners.items()}
        expected = [by_version[version][place] for place, version in enumerate(found.versions)]
        worst = max(worst, distance(found.log_probs, expected))
    apart = distance(by_version[3], by_version[4])
    note(f"{pause}: tokens of the first turn by old and new weights", f"{num_old} and {NUM_LONG - num_old}")
    note(
        f"{pause}: log-probs of all turns against the learner's, largest", f"{worst:.1e} (versions: {apart:.2g} apart)"
    )
    assert worst < MAX_GAP
    assert num_cached >= 256  # the third turn finds whole blocks (of 128 tokens on a CPU) of the first two


def test_training_with_a_server_as_sampler(server: str, base: Path, tmp_path: Path, open_run, note: Note) -> None:
    """The loop of `mend train rl`: two iterations, weights pushed after each, by the path of the embedded engine."""
    config = RlConfig(
        dapo=DapoConfig(
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
    loop = DapoLoop(run, config, "base")
    found = list(loop.iterations())
    for step in (0, 1):
        ledgers = [trajectory.ledger for trajectory in run.store.trajectories(phase="dapo", step=step)]
        assert {int(version) for one in ledgers for version in one.policy_version[one.is_action]} == {step}
    gaps = dict(run.store.metrics("dapo", "sync/log_prob_gap"))
    times = dict(run.store.metrics("dapo", "time/sync_s"))
    assert set(gaps) == {0, 1, 2}
    note("training: probe after each push, mean distance", ", ".join(f"{gap:.1e}" for gap in gaps.values()))
    note("training: seconds of each push with its probe", ", ".join(f"{time_s:.2f}" for time_s in times.values()))
    sampled = [metrics["policy/log_prob_gap"] for metrics in found]
    note("training: sampled log-probs against the learner's, mean", ", ".join(f"{gap:.1e}" for gap in sampled))
    assert max(abs(gap) for gap in sampled) < MAX_GAP


def test_a_tied_head_stays_stale_and_is_caught(base: Path, tmp_path: Path, start_server, note: Note) -> None:
    tokenizer = load_tokenizer(base)
    config = ModelConfig(vocab_size=len(tokenizer), hidden_size=64, num_layers=1, num_heads=2, head_dim=32, seed=5)
    save_checkpoint(create_model(config), tokenizer, tmp_path / "tied")
    new = moved(tmp_path / "tied", tmp_path / "new", 1.0)
    probe = Probe(PROBE_IDS, tuple(log_probs_of(learner_of(new), list(PROBE_IDS))))
    before = Probe(PROBE_IDS, tuple(log_probs_of(learner_of(tmp_path / "tied"), list(PROBE_IDS))))

    async def ask(servers: list[TokenServer]) -> None:
        assert await compare(servers, before, MAX_GAP) < MAX_GAP
        assert await WeightUpdater(servers, Transfer()).load(new, 1) == servers
        assert await servers[0].weight_version() == "1"
        with pytest.raises(StaleWeightsError, match="stale output head") as caught:
            await compare(servers, probe, 1e-3)
        note("tied embeddings: the refusal", str(caught.value).split(" from the learner")[0].split("sees ")[1])

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
        updater = WeightUpdater(servers, Transfer("lora", adapter_name="policy"))
        gaps = []
        for version in (1, 2):
            probe = next_adapter(version)
            await updater.load(tmp_path / f"model-{version}", version)
            gaps.append(await compare(servers, probe, MAX_GAP))
            found = await VllmPolicy(servers, version).generate(
                "s", list(PROBE_IDS), Sampling(max_tokens=16, stop_token_ids=())
            )
            assert found.policy_version == version
            expected = log_probs_of(learner, [*PROBE_IDS, *found.token_ids])[len(PROBE_IDS) - 1 :]
            assert distance(found.log_probs, expected) < MAX_GAP
        note("adapters in place: probe after each, mean distance", ", ".join(f"{gap:.1e}" for gap in gaps))

    with start_server(base, "--enable-lora", "--max-lora-rank", "16") as url:
        preflight(endpoint_of(url), renderer, Needs(400, 24, LORA_ROUTES))
        asyncio.run(ask_servers(endpoint_of(url, model="policy"), ask, is_versioned=True))
