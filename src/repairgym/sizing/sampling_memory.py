"""Bytes that sampling holds at least: weights, and keys and values, from the model's shape alone."""

from repairgym.config.models import EngineConfig
from repairgym.sizing.shapes import ModelShape


def vllm_bytes(shape: ModelShape, context_tokens: int, tensor_parallel: int) -> float:
    """Return the bytes of one GPU of a vLLM whose cache holds one whole context; it does not start with less.

    That is its own check (``check_enough_kv_cache_memory``). 16-bit weights are divided over the GPUs, so are the
    key-value heads as far as there are heads; its workspace and captured graphs are left out.
    """
    weight_bytes = 2.0 * shape.num_parameters / tensor_parallel
    return weight_bytes + shape.kv_bytes_per_token * context_tokens / min(tensor_parallel, shape.num_kv_heads)


def embedded_bytes(shape: ModelShape, engine: EngineConfig) -> float:
    """Return the bytes of the host memory of one embedded engine: float32 weights and the cache of all its slots."""
    num_cached = engine.num_slots * (engine.max_len_tokens + 1)
    return 4.0 * shape.num_parameters + 2.0 * shape.kv_bytes_per_token * num_cached


def engines_bytes(shape: ModelShape, engine: EngineConfig, context_tokens: int, num_engines: int) -> float:
    """Return what ``num_engines`` engines of one machine cannot do without: weights, and one context in the cache.

    A cache is taken whole when an engine starts, so one of them must fit, too; its pages are used as slots fill.
    """
    least = 4.0 * shape.num_parameters + 2.0 * shape.kv_bytes_per_token * (context_tokens + 1)
    return max(num_engines * least, embedded_bytes(shape, engine)) if num_engines else 0.0
