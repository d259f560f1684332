"""The test of draws: an honest server passes, one that changes the distribution does not."""

from __future__ import annotations

import numpy as np
import pytest

from repairgym.inference.vllm.sampling_check import Draw, chance_of

NUM_TOKENS = 400


def bfloat16(values: np.ndarray) -> np.ndarray:
    spacing = 2.0 ** (np.floor(np.log2(np.abs(values) + 1e-9)) - 7)
    return np.round(values / spacing) * spacing


def coarse_draws_of(seed: int) -> list[list[Draw]]:
    """The server is honest and computes in bfloat16: its logits differ a little from batch to batch."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(4):
        exact, draws = generator.normal(10.0, 10.0, NUM_TOKENS), []
        for _ in range(64):
            logits = bfloat16(exact + generator.normal(0.0, 0.02, NUM_TOKENS))
            chances = np.exp(logits - logits.max())
            chances /= chances.sum()
            token = int(generator.choice(NUM_TOKENS, p=chances))
            draws.append(Draw(token, float(np.log(chances[token]))))
        found.append(draws)
    return found


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


def test_honest_servers_of_low_precision_pass() -> None:
    assert min(chance_of(coarse_draws_of(seed)) for seed in range(20, 40)) > 1e-4


@pytest.mark.parametrize(("power", "top_k"), [(1.0, 8), (20.0, NUM_TOKENS), (2.5, NUM_TOKENS)])
def test_changed_distributions_do_not(power: float, top_k: int) -> None:
    assert max(chance_of(draws_of(seed, power, top_k)) for seed in range(20)) < 1e-8


def test_probabilities_above_one_and_certain_tokens() -> None:
    assert chance_of([[Draw(token, -0.1) for token in range(64)]]) == 0.0
    assert chance_of([[Draw(3, 0.0)] * 64]) > 0.9
