"""Shapes of dense decoders with grouped-query attention and a gated MLP (Qwen, Llama and similar).

Reads ``config.json``; makes `ModelShape`. All counts follow from the shape alone.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from repairgym.errors import ModelFolderError

_FIELDS = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
}


@dataclass(frozen=True)
class ModelShape:
    """A dense decoder."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    is_tied: bool = False

    @property
    def layer_parameters(self) -> int:
        """Matrices of one layer; norms and biases are left out (below 0.1 %)."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def head_parameters(self) -> int:
        """One vocabulary matrix."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All, embeddings included."""
        return self.num_layers * self.layer_parameters + self.head_parameters * (1 if self.is_tied else 2)

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache of one token in 16 bits."""
        return 2 * 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def forward_flops(self, num_tokens: float, context_tokens: float) -> float:
        """Operations of ``num_tokens`` tokens with ``context_tokens`` visible tokens on average.

        Two per parameter in a matrix product (the embedding is a look-up), and four per pair of positions, head and
        dimension in attention.
        """
        matrices = self.num_layers * self.layer_parameters + self.head_parameters
        attention = 4.0 * self.num_layers * self.num_heads * self.head_dim * context_tokens
        return num_tokens * (2.0 * matrices + attention)


SHAPES = {
    "Qwen3-0.6B": ModelShape(28, 1024, 16, 8, 128, 3072, 151_936, is_tied=True),
    "Qwen3-1.7B": ModelShape(28, 2048, 16, 8, 128, 6144, 151_936, is_tied=True),
    "Qwen3-4B": ModelShape(36, 2560, 32, 8, 128, 9728, 151_936, is_tied=True),
    "Qwen3-8B": ModelShape(36, 4096, 32, 8, 128, 12_288, 151_936),
    "Qwen3-14B": ModelShape(40, 5120, 40, 8, 128, 17_408, 151_936),
    "Qwen3-32B": ModelShape(64, 5120, 64, 8, 128, 25_600, 151_936),
    "Qwen2.5-72B": ModelShape(80, 8192, 64, 8, 128, 29_568, 152_064),
    "Llama-3.1-70B": ModelShape(80, 8192, 64, 8, 128, 28_672, 128_256),
}


def read_shape(model: str) -> ModelShape:
    """Read the shape of a name in `SHAPES` (also as a hub id), a model folder or a ``config.json``.

    `ModelFolderError`: no such name or file, or the file does not describe a dense decoder.
    """
    name = model.rpartition("/")[2]
    if name in SHAPES and not Path(model).exists():
        return SHAPES[name]
    path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        values = {ours: int(fields[theirs]) for ours, theirs in _FIELDS.items()}
    except FileNotFoundError:
        raise ModelFolderError(f"got model {model!r}, expected a folder or one of {', '.join(SHAPES)}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFolderError(f"{path} does not describe a dense decoder: {type(error).__name__} {error}") from error
    if fields.get("num_experts") or fields.get("num_local_experts"):
        raise ModelFolderError(f"{path} describes a mixture of experts, which repairgym plan does not support")
    head_dim = int(fields.get("head_dim") or values["hidden_size"] // values["num_heads"])
    return ModelShape(**values, head_dim=head_dim, is_tied=bool(fields.get("tie_word_embeddings", False)))
