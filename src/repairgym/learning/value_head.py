"""The critic of PPO: one linear layer on the hidden states that also predict the tokens.

Reads hidden states; makes values. Invariants: values are float32 whatever the autocast; a new head says 0
everywhere, so the first advantages are the plain returns and the first value gradients leave the model's body alone.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel


class ValueHead(torch.nn.Module):
    """The value of a state from its last hidden state."""

    def __init__(self, model: PreTrainedModel) -> None:
        """A head for ``model``, on its device."""
        super().__init__()
        embedding = model.get_output_embeddings().weight
        self.linear = torch.nn.Linear(embedding.shape[1], 1, device=embedding.device)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, hidden] -> [N] float32."""
        with torch.autocast(hidden.device.type, enabled=False):
            value: torch.Tensor = self.linear(hidden.float())[:, 0]
        return value
