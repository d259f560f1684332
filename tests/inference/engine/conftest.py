"""A small model whose predictions depend on its context, and a way to ask plain transformers for the truth."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from repairgym.config.models import ModelConfig
from repairgym.inference.engine.requests import Request
from repairgym.inference.loading import create_model

TINY = ModelConfig(
    vocab_size=300, hidden_size=48, num_layers=2, num_heads=4, head_dim=16, intermediate_size=96, max_len_tokens=256
)


def sharpen(model: PreTrainedModel) -> PreTrainedModel:
    """Scale the matrices: freshly initialised models hardly look at their context."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= 4
    return model


@pytest.fixture
def model() -> PreTrainedModel:
    return sharpen(create_model(TINY))


@pytest.fixture
def reference() -> PreTrainedModel:
    """Equal weights, transformers' own attention, no cache."""
    reference = sharpen(create_model(TINY))
    reference.set_attn_implementation("sdpa")
    return reference


@pytest.fixture
def true_log_probs() -> Callable[[PreTrainedModel, Request], torch.Tensor]:
    def compute(model: PreTrainedModel, request: Request) -> torch.Tensor:
        """[tokens] log-probabilities of the request's tokens by one full forward."""
        prompt = request.prompt.tolist()
        with torch.no_grad():
            logits = model(torch.tensor([prompt + request.token_ids])).logits[0].float()
        at = torch.arange(len(prompt) - 1, len(prompt) + len(request.token_ids) - 1)
        scaled = logits[at] / (request.temperature or 1.0)
        return torch.log_softmax(scaled, -1)[torch.arange(len(at)), torch.tensor(request.token_ids)]

    return compute
