"""The engine against plain transformers: same log-probabilities, each prompt token computed once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from repairgym.config.models import EngineConfig
from repairgym.errors import ConfigError
from repairgym.inference.engine.core import Engine
from repairgym.inference.engine.requests import Request

TrueLogProbs = Callable[[PreTrainedModel, Request], torch.Tensor]
SMALL = EngineConfig(num_slots=12, max_len_tokens=256, prefill_tokens=256)


def finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def ask(engine: Engine, session: str, prompt: list[int], max_tokens: int = 6, seed: int = 0) -> Request:
    return engine.submit(session, prompt, max_tokens=max_tokens, stop_token_ids=(), seed=seed)


def random_ids(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 300, count).tolist()


def assert_exact(got: Request, want: torch.Tensor, tolerance: float = 3e-5) -> None:
    assert torch.tensor(got.log_probs) == pytest.approx(want, abs=tolerance)


def session_bits(model: PreTrainedModel, others: int, is_batch_invariant: bool) -> list[tuple[list[int], list[float]]]:
    """Three turns of one session, batched with ``others`` of other lengths that share its first tokens."""
    engine = Engine(model, SMALL.model_copy(update={"is_batch_invariant": is_batch_invariant}))
    prompt, turns = random_ids(0, 40), []
    for turn in range(3):
        for number in range(others):
            ask(engine, f"{turn}-{number}", prompt[:30] + random_ids(number + 1, 3 + 5 * number), max_tokens=2 + number)
            engine.step()
        request = ask(engine, "mine", prompt, seed=turn)
        finish(engine)
        turns.append((request.token_ids, request.log_probs))
        prompt = prompt + request.token_ids + random_ids(100 + turn, 7)
        for number in range(0, others, 2):
            engine.end_session(f"{turn}-{number}")
    return turns


def test_a_request_that_was_given_up_while_it_waited_does_not_hold_its_session(model: PreTrainedModel) -> None:
    engine = Engine(model, SMALL)
    given_up = ask(engine, "mine", random_ids(0, 9))
    with pytest.raises(ConfigError, match="already generates"):
        ask(engine, "mine", random_ids(0, 9))
    given_up.is_cancelled = True
    again = ask(engine, "mine", random_ids(0, 9))
    finish(engine)
    assert len(again.token_ids) == again.max_tokens
    assert given_up.token_ids == []


def test_a_batch_invariant_session_is_the_same_bit_for_bit_in_any_batch(model: PreTrainedModel) -> None:
    alone = session_bits(model, 0, True)
    assert all(session_bits(model, others, True) == alone for others in (1, 3))
    # Without it only the numbers' last bits differ, which is why it has to be asked for.
    beside = session_bits(model, 3, False)
    assert [ids for ids, _ in beside] == [ids for ids, _ in alone]
    assert [item for _, some in beside for item in some] == pytest.approx(
        [item for _, some in alone for item in some], abs=3e-5
    )


@pytest.mark.parametrize(
    "config", [SMALL, SMALL.model_copy(update={"num_slots": 3}), SMALL.model_copy(update={"prefill_tokens": 16})]
)
def test_multi_turn_sessions_get_the_log_probs_of_a_full_forward(
    model: PreTrainedModel, reference: PreTrainedModel, true_log_probs: TrueLogProbs, config: EngineConfig
) -> None:
    engine = Engine(model, config)
    generator = np.random.default_rng(1)
    prompts = {f"lone{i}": random_ids(i, 10 + 3 * i) for i in range(4)} | {
        f"group{i}": random_ids(9, 40) for i in range(4)
    }
    num_asked = 0
    for turn in range(3):
        requests = []
        for index, (session, prompt) in enumerate(prompts.items()):
            if turn and generator.random() < 0.3:
                continue
            requests.append(ask(engine, session, prompt, int(generator.integers(1, 12)), seed=index))
            num_asked += len(prompt)
            if generator.random() < 0.5:
                engine.step()
        finish(engine)
        for request in requests:
            assert_exact(request, true_log_probs(reference, request))
            prompts[request.session_id] = request.prompt.tolist() + request.token_ids + random_ids(turn, 7)
    counted = engine.statistics
    assert counted.num_prefill_tokens + counted.num_reused_tokens + counted.num_shared_tokens == num_asked
    assert counted.num_resets == 0
    assert (counted.num_evictions > 0) == (config.num_slots == 3)


def test_result_does_not_depend_on_the_batch(model: PreTrainedModel) -> None:
    prompts = [random_ids(i, 20 + i) for i in range(6)]
    crowd = Engine(model, SMALL)
    together = [ask(crowd, f"s{i}", prompt, 20, seed=i) for i, prompt in enumerate(prompts)]
    finish(crowd)
    for index, prompt in enumerate(prompts):
        engine = Engine(model, SMALL)
        alone = ask(engine, "other name", prompt, 20, seed=index)
        finish(engine)
        assert alone.token_ids == together[index].token_ids


def test_a_group_computes_its_prompt_once_and_draws_apart(model: PreTrainedModel) -> None:
    engine = Engine(model, SMALL)
    prompt = random_ids(0, 60)
    requests = [ask(engine, f"member{i}", prompt, 8, seed=i) for i in range(8)]
    finish(engine)
    assert engine.statistics.num_prefill_tokens == 60
    assert engine.statistics.num_shared_tokens == 7 * 60
    assert len({tuple(request.token_ids) for request in requests}) > 1


def test_a_prompt_that_extends_another_computes_only_the_rest(
    model: PreTrainedModel, reference: PreTrainedModel, true_log_probs: TrueLogProbs
) -> None:
    engine = Engine(model, SMALL)
    ask(engine, "short", random_ids(0, 50))
    longer = ask(engine, "long", random_ids(0, 50) + random_ids(1, 20))
    finish(engine)
    assert engine.statistics.num_prefill_tokens == 70
    assert_exact(longer, true_log_probs(reference, longer))


def test_an_ended_session_leaves_its_prompt_to_the_next(model: PreTrainedModel) -> None:
    engine = Engine(model, SMALL)
    ask(engine, "first", random_ids(0, 50))
    finish(engine)
    engine.end_session("first")
    ask(engine, "second", random_ids(0, 50))
    finish(engine)
    assert engine.statistics.num_prefill_tokens == 51  # the last token again, for its logits


def test_a_prompt_that_diverges_is_reset_and_counted(
    model: PreTrainedModel, reference: PreTrainedModel, true_log_probs: TrueLogProbs
) -> None:
    engine = Engine(model, SMALL)
    ask(engine, "s", random_ids(0, 50))
    finish(engine)
    changed = ask(engine, "s", random_ids(0, 30) + random_ids(5, 30))
    finish(engine)
    assert engine.statistics.num_resets == 1
    assert engine.statistics.num_reused_tokens == 30
    assert_exact(changed, true_log_probs(reference, changed))


def test_new_weights_forget_old_keys(
    model: PreTrainedModel, reference: PreTrainedModel, true_log_probs: TrueLogProbs
) -> None:
    engine = Engine(model, SMALL)
    first = ask(engine, "s", random_ids(0, 50))
    with pytest.raises(ConfigError, match="running"):
        engine.load_state(reference.state_dict(), 1)
    finish(engine)
    with torch.no_grad():
        reference.model.layers[0].mlp.up_proj.weight.mul_(-1.0)
    engine.load_state(reference.state_dict(), 1)
    second = ask(engine, "s", [*first.prompt.tolist(), *first.token_ids, 3])
    finish(engine)
    assert engine.version == 1
    assert engine.statistics.num_reused_tokens == 0
    assert_exact(second, true_log_probs(reference, second))
    with pytest.raises(ConfigError, match="do not fit"):
        engine.load_state({"lm_head.weight": torch.zeros(2, 2)}, 2)


def test_a_stop_token_ends_and_is_included(model: PreTrainedModel) -> None:
    engine = Engine(model, SMALL)
    free = ask(engine, "a", random_ids(0, 20), 30)
    finish(engine)
    stop = free.token_ids[4]
    stopped = engine.submit("b", random_ids(0, 20), max_tokens=30, stop_token_ids=(stop,))
    finish(engine)
    assert stopped.is_stopped
    assert not free.is_stopped
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]


def test_greedy_takes_the_most_likely_token_for_certain(model: PreTrainedModel, reference: PreTrainedModel) -> None:
    engine = Engine(model, SMALL)
    prompt = random_ids(0, 20)
    request = engine.submit("s", prompt, max_tokens=4, stop_token_ids=(), temperature=0.0)
    finish(engine)
    for token_id in request.token_ids:
        assert int(reference(torch.tensor([prompt])).logits[0, -1].argmax()) == token_id
        prompt = [*prompt, token_id]
    assert request.log_probs == [0.0] * 4


def test_temperature_is_in_the_log_probs(
    model: PreTrainedModel, reference: PreTrainedModel, true_log_probs: TrueLogProbs
) -> None:
    engine = Engine(model, SMALL)
    request = engine.submit("s", random_ids(0, 20), max_tokens=8, stop_token_ids=(), temperature=0.5)
    finish(engine)
    assert_exact(request, true_log_probs(reference, request))


def test_turns_with_one_seed_draw_different_numbers(model: PreTrainedModel) -> None:
    engine = Engine(model, SMALL)
    first, second = ask(engine, "a", random_ids(0, 20), seed=3), ask(engine, "b", random_ids(0, 21), seed=3)
    assert not np.array_equal(first.uniforms, second.uniforms)


def test_length_limits(model: PreTrainedModel) -> None:
    engine = Engine(model, SMALL)
    with pytest.raises(ConfigError, match="max_len_tokens=256"):
        ask(engine, "s", random_ids(0, 256))
    last = ask(engine, "s", random_ids(0, 250), 20)
    with pytest.raises(ConfigError, match="already generates"):
        ask(engine, "s", random_ids(0, 250))
    finish(engine)
    assert len(last.token_ids) == 6
    with pytest.raises(ConfigError, match="model takes 256"):
        Engine(model, EngineConfig(max_len_tokens=257))


def test_a_cancelled_session_leaves_the_others_alone(
    model: PreTrainedModel, reference: PreTrainedModel, true_log_probs: TrueLogProbs
) -> None:
    engine = Engine(model, SMALL)
    dropped, kept = ask(engine, "a", random_ids(0, 30), 20), ask(engine, "b", random_ids(1, 30), 20)
    engine.step()
    engine.end_session("a")
    finish(engine)
    assert len(dropped.token_ids) < 20
    assert_exact(kept, true_log_probs(reference, kept))


def test_bfloat16_is_close_to_bfloat16_transformers(
    model: PreTrainedModel, reference: PreTrainedModel, true_log_probs: TrueLogProbs
) -> None:
    torch.nn.Module.to(model, torch.bfloat16)
    torch.nn.Module.to(reference, torch.bfloat16)
    engine = Engine(model, SMALL)
    requests = [ask(engine, f"s{i}", random_ids(i, 30), 8) for i in range(3)]
    finish(engine)
    for request in requests:
        error = (torch.tensor(request.log_probs) - true_log_probs(reference, request)).abs()
        assert float(error.mean()) < 0.1


@pytest.mark.parametrize(
    "other",
    [
        lambda: LlamaForCausalLM(
            LlamaConfig(
                vocab_size=300,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
            )
        ),
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=256)),
    ],
    ids=["llama", "gpt2"],
)
def test_other_architectures(other: Callable[[], PreTrainedModel], true_log_probs: TrueLogProbs) -> None:
    torch.manual_seed(0)
    reference = other().eval()
    model = other().eval()
    model.load_state_dict(reference.state_dict())
    engine = Engine(model, SMALL)
    requests = [ask(engine, f"s{i}", random_ids(i, 20 + i)) for i in range(3)]
    engine.step()
    engine.end_session("s1")
    finish(engine)
    for request in (requests[0], requests[2]):
        assert_exact(request, true_log_probs(reference, request))


def test_a_model_without_attention_back_ends_gathers_its_keys(
    model: PreTrainedModel, reference: PreTrainedModel, true_log_probs: TrueLogProbs
) -> None:
    model.set_attn_implementation("sdpa")
    model._supports_attention_backend = False
    engine = Engine(model, SMALL)
    requests = [ask(engine, f"s{i}", random_ids(i, 20 + i)) for i in range(3)]
    finish(engine)
    assert model.config._attn_implementation == "sdpa"
    for request in requests:
        assert_exact(request, true_log_probs(reference, request))


def test_models_that_would_be_served_wrongly_are_rejected() -> None:
    sizes = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    windowed = Gemma2ForCausalLM(Gemma2Config(**sizes, num_key_value_heads=2, head_dim=8))
    with pytest.raises(ConfigError, match="sliding_attention"):
        Engine(windowed, SMALL)
    capped_config = Gemma2Config(**sizes, num_key_value_heads=2, head_dim=8, final_logit_softcapping=0.1)
    capped_config.layer_types = ["full_attention"] * 2
    with pytest.raises(ConfigError, match="changes its logits"):
        Engine(Gemma2ForCausalLM(capped_config), SMALL)
