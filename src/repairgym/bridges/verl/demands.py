"""Demands of a stage on the GPUs under verl, from the model's shape alone: training, and sampling between updates.

Reads a stage and its machine; makes `Demand`s. verl's FSDP2 holds what our own learner does (`step_memory`): shards of
float32 weights, gradients and moments, gathered layers, activations. Two parts differ. verl 0.9.1
(``FSDPEngineWithLMHead.prepare_model_outputs``) computes the logits of a whole micro-batch at once, in the type of its
autocast, and keeps them next to their gradient, because we let it compute the entropy. It gathers embeddings and head
in 16 bits, too; they are counted in 32, so the estimate is that much above. It was not measured on a GPU.
"""

from collections.abc import Iterator

from repairgym.bridges.verl.config_files import Stage
from repairgym.config.algorithms import KlConfig
from repairgym.config.cluster import VerlConfig
from repairgym.config.learning import AlgorithmConfig, FullConfig, LoraConfig, SftConfig
from repairgym.sizing.positions import Demand
from repairgym.sizing.sampling_memory import embedded_bytes, engines_bytes, vllm_bytes
from repairgym.sizing.shapes import ModelShape
from repairgym.sizing.step_memory import Share, step_parts


def stage_demands(
    shape: ModelShape | None, stage: Stage, machine: VerlConfig, room_bytes: float | None
) -> Iterator[Demand]:
    """Yield what training asks for and what sampling does; ``room_bytes`` is the memory of a GPU, if it is known.

    vLLM has `VerlConfig.gpu_memory_share` of it, less where the weights and moments of training stay
    (``is_offloaded=false``). It gives its own back for the updates (verl's ``free_cache_engine``).
    """
    num_gpus = machine.num_nodes * machine.gpus_per_node
    context, parallel = stage.rollout.pipeline.max_len_tokens, machine.rollout_tensor_parallel
    parts = None if shape is None else step_parts(shape, _share(shape, stage.rl.algorithm, context, machine))
    room = room_bytes if machine.device == "cuda" else None
    step_bytes = sum(parts.values()) if parts else None
    yield Demand("verl", context, num_gpus, machine.sequence_parallel, parallel, step_bytes, room)
    if machine.engine == "embedded":
        held = None if shape is None else embedded_bytes(shape, stage.rollout.engine)
        yield Demand("embedded", context, num_gpus, step_bytes=held)
        return
    resident = 0.0 if machine.is_offloaded or not parts else parts["weights and moments"]
    free = None if room is None else min(room * machine.gpu_memory_share, room - resident)
    held = None if shape is None else vllm_bytes(shape, context, parallel)
    yield Demand("vllm", context, num_gpus, tensor_parallel=parallel, step_bytes=held, room_bytes=free)


def host_parts(shape: ModelShape, stage: Stage, machine: VerlConfig) -> dict[str, float]:
    """Return what is in the memory of one machine at least, by name: learners without GPUs and engines, or offloads."""
    context, num = stage.rollout.pipeline.max_len_tokens, machine.gpus_per_node
    parts = step_parts(shape, _share(shape, stage.rl.algorithm, context, machine))
    held: dict[str, float] = {}
    if machine.engine == "embedded":
        held[f"{num} engines"] = engines_bytes(shape, stage.rollout.engine, context, num)
    if machine.device == "cpu":
        held[f"{num} learners"] = num * sum(parts.values())
    elif machine.is_offloaded:
        held["weights and moments"] = num * parts["weights and moments"]
    if isinstance(stage.rl.algorithm.kl, KlConfig) and isinstance(stage.rl.algorithm.trained, FullConfig):
        # verl keeps it here in 16 bits; with adapters it is the policy without them.
        held["reference"] = 2.0 * shape.num_parameters / machine.num_nodes
    return held


def supervised_demand(
    shape: ModelShape | None, config: SftConfig, context_tokens: int, machine: VerlConfig, room_bytes: float | None
) -> Demand:
    """Return what verl's SFT trainer asks for on samples of up to ``context_tokens``."""
    share = None if shape is None else _share(shape, config, context_tokens, machine)
    held = None if shape is None or share is None else sum(step_parts(shape, share).values())
    num_gpus = machine.num_nodes * machine.gpus_per_node
    return Demand("verl", context_tokens, num_gpus, machine.sequence_parallel, 1, held, room_bytes)


def _share(shape: ModelShape, learned: AlgorithmConfig | SftConfig, context_tokens: int, machine: VerlConfig) -> Share:
    compute, trained = learned.compute, learned.trained
    num_tokens = max(context_tokens, compute.micro_batch_tokens) / machine.sequence_parallel
    return Share(
        machine.num_nodes * machine.gpus_per_node,
        num_tokens,
        num_tokens,
        trained.rank if isinstance(trained, LoraConfig) else 0,
        logit_bytes=2.0 * (2 if compute.is_bf16 else 4) * shape.vocab_size,
        is_bf16=compute.is_bf16,
        is_checkpointing=compute.is_checkpointing,
    )
