"""Estimate of memory, duration and bottleneck of an RL iteration on given machines.

Reads a `PlanCommandConfig`; makes an `Estimate`. Operations and bytes follow from the model's shape; time follows from
them, the hardware's peak and the configured efficiencies. Rollouts are simulated (`simulation`).
"""

from dataclasses import dataclass

from repairgym.config.cluster import PlanCommandConfig
from repairgym.errors import ConfigError
from repairgym.sizing.memory import GenerationMemory, TrainingMemory, generation_memory, training_memory
from repairgym.sizing.shapes import GPUS, Gpu, ModelShape, read_shape
from repairgym.sizing.simulation import Rollouts, Simulation, Site, draw_episodes

_FORWARDS = 4.0
"""Cost of an update in forward passes: one, two for the backward pass, one repeated by activation checkpointing."""
_TRANSFER_BYTES = 25e9
"""New weights per second into each replica: one 200 Gbit/s link."""


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
    """Estimate one iteration.

    Raises:
        ModelFolderError: the model is unknown.
        ConfigError: it does not fit, or an episode is longer than the context.
    """
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
    """Mean final length of an episode.

    Raises:
        ConfigError: it exceeds the context.
    """
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
