"""Estimate of memory, duration and bottleneck of an RL iteration on given machines.

All counts follow from the model's shape alone, for dense decoders with grouped-query attention and a gated MLP (Qwen,
Llama and similar); time follows from them, the hardware's peak and the configured efficiencies. Rollouts are simulated
(`simulation`). The smallest split of a context, or of weights during generation, that fits and that
the heads allow is chosen.

Training is that of `learning/`, sharded over all training GPUs (`step_memory`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from repairgym.config.cluster import PlanCommandConfig
from repairgym.errors import ConfigError
from repairgym.sizing.positions import (
    Demand,
    Positions,
    are_weights_divisible,
    check_demand,
    is_context_divisible,
    least_factor,
    read_positions,
)
from repairgym.sizing.sampling_memory import vllm_bytes
from repairgym.sizing.shapes import ModelShape, read_shape
from repairgym.sizing.simulation import Rollouts, Simulation, Site, draw_episodes
from repairgym.sizing.step_memory import Share, step_parts

GIB = 1 << 30
_FORWARDS = 3.0
"""Cost of an update in forward passes: one, and two for the backward pass; activation checkpointing repeats one."""
_TRANSFER_BYTES = 25e9
"""New weights per second into each replica: one 200 Gbit/s link."""
_MAX_NODES = 1024
"""Largest cluster that a remedy names."""
_WORKSPACE_BYTES = 3 * GIB
"""CUDA context, communication buffers, fragmentation."""
_POSITIONS = {
    "Qwen3": (40_960, 32_768, "default"),
    "Qwen2.5": (32_768, 32_768, "default"),
    "Llama-3.1": (131_072, 8192, "llama3"),
}
"""Family -> positions of ``config.json``, those that YaRN counts from, and the type of rotary positions."""


@dataclass(frozen=True)
class Gpu:
    """One accelerator."""

    name: str
    memory_bytes: float
    bf16_flops: float
    """Operations per second, matrix units, 16 bits."""
    bandwidth_bytes: float
    """Of its memory, per second."""


GPUS = {
    "a100": Gpu("A100 80 GB", 80e9, 312e12, 2.04e12),
    "h100": Gpu("H100 SXM", 80e9, 989e12, 3.35e12),
    "h200": Gpu("H200", 141e9, 989e12, 4.8e12),
    "b200": Gpu("B200", 180e9, 2250e12, 7.7e12),
}


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
    """Find the smallest split of the context that fits ``num_gpus`` GPUs; a `ConfigError` says what would fit."""
    room = gpu.memory_bytes * config.efficiency.memory
    memory = _training_split(shape, room, config, num_gpus)
    if memory.total_bytes <= room:
        return memory
    largest = max(memory.parts, key=memory.parts.__getitem__)
    raise ConfigError(
        f"{config.model}: training on {config.context_tokens:,} tokens needs {memory.total_bytes / GIB:.0f} GiB on "
        f"each of {num_gpus} GPUs, {room / GIB:.0f} are usable; the context is over {memory.context_parallel} of them, "
        f"as far as GPUs and heads divide, and the largest part is {largest} ({memory.parts[largest] / GIB:.0f} GiB): "
        f"{_remedy(shape, gpu, config, num_gpus)}"
    )


def _remedy(shape: ModelShape, gpu: Gpu, config: PlanCommandConfig, num_gpus: int) -> str:
    """Return the single changes of which each is enough for training."""

    def fits(num: int = num_gpus, other: Gpu = gpu, **changes: object) -> bool:
        room = other.memory_bytes * config.efficiency.memory
        return _training_split(shape, room, config.model_copy(update=changes), num).total_bytes <= room

    node = config.machine.gpus_per_node
    counts = (*(1 << power for power in range((node - 1).bit_length())), *range(node, _MAX_NODES * node, node))
    halves = (config.context_tokens >> halvings for halvings in range(1, config.context_tokens.bit_length()))
    contexts = (tokens for tokens in halves if tokens >= _mean_tokens(config))
    enough = next((num for num in counts if fits(num)), None)
    context = next((tokens for tokens in contexts if fits(context_tokens=tokens)), None)
    larger = next((name for name, other in GPUS.items() if fits(other=other)), None)
    remedies = {
        f"train on {enough} GPUs (machine.num_gpus)": enough,
        "set update='lora'": config.update == "full" and fits(update="lora"),
        "set is_checkpointing=true": not config.is_checkpointing and fits(is_checkpointing=True),
        f"lower context_tokens to {context:,}" if context else "": context,
        f"set machine.gpu={larger}": larger,
    }
    named = [remedy for remedy, is_enough in remedies.items() if is_enough]
    return ", or ".join(named) or "no single setting is enough: take more and larger GPUs"


def _training_split(shape: ModelShape, room: float, config: PlanCommandConfig, num_gpus: int) -> TrainingMemory:
    """Return what training holds with the smallest split of the context that fits; with the largest where none does."""
    heads = shape.num_heads, shape.num_kv_heads
    rank = config.lora_rank if config.update == "lora" else 0
    for parallel in (parts for parts in _divisors(num_gpus) if is_context_divisible(*heads, parts)):
        num_tokens = config.context_tokens / parallel
        num_logit_tokens = min(config.head_chunk_tokens, num_tokens)
        share = Share(
            num_gpus,
            num_tokens,
            num_logit_tokens,
            rank,
            is_checkpointing=config.is_checkpointing,
            has_reference=config.has_reference,
        )
        memory = TrainingMemory(step_parts(shape, share) | {"workspace": float(_WORKSPACE_BYTES)}, parallel)
        if memory.total_bytes <= room:
            break
    return memory


def generation_memory(shape: ModelShape, gpu: Gpu, config: PlanCommandConfig, num_gpus: int) -> GenerationMemory:
    """Find the smallest split of the weights that leaves room for one whole context; `ConfigError` if there is none."""
    room = gpu.memory_bytes * config.efficiency.memory - _WORKSPACE_BYTES
    # A replica is on GPUs of one node.
    of_node = math.gcd(num_gpus, config.machine.gpus_per_node)
    splits = [
        parts for parts in _divisors(of_node) if are_weights_divisible(shape.num_heads, shape.num_kv_heads, parts)
    ]
    for parallel in splits:
        weight_bytes = 2.0 * shape.num_parameters / parallel
        num_parts = min(parallel, shape.num_kv_heads)
        num_tokens = int(max(0.0, room - weight_bytes) * num_parts / shape.kv_bytes_per_token)
        if num_tokens >= config.context_tokens:
            return GenerationMemory(parallel, weight_bytes, num_tokens)
    context_bytes = config.context_tokens * shape.kv_bytes_per_token / num_parts
    raise ConfigError(
        f"{config.model}: generation needs {weight_bytes / GIB:.0f} GiB of weights and {context_bytes / GIB:.0f} GiB "
        f"for one context of {config.context_tokens:,} tokens on each of {parallel} GPUs, {room / GIB:.0f} are usable; "
        f"the weights are over {parallel} GPUs, as far as the {of_node} of a node and the heads divide: lower "
        "context_tokens, or take GPUs with more memory or, where heads allow it, nodes with more GPUs"
    )


def _divisors(number: int) -> Iterator[int]:
    return (part for part in range(1, number + 1) if number % part == 0)


@dataclass(frozen=True)
class Estimate:
    """One iteration, and the whole run."""

    shape: ModelShape
    yarn_factor: float
    """Stretch that the context needs first; 1: none."""
    num_training_gpus: int
    num_generating_gpus: int
    training: TrainingMemory
    generation: GenerationMemory
    num_replicas: int
    max_sequences: int
    """Of one replica, at the mean length of an episode."""
    episode_tokens: float
    """Mean length at the end."""
    rollouts: Rollouts
    update_s: float
    transfer_s: float
    num_episodes: int
    preflight: tuple[str, ...]
    """Lines on model, context, positions, GPUs and memory, of training and of generation."""

    @property
    def iteration_s(self) -> float:
        """Rollouts, update and transfer in sequence (synchronous)."""
        return self.rollouts.duration_s + self.update_s + self.transfer_s


def estimate(config: PlanCommandConfig) -> Estimate:
    """Estimate one iteration; `ConfigError` where it does not fit, or an episode is longer than the context."""
    shape, gpu, machine = read_shape(config.model), GPUS[config.machine.gpu], config.machine
    positions, yarn_factor = _stretched_positions(config, shape)
    num_generating = num_training = machine.num_gpus
    if not machine.is_colocated:
        num_generating = max(1, round(machine.num_gpus * machine.rollout_share))
        num_training = max(1, machine.num_gpus - num_generating)
    length = episode_tokens(config)
    context = config.context_tokens
    # Positions and attention rule out a context whatever the machines are.
    check_demand(positions, Demand("learner", context, num_training))
    check_demand(positions, Demand("vllm", context, num_generating))
    training = training_memory(shape, gpu, config, num_training)
    generation = generation_memory(shape, gpu, config, num_generating)
    parallel, step_bytes = training.context_parallel, training.total_bytes
    sampler_bytes = vllm_bytes(shape, context, generation.tensor_parallel)
    demands = (
        Demand("learner", context, num_training, context_parallel=parallel, step_bytes=step_bytes),
        Demand("vllm", context, num_generating, 1, generation.tensor_parallel, sampler_bytes),
    )
    num_replicas = num_generating // generation.tensor_parallel
    max_sequences = max(1, int(generation.num_kv_tokens / length))
    num_episodes = config.num_groups * config.group_size

    def step_s(num_sequences: int) -> float:
        return decode_step_s(shape, gpu, config, generation.tensor_parallel, num_sequences)

    site = Site(num_replicas, max_sequences, step_s, machine.num_cores, machine.num_sandboxes)
    episodes = draw_episodes(config.episode, num_episodes, config.seed)
    flops = (_FORWARDS + config.is_checkpointing) * shape.forward_flops(num_episodes * length, length / 2.0)
    return Estimate(
        shape=shape,
        yarn_factor=yarn_factor,
        num_training_gpus=num_training,
        num_generating_gpus=num_generating,
        training=training,
        generation=generation,
        num_replicas=num_replicas,
        max_sequences=max_sequences,
        episode_tokens=length,
        rollouts=Simulation(episodes, site).run(),
        update_s=flops / (num_training * gpu.bf16_flops * config.efficiency.update_mfu),
        transfer_s=2.0 * shape.num_parameters / _TRANSFER_BYTES,
        num_episodes=num_episodes,
        preflight=tuple(check_demand(positions, demand) for demand in demands),
    )


def _stretched_positions(config: PlanCommandConfig, shape: ModelShape) -> tuple[Positions, float]:
    """Positions of a model folder as they are, and of a known name as the least stretch makes them."""
    family = config.model.rpartition("/")[2].rpartition("-")[0]
    if family not in _POSITIONS or Path(config.model).exists():
        return read_positions(Path(config.model)), 1.0
    longest, original, rope_type = _POSITIONS[family]
    factor = 1.0
    if config.context_tokens > longest and rope_type == "default":
        rope_type, factor = "yarn", least_factor(config.context_tokens / original)
        longest = round(original * factor)
    return Positions(config.model, longest, original, rope_type, factor, shape.num_heads, shape.num_kv_heads), factor


def _mean_tokens(config: PlanCommandConfig) -> float:
    episode = config.episode
    return episode.opening_tokens + episode.num_turns * (episode.action_tokens + episode.observation_tokens)


def episode_tokens(config: PlanCommandConfig) -> float:
    """Mean final length of an episode; `ConfigError` if it exceeds the context."""
    length = _mean_tokens(config)
    if length > config.context_tokens:
        raise ConfigError(
            f"an episode has {length:.0f} tokens on average, context_tokens={config.context_tokens}: "
            "lower episode.num_turns or the tokens of a turn, or raise context_tokens"
        )
    return length


def decode_step_s(
    shape: ModelShape, gpu: Gpu, config: PlanCommandConfig, tensor_parallel: int, num_sequences: int
) -> float:
    """Seconds of one decoding step of ``num_sequences``, with its share of the prompts.

    Decoding reads all weights and every cached key and value once; a turn's observation is computed between its tokens
    (chunked prefill); prefixes are cached.
    """
    episode, efficiency = config.episode, config.efficiency
    context = episode_tokens(config) / 2.0
    num_bytes = 2.0 * shape.num_parameters + num_sequences * context * shape.kv_bytes_per_token
    memory_s = num_bytes / (tensor_parallel * gpu.bandwidth_bytes * efficiency.decode_bandwidth)
    speed = tensor_parallel * gpu.bf16_flops * efficiency.prefill_mfu
    compute_s = shape.forward_flops(num_sequences, context) / speed
    prompts = episode.observation_tokens + episode.opening_tokens / episode.num_turns
    prefill_s = shape.forward_flops(num_sequences * prompts / episode.action_tokens, context) / speed
    return max(memory_s, compute_s) + prefill_s
