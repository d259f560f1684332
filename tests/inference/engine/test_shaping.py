"""What clients may change in the sampled distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from repairgym.config.models import EngineConfig, ModelConfig
from repairgym.inference.engine.core import Engine
from repairgym.inference.engine.requests import Request
from repairgym.inference.engine.shaping import Shaping, shape_logits, top_tokens
from repairgym.inference.loading import create_model

PROBABILITIES = [0.5, 0.3, 0.15, 0.05]
LOGITS = torch.tensor(PROBABILITIES).log()


class Only:
    """Allows one token at each place."""

    def __init__(self, *token_ids: int) -> None:
        self._token_ids = list(token_ids)

    def allowed(self, num_tokens: int) -> np.ndarray:
        return np.arange(num_tokens) == self._token_ids[0]

    def accept(self, token_id: int) -> None:
        assert token_id == self._token_ids.pop(0)


@pytest.mark.parametrize(
    ("shaping", "kept"),
    [
        (Shaping(top_p=0.5), [0]),
        (Shaping(top_p=0.51), [0, 1]),
        (Shaping(top_p=0.96), [0, 1, 2, 3]),
        (Shaping(top_p=1e-9), [0]),
        (Shaping(top_k=3), [0, 1, 2]),
        (Shaping(top_k=2, top_p=0.9), [0, 1]),
        (Shaping(mask=Only(3)), [3]),
        (Shaping(logit_bias={2: 100}, top_k=1), [2]),
    ],
)
def test_only_what_is_kept_can_be_sampled(shaping: Shaping, kept: list[int]) -> None:
    shaped = shape_logits(LOGITS, 1.0, [], shaping)
    assert torch.isfinite(shaped).nonzero()[:, 0].tolist() == kept


def test_top_p_is_that_of_the_sampled_temperature() -> None:
    assert torch.isfinite(shape_logits(LOGITS, 4.0, [], Shaping(top_p=0.5))).sum() == 2
    assert torch.isfinite(shape_logits(LOGITS, 0.2, [], Shaping(top_p=0.9))).sum() == 1


def test_penalties_count_the_answer() -> None:
    shaped = shape_logits(LOGITS, 1.0, [1, 1, 3], Shaping(presence_penalty=1.0, frequency_penalty=0.5))
    assert (LOGITS - shaped).tolist() == pytest.approx([0, 2, 0, 1.5])


def test_the_likeliest_tokens_are_those_of_the_sampled_distribution() -> None:
    shaped = shape_logits(LOGITS, 1.0, [], Shaping(top_k=2))
    tops = top_tokens(shaped, 1.0, 3)
    assert [token_id for token_id, _ in tops[:2]] == [0, 1]
    assert [math.exp(log_prob) for _, log_prob in tops] == pytest.approx([0.5 / 0.8, 0.3 / 0.8, 0])
    assert top_tokens(LOGITS, 0.0, 1) == ((0, 0.0),)


def test_a_batch_keeps_plain_requests_as_they_are() -> None:
    config = ModelConfig(
        vocab_size=50, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, intermediate_size=16
    )
    model = create_model(config)

    def run(*shapings: Shaping | None) -> list[Request]:
        engine = Engine(model, EngineConfig(num_slots=4, max_len_tokens=32))
        requests = [
            engine.submit(str(number), [5, 6, 7], max_tokens=4, stop_token_ids=(), seed=1, shaping=shaping)
            for number, shaping in enumerate(shapings)
        ]
        while engine.has_work:
            engine.step()
        return requests

    alone = run(None)[0]
    plain, masked, reported = run(None, Shaping(mask=Only(9, 8, 7, 6)), Shaping(num_top=2))
    assert plain.token_ids == alone.token_ids == reported.token_ids
    assert plain.log_probs == pytest.approx(alone.log_probs, abs=1e-6)
    assert reported.log_probs == pytest.approx(alone.log_probs, abs=1e-6)
    assert masked.token_ids == [9, 8, 7, 6]
    assert masked.log_probs == pytest.approx([0.0] * 4)
    assert [len(top) for top in reported.top_tokens] == [2] * 4
