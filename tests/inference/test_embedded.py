"""The embedded policy: many coroutines, one engine."""

from __future__ import annotations

import asyncio

import pytest
import torch

from repairgym.config.models import EngineConfig, ModelConfig
from repairgym.errors import ConfigError
from repairgym.inference.base import Generation, Policy, SamplingParams
from repairgym.inference.embedded import EmbeddedPolicy
from repairgym.inference.engine.core import Engine
from repairgym.inference.engine.requests import Request
from repairgym.inference.loading import create_model

TINY = ModelConfig(
    vocab_size=300, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=64
)


def new_policy(is_threaded: bool) -> EmbeddedPolicy:
    return EmbeddedPolicy(
        Engine(create_model(TINY), EngineConfig(num_slots=4, max_len_tokens=128)), is_threaded=is_threaded
    )


async def episode(policy: Policy, number: int) -> list[Generation]:
    prompt = [number + 1] * 5
    results = []
    for turn in range(3):
        sampling = SamplingParams(max_tokens=4 + number % 3, stop_token_ids=(7,), seed=number)
        results.append(await policy.generate(f"episode{number}", prompt, sampling))
        prompt = [*prompt, *results[-1].token_ids, turn, turn]
        await asyncio.sleep(0)
    await policy.end_session(f"episode{number}")
    return results


@pytest.mark.asyncio
@pytest.mark.parametrize("is_threaded", [True, False])
async def test_many_episodes_at_once_equal_one_after_the_other(is_threaded: bool) -> None:
    policy = new_policy(is_threaded)
    together = await asyncio.gather(*[episode(policy, number) for number in range(9)])
    alone = new_policy(is_threaded)
    for number, results in enumerate(together):
        for result, expected in zip(results, await episode(alone, number), strict=True):
            assert result.token_ids == expected.token_ids
            assert result.log_probs == pytest.approx(expected.log_probs, abs=1e-5)
            assert result.is_stopped == (result.token_ids[-1] == 7)
    await policy.close()
    await alone.close()


@pytest.mark.asyncio
async def test_weights_change_between_generations_only() -> None:
    policy = new_policy(True)
    state = {name: torch.zeros_like(tensor) for name, tensor in create_model(TINY).state_dict().items()}
    sampling = SamplingParams(max_tokens=30, stop_token_ids=())
    before = asyncio.create_task(policy.generate("a", [1, 2, 3], sampling))
    await asyncio.sleep(0)
    swap = asyncio.create_task(policy.load_state(state, 1))
    await asyncio.sleep(0)
    after = asyncio.create_task(policy.generate("b", [1, 2, 3], sampling))
    first, _, second = await asyncio.gather(before, swap, after)
    assert (first.policy_version, second.policy_version) == (0, 1)
    uniform = -float(torch.log(torch.tensor(300.0)))
    assert second.log_probs == pytest.approx([uniform] * 30, abs=1e-5)
    assert max(first.log_probs) > uniform + 1e-4
    await policy.close()


@pytest.mark.asyncio
async def test_a_bad_prompt_fails_alone() -> None:
    policy = new_policy(False)
    good = policy.generate("a", [1, 2], SamplingParams(max_tokens=3, stop_token_ids=()))
    bad = policy.generate("b", [1] * 200, SamplingParams(max_tokens=3, stop_token_ids=()))
    results = await asyncio.gather(good, bad, return_exceptions=True)
    assert isinstance(results[0], Generation)
    assert isinstance(results[1], ConfigError)
    await policy.close()


@pytest.mark.asyncio
async def test_an_engine_failure_reaches_every_caller_and_the_next_call_works() -> None:
    engine = Engine(create_model(TINY), EngineConfig(num_slots=4, max_len_tokens=128))
    policy = EmbeddedPolicy(engine, is_threaded=False)
    sampling = SamplingParams(max_tokens=3, stop_token_ids=())
    calls = [policy.generate("a", [1, 999], sampling), policy.generate("b", [1, 2], sampling)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, IndexError) for result in results)
    assert len((await policy.generate("c", [1, 2], sampling)).token_ids) == 3
    await policy.close()


@pytest.mark.asyncio
async def test_weights_can_be_loaded_after_a_failure_of_the_engine() -> None:
    class Broken(Engine):
        """Fails once there are running requests."""

        def step(self) -> list[Request]:
            if self._running:
                raise RuntimeError("broken")
            return super().step()

    model = create_model(TINY)
    policy = EmbeddedPolicy(Broken(model, EngineConfig(num_slots=4, max_len_tokens=128)), is_threaded=False)
    with pytest.raises(RuntimeError, match="broken"):
        await policy.generate("a", [1, 2], SamplingParams(max_tokens=30, stop_token_ids=()))
    assert not policy._engine.has_work, "`load_state` would wait for ever"
    await policy.load_state(model.state_dict(), 1)
    assert policy.version == 1
    await policy.close()


@pytest.mark.asyncio
async def test_a_cancelled_call_frees_its_row() -> None:
    policy = new_policy(True)
    call = asyncio.create_task(policy.generate("a", [1, 2], SamplingParams(max_tokens=100, stop_token_ids=())))
    await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await policy.generate("b", [1, 2], SamplingParams(max_tokens=2, stop_token_ids=()))
    assert policy.statistics.num_decode_tokens < 60
    await policy.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("num_recalled", [1, 2])
async def test_a_recalled_session_goes_on_bit_for_bit(num_recalled: int) -> None:
    config = EngineConfig(num_slots=4, max_len_tokens=256, is_batch_invariant=True)
    model = create_model(TINY)

    async def turns(policy: EmbeddedPolicy, recorded: list[Generation]) -> list[Generation]:
        prompt, found = list(range(9, 60)), []
        for turn in range(3):
            sampling = SamplingParams(max_tokens=12, stop_token_ids=(7,), seed=turn)
            if turn < len(recorded):
                await policy.recall("episode", prompt, sampling, recorded[turn])
                found.append(recorded[turn])
            else:
                found.append(await policy.generate("episode", prompt, sampling))
            prompt = [*prompt, *found[-1].token_ids, *range(20, 37)]
        await policy.close()
        return found

    whole = await turns(EmbeddedPolicy(Engine(model, config)), [])
    resumed = await turns(EmbeddedPolicy(Engine(model, config)), whole[:num_recalled])
    assert [(one.token_ids, one.log_probs) for one in resumed] == [(one.token_ids, one.log_probs) for one in whole]


@pytest.mark.asyncio
async def test_without_batch_invariance_nothing_is_computed_ahead() -> None:
    policy = new_policy(True)
    sampled = await policy.generate("a", [1, 2, 3], SamplingParams(max_tokens=4, stop_token_ids=()))
    before = policy.statistics.num_decode_tokens
    await policy.recall("b", [1, 2, 3], SamplingParams(max_tokens=4, stop_token_ids=()), sampled)
    assert policy.statistics.num_decode_tokens == before
    await policy.close()
