"""Sampling of tokens."""

from __future__ import annotations

import torch

from repairgym.inference.engine.requests import draw_uniforms, sample_tokens


def test_sampling_follows_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, float("-inf")])
    count = 20_000
    uniforms = torch.from_numpy(draw_uniforms(0, 1, count))
    ids, log_probs = sample_tokens(logits.expand(count, 4), torch.full((count,), 0.7), uniforms)
    probs = torch.softmax(logits / 0.7, -1)
    frequency = torch.bincount(ids, minlength=4) / count
    assert torch.allclose(frequency, probs, atol=0.015)
    assert frequency[3] == 0
    assert torch.allclose(log_probs, probs.log()[ids], atol=1e-5)


def test_the_ends_of_the_uniform_range_are_tokens_of_positive_probability() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]]).expand(2, 4)
    uniforms = torch.tensor([0.0, 1 - 2**-24], dtype=torch.float64)
    ids, _ = sample_tokens(logits, torch.ones(2), uniforms)
    assert ids.tolist() == [1, 2]
