"""Layers that see less than the whole context, by the fields of a ``config.json``.

Our learner and embedded engine compute full causal attention only: such a model's log-probabilities would be others
there, without any error. vLLM, and transformers' own attention under verl, compute windows.
"""

from collections.abc import Mapping
from typing import Any

_FULL = "full_attention"
_DEFAULT_WINDOWS = {"mistral": 4096}
"""Type -> window that transformers assumes where ``config.json`` names none."""
_OFF_BY_DEFAULT = "qwen"
"""Beginning of types whose window counts only with ``use_sliding_window=true``."""


def limited_attention(config: Mapping[str, Any]) -> str:
    """Return the fields by which layers see less than the whole context; empty where all see everything."""
    fields = config.get("text_config") or config
    kinds = set(fields.get("layer_types") or ())
    if kinds:
        return f"layer_types of {', '.join(sorted(kinds - {_FULL}))}" if kinds != {_FULL} else ""
    family, is_used = str(fields.get("model_type")), fields.get("use_sliding_window")
    window = fields.get("sliding_window", _DEFAULT_WINDOWS.get(family))
    if is_used is False or (is_used is None and family.startswith(_OFF_BY_DEFAULT)):
        window = None
    # As many first layers are full; only types with `use_sliding_window` have the field.
    num_layers, num_full = fields.get("num_hidden_layers"), fields.get("max_window_layers") if is_used else None
    if num_layers is not None and num_full is not None and num_full >= num_layers:
        window = None
    sizes = {"sliding_window": window, "attention_chunk_size": fields.get("attention_chunk_size")}
    longest = fields.get("max_position_embeddings")
    named = [f"{name}={size}" for name, size in sizes.items() if size and not (longest and size >= longest)]
    return ", ".join(named)
