"""Memory of one GPU during training and generation, from first principles.

Reads a shape, a GPU and a `PlanCommandConfig`; makes named bytes. The smallest split (a power of two) of a context, or
of weights during generation, that fits is chosen.

Training is FSDP: float32 weights, gradients and Adam's two moments, sharded over all training GPUs; weights of two
layers at a time are gathered in 16 bits; activation checkpointing stores the input of each layer and recomputes one
layer at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from repairgym.config.cluster import PlanCommandConfig
from repairgym.errors import ConfigError
from repairgym.sizing.shapes import GIB, Gpu, ModelShape

_FULL_BYTES = 16
"""Per parameter: 4 for the weight, 4 for its gradient, 8 for Adam's moments."""
_NUM_GATHERED = 2
_WORKSPACE_BYTES = 3 * GIB
"""CUDA context, communication buffers, fragmentation."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on one GPU, by name, and how many GPUs share one context."""

    parts: dict[str, float]
    context_parallel: int

    @property
    def total_bytes(self) -> float:
        """All parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class GenerationMemory:
    """One replica of the model for generation."""

    tensor_parallel: int
    """GPUs that share it."""
    weight_bytes: float
    """On one of its GPUs."""
    num_kv_tokens: int
    """Capacity of the KV cache on all its GPUs together, tokens."""


def training_memory(shape: ModelShape, gpu: Gpu, config: PlanCommandConfig, num_gpus: int) -> TrainingMemory:
    """Find the smallest split of the context that fits ``num_gpus`` GPUs.

    Raises:
        ConfigError: none fits; the message says what would.
    """
    room = gpu.memory_bytes * config.efficiency.memory
    for parallel in _powers(num_gpus):
        memory = TrainingMemory(_training_parts(shape, config, num_gpus, parallel), parallel)
        if memory.total_bytes <= room:
            return memory
    raise ConfigError(
        f"training needs {memory.total_bytes / GIB:.0f} GiB on each of {num_gpus} GPUs; {room / GIB:.0f} are usable: "
        "raise machine.num_gpus, lower context_tokens, or set update='lora'"
    )


def _training_parts(shape: ModelShape, config: PlanCommandConfig, num_gpus: int, parallel: int) -> dict[str, float]:
    num_tokens = config.context_tokens / parallel
    width = 2 * shape.hidden_size + (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    width += 3 * shape.intermediate_size
    chunk = min(config.head_chunk_tokens, num_tokens)
    if config.update == "lora":
        trained = _lora_parameters(shape, config.lora_rank)
        states = {"frozen weights": 2.0 * shape.num_parameters / num_gpus, "adapters": _FULL_BYTES * trained / num_gpus}
    else:
        states = {"weights, gradients, moments": _FULL_BYTES * shape.num_parameters / num_gpus}
    return {
        **states,
        "gathered layers": 2.0 * (_NUM_GATHERED * shape.layer_parameters + shape.head_parameters),
        "inputs of layers": 2.0 * num_tokens * shape.hidden_size * shape.num_layers,
        # Values and gradients of the recomputed layer.
        "one layer": 2.0 * 2.0 * num_tokens * width,
        "logits": 2.0 * 4.0 * chunk * shape.vocab_size,
        "workspace": float(_WORKSPACE_BYTES),
    }


def _lora_parameters(shape: ModelShape, rank: int) -> float:
    """Parameters of adapters on all seven matrices of each layer."""
    inner = shape.head_dim * shape.num_heads, shape.head_dim * shape.num_kv_heads
    sides = [shape.hidden_size + inner[0]] * 2 + [shape.hidden_size + inner[1]] * 2
    sides += [shape.hidden_size + shape.intermediate_size] * 3
    return float(shape.num_layers * rank * sum(sides))


def generation_memory(shape: ModelShape, gpu: Gpu, config: PlanCommandConfig, num_gpus: int) -> GenerationMemory:
    """Find the smallest split of the weights that leaves room for one whole context.

    Raises:
        ConfigError: none does.
    """
    room = gpu.memory_bytes * config.efficiency.memory - _WORKSPACE_BYTES
    for parallel in _powers(min(num_gpus, config.machine.gpus_per_node)):
        weight_bytes = 2.0 * shape.num_parameters / parallel
        num_tokens = int(max(0.0, room - weight_bytes) * parallel / shape.kv_bytes_per_token)
        if num_tokens >= config.context_tokens:
            return GenerationMemory(parallel, weight_bytes, num_tokens)
    raise ConfigError(
        f"no context of {config.context_tokens} tokens fits next to the weights on {parallel} GPUs of one node: "
        "lower context_tokens or take GPUs with more memory"
    )


def _powers(limit: int) -> Iterator[int]:
    number = 1
    while number <= limit:
        yield number
        number *= 2
