"""Which models can be served and trained exactly: the checks that refuse the others.

Reads a model; makes nothing. Used by the engine and, through `inference/loading.py`, by the learner.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from repairgym.errors import ConfigError


def check_supported(model: PreTrainedModel) -> None:
    """Refuse models whose log-probabilities would be silently wrong here.

    Raises:
        ConfigError: a layer is not full causal attention, or the logits are more than the output embedding of the last
            hidden state (scaled or capped).
    """
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ConfigError(f"layers of kind {sorted(kinds)}; expected full_attention only; use another model")
    is_training = model.training
    probe = torch.tensor([[0, 1, 2]], device=next(model.parameters()).device)
    with torch.no_grad():
        model.eval()
        expected = model(input_ids=probe).logits
        got = model.get_output_embeddings()(model.base_model(input_ids=probe).last_hidden_state)
        model.train(is_training)
    if not torch.allclose(expected.float(), got.float(), rtol=1e-2, atol=1e-2):
        raise ConfigError(f"{type(model).__name__} changes its logits after the output embedding; use another model")


def check_length(model: PreTrainedModel, max_len_tokens: int) -> None:
    """Refuse sequences that the model was not made for.

    Raises:
        ConfigError: ``max_len_tokens`` is beyond the model's positions.
    """
    longest = getattr(model.config, "max_position_embeddings", max_len_tokens)
    if max_len_tokens > longest:
        raise ConfigError(f"max_len_tokens={max_len_tokens}, but the model takes {longest}; lower max_len_tokens")
