"""Estimate of memory, duration and bottleneck of an RL iteration on given machines.

Operations and bytes follow from the model's shape; time follows from them, the hardware's peak and the configured
efficiencies. Rollouts are simulated (`simulation`). The smallest split (a power of two) of a context, or of weights
during generation, that fits is chosen.

Training is FSDP: float32 weights, gradients and Adam's two moments, sharded over all training GPUs; weights of two
layers at a time are gathered in 16 bits; activation checkpointing stores the input of each layer and recomputes one
layer at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from repairgym.config.cluster import PlanCommandConfig
from repairgym.errors import ConfigError
from repairgym.sizing.shapes import GIB, GPUS, Gpu, ModelShape, read_shape
from repairgym.sizing.simulation import Rollouts, Simulation, Site, draw_episodes

_FORWARDS = 4.0
"""Cost of an update in forward passes: one, two for the backward pass, one repeated by activation checkpointing."""
_TRANSFER_BYTES = 25e9
"""New weights per second into each replica: one 200 Gbit/s link."""
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
    """Find the smallest split of the context that fits ``num_gpus`` GPUs; a `ConfigError` says what would fit."""
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
    """Find the smallest split of the weights that leaves room for one whole context; `ConfigError` if there is none."""
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


@dataclass(frozen=True)
class Estimate:
    """One iteration, and the whole run."""

    shape: ModelShape
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

    @property
    def iteration_s(self) -> float:
        """Rollouts, update and transfer in sequence (synchronous)."""
        return self.rollouts.duration_s + self.update_s + self.transfer_s


def estimate(config: PlanCommandConfig) -> Estimate:
    """Estimate one iteration; `ConfigError` where it does not fit, or an episode is longer than the context."""
    shape, gpu, machine = read_shape(config.model), GPUS[config.machine.gpu], config.machine
    num_generating = num_training = machine.num_gpus
    if not machine.is_colocated:
        num_generating = max(1, round(machine.num_gpus * machine.rollout_share))
        num_training = max(1, machine.num_gpus - num_generating)
    length = episode_tokens(config)
    training = training_memory(shape, gpu, config, num_training)
    generation = generation_memory(shape, gpu, config, num_generating)
    num_replicas = num_generating // generation.tensor_parallel
    max_sequences = max(1, int(generation.num_kv_tokens / length))
    num_episodes = config.num_groups * config.group_size

    def step_s(num_sequences: int) -> float:
        return decode_step_s(shape, gpu, config, generation.tensor_parallel, num_sequences)

    site = Site(num_replicas, max_sequences, step_s, machine.num_cores, machine.num_sandboxes)
    episodes = draw_episodes(config.episode, num_episodes, config.seed)
    flops = _FORWARDS * shape.forward_flops(num_episodes * length, length / 2.0)
    return Estimate(
        shape=shape,
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
    )


def episode_tokens(config: PlanCommandConfig) -> float:
    """Mean final length of an episode; `ConfigError` if it exceeds the context."""
    episode = config.episode
    length = episode.opening_tokens + episode.num_turns * (episode.action_tokens + episode.observation_tokens)
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
