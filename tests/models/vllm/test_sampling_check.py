"""The test of draws: an honest server passes, one that changes the distribution does not."""

from __future__ import annotations

import numpy as np
import pytest

from mendwright.models.vllm.sampling_check import Draw, chance_of

NUM_TOKENS = 400


def draws_of(seed: int, power: float = 1.0, top_k: int = NUM_TOKENS) -> list[list[Draw]]:
    """64 draws after each of four prompts; the server samples from ``p ** power`` of the ``top_k`` likeliest."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(4):
        reported = generator.dirichlet(np.full(NUM_TOKENS, 0.2))
        used = reported**power * (reported >= np.sort(reported)[-top_k])
        tokens = generator.choice(NUM_TOKENS, size=64, p=used / used.sum())
        found.append([Draw(int(token), float(np.log(reported[token]))) for token in tokens])
    return found


def test_honest_servers_pass() -> None:
    chances = [chance_of(draws_of(seed)) for seed in range(200)]
    assert min(chances) > 1e-4
    assert 0.4 < np.mean(chances) < 0.7


@pytest.mark.parametrize(("power", "top_k"), [(1.0, 8), (20.0, NUM_TOKENS), (2.5, NUM_TOKENS)])
def test_changed_distributions_do_not(power: float, top_k: int) -> None:
    assert max(chance_of(draws_of(seed, power, top_k)) for seed in range(20)) < 1e-8


def test_probabilities_above_one_and_certain_tokens() -> None:
    assert chance_of([[Draw(token, -0.1) for token in range(64)]]) == 0.0
    assert chance_of([[Draw(3, 0.0)] * 64]) > 0.9
