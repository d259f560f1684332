"""Weights that change under running requests: versions per token, exact log-probabilities, and proof that they came."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from repairgym.errors import ServerDownError, ServerRejectedError, StaleWeightsError
from repairgym.inference.base import SamplingParams
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.loading import load_model
from repairgym.inference.vllm.policy import VllmPolicy
from repairgym.inference.vllm.server import TokenServer
from repairgym.inference.vllm.weights import Lineage, Probe, Transfer, WeightUpdater, compare
from repairgym.testing.fake_vllm import FakeVllm, Flaw

PROMPT = list(range(5, 45))
NUM_TOKENS = 12


def log_probs_of(folder: Path, ids: list[int]) -> list[float]:
    """Of each token after the first, by the model itself."""
    with torch.no_grad():
        rows = torch.log_softmax(load_model(folder)(torch.tensor([ids])).logits[0].float(), dim=-1)
    return [float(row[token]) for row, token in zip(rows[:-1], ids[1:], strict=True)]


def probe_of(folder: Path) -> Probe:
    return Probe(tuple(PROMPT), tuple(log_probs_of(folder, PROMPT)))


@pytest.mark.asyncio
@pytest.mark.parametrize(("pause", "num_old"), [("keep", 5), ("wait", NUM_TOKENS)])
async def test_an_update_in_flight(folders: list[Path], serving, lineage: Lineage, pause: str, num_old: int) -> None:
    """The update is ordered when five tokens of a reply are there; from then on the new weights are expected."""
    fake = FakeVllm(folders[0])
    async with serving(fake) as servers, serving(fake) as others:
        updater = WeightUpdater(others, Transfer(pause=pause), lineage)
        await updater.load(folders[0], 3)
        updates: list[asyncio.Task[list[TokenServer]]] = []

        async def on_token(number: int) -> None:
            if number == 5 and not updates:
                updates.append(asyncio.create_task(updater.load(folders[1], 4)))
                await fake.is_paused.wait()
                policy.expect(4)

        fake.on_token = on_token
        policy = VllmPolicy(servers, 3, lineage)
        results = await policy.generate("s", PROMPT, SamplingParams(max_tokens=NUM_TOKENS, stop_token_ids=()))
        assert await updates[0] == others
        assert results.versions == (3,) * num_old + (4,) * (NUM_TOKENS - num_old)
        ids = [*PROMPT, *results.token_ids]
        old, new = (log_probs_of(folder, ids)[len(PROMPT) - 1 :] for folder in folders)
        assert results.log_probs == pytest.approx(old[:num_old] + new[num_old:], abs=1e-5)
        assert await compare(servers, probe_of(folders[1]), 1e-4) < 1e-5
        later = await policy.generate("s", PROMPT, SamplingParams(max_tokens=2, stop_token_ids=()))
        assert (later.policy_version, later.token_versions) == (4, ())


@pytest.mark.asyncio
async def test_orders_and_their_order(folders: list[Path], serving, lineage: Lineage, tmp_path: Path) -> None:
    fake, name = FakeVllm(folders[0]), "model.layers.0.self_attn.q_proj"
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"r": 1, "lora_alpha": 2}')
    before = fake.state()[f"{name}.weight"]
    parts = {"lora_A": torch.ones(1, before.shape[1]), "lora_B": torch.ones(before.shape[0], 1)}
    tensors = {f"base_model.model.{name}.{part}.weight": value for part, value in parts.items()}
    save_file(tensors, tmp_path / "adapter" / "adapter_model.safetensors")
    async with serving(fake) as servers:
        updater = WeightUpdater(servers, Transfer("lora", adapter_name="policy"), lineage)
        with pytest.raises(ServerRejectedError, match="could not load"):
            await updater.load(folders[1], 6)  # no adapter in it
        fake.log.clear()
        await updater.load(tmp_path, 7)
        assert torch.allclose(fake.state("policy")[f"{name}.weight"], before + 2)
        assert torch.equal(fake.state()[f"{name}.weight"], before)
        assert await servers[0].weight_version() == "run:7"
    assert fake.log == [
        "/pause",
        "/update_weight_version",
        "/v1/load_lora_adapter",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/resume",
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("flaw", [Flaw.STALE_HEAD, Flaw.IGNORES_WEIGHTS])
async def test_weights_that_did_not_arrive_are_detected(
    folders: list[Path], serving, lineage: Lineage, flaw: Flaw
) -> None:
    async with serving(FakeVllm(folders[0]), FakeVllm(folders[0], [flaw])) as servers:
        loaded = await WeightUpdater(servers, Transfer(), lineage).load(folders[1], 1)
        assert await servers[1].weight_version() == "run:1"  # what it says of itself
        with pytest.raises(StaleWeightsError, match=r"stale output head.*tie_word_embeddings=false") as caught:
            await compare(loaded, probe_of(folders[1]), 1e-3)
    assert servers[1].url in str(caught.value)


@pytest.mark.asyncio
async def test_a_server_that_failed_during_an_update_resumes_without_a_version(
    folders: list[Path], serving, lineage: Lineage
) -> None:
    async with serving(FakeVllm(folders[0], [Flaw.CANNOT_LOAD])) as servers:
        with pytest.raises(ServerRejectedError, match="must see this folder under this path"):
            await WeightUpdater(servers, Transfer(), lineage).load(folders[1], 1)
        assert await servers[0].weight_version() == "loading"
        with pytest.raises(StaleWeightsError, match="weights 'loading'; expected version 0 of this run or a newer"):
            await VllmPolicy(servers, 0, lineage).generate("s", PROMPT, SamplingParams(max_tokens=2, stop_token_ids=()))


@pytest.mark.asyncio
async def test_a_server_that_is_down_is_left_out(folders: list[Path], serving, lineage: Lineage) -> None:
    async with serving(FakeVllm(folders[0])) as gone:
        config = gone[0].config
    async with serving(FakeVllm(folders[0])) as servers, EndpointClient(config) as client:
        dead = TokenServer(client, is_versioned=True)
        assert await WeightUpdater([dead, *servers], Transfer(), lineage).load(folders[1], 1) == servers
        with pytest.raises(ServerDownError):
            await WeightUpdater([dead], Transfer(), lineage).load(folders[1], 1)


@pytest.mark.asyncio
async def test_weights_of_another_run_are_never_newer_ones(folders: list[Path], serving, lineage: Lineage) -> None:
    """Two runs that load into one server by mistake, or a server that missed the first load of a new run."""
    async with serving(FakeVllm(folders[0])) as servers:
        await WeightUpdater(servers, Transfer(), lineage).load(folders[0], 3)
        await WeightUpdater(servers, Transfer(), Lineage("other")).load(folders[1], 7)
        with pytest.raises(StaleWeightsError, match="another run loads weights into it"):
            await VllmPolicy(servers, 3, lineage).generate("s", PROMPT, SamplingParams(max_tokens=2, stop_token_ids=()))


@pytest.mark.asyncio
async def test_a_server_whose_answer_to_pause_is_lost_resumes(folders: list[Path], serving, lineage: Lineage) -> None:
    fake = FakeVllm(folders[0], [Flaw.DEAF_TO_PAUSE])
    async with serving(fake, timeout_s=0.5, max_attempts=1) as servers:
        with pytest.raises(ServerDownError, match="no reply within"):
            await WeightUpdater(servers, Transfer(), lineage).load(folders[1], 1)
    assert fake.log == ["/pause", "/resume"]
