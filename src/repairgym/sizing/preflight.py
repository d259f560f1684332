"""Preflight of a training command: what it asks of its model and machines, before anything is loaded.

Reads a configuration and ``config.json``; makes lines for each stage, or the `ConfigError` that would otherwise come
after minutes. Guarantees: no weights are read; `positions.check_demand` is the only rule for contexts and GPUs, and
`host_memory.check_host` for the machine's memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from repairgym.config.learning import AlgorithmConfig, LoraConfig, SftConfig, StepDpoConfig
from repairgym.config.recipes import (
    DistillThenGrpoConfig,
    RftCommandConfig,
    RlCommandConfig,
    SftCommandConfig,
    StepDpoCommandConfig,
    TwoStageConfig,
)
from repairgym.config.rollout import RolloutConfig
from repairgym.config.rounds import AgentQConfig, DaggerConfig, HintsConfig, MaltConfig
from repairgym.errors import ModelFolderError
from repairgym.sizing.attention import limited_attention
from repairgym.sizing.host_memory import check_host
from repairgym.sizing.positions import Demand, Engine, Positions, check_demand, read_config, read_positions
from repairgym.sizing.sampling_memory import embedded_bytes, engines_bytes, vllm_bytes
from repairgym.sizing.shapes import ModelShape, read_shape
from repairgym.sizing.step_memory import Share, step_parts
from repairgym.sizing.workers import size_workers, this_host

TrainCommandConfig = (
    SftCommandConfig
    | RftCommandConfig
    | StepDpoCommandConfig
    | RlCommandConfig
    | DaggerConfig
    | HintsConfig
    | AgentQConfig
    | MaltConfig
    | DistillThenGrpoConfig
    | TwoStageConfig
)
Learned = SftConfig | AlgorithmConfig | StepDpoConfig


@dataclass(frozen=True)
class Room:
    """Memory of the machine that a training runs on, or of the one where a dry run is."""

    gpu_bytes: float | None = None
    """Free on the GPU of one process; None: there is none."""
    host_bytes: float | None = None
    """Of the machine; None: not known, so nothing is said of it."""
    num_local: int = 1
    """Processes of the training on the machine."""
    is_here: bool = True
    """False in a dry run: the training may be for another machine, so its memory is named only."""
    cpu_bf16: str = ""
    """Support of bfloat16 by the processor (`workers.cpu_bf16`); empty: not known."""


@dataclass(frozen=True)
class Stage:
    """Episodes that are learned, and sampled before."""

    context_tokens: int | None
    """None: stored episodes whose length is not known; they end at the positions."""
    learned: Learned
    sampler: Engine | None
    """Engine of the model itself; None: another model samples, which is not known here."""
    yarn_factor: float = 1.0
    """Stretch that the recipe makes first."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """Of the sampler."""
    num_engines: int = 0
    """Embedded engines on the machine of the training."""


def stages_of(config: TrainCommandConfig, *, is_sampling: bool = True, stored_tokens: int | None = None) -> list[Stage]:
    """Return the stages of a recipe in their order; RFT may learn from a stored run without sampling.

    ``stored_tokens`` has the longest sample of a stored run; None: it is not known.
    """
    if isinstance(config, SftCommandConfig):
        return [Stage(stored_tokens, config.sft, None)]
    if isinstance(config, StepDpoCommandConfig):
        return [Stage(stored_tokens, config.step_dpo, None)]
    if isinstance(config, DaggerConfig | HintsConfig):
        return [_stage(config.rollout, config.sft, "embedded")]
    if isinstance(config, AgentQConfig):
        return [_stage(config.rollout, config.step_dpo, "embedded")]
    if isinstance(config, MaltConfig):
        return [_stage(config.rollout, config.sft, "embedded"), _stage(config.rollout, config.step_dpo, None)]
    if isinstance(config, RftCommandConfig):
        if not is_sampling:
            return [Stage(stored_tokens or config.rollout.pipeline.max_len_tokens, config.rft, None)]
        return [_stage(config.rollout, config.rft, None if config.sampler == "openai" else config.sampler)]
    if isinstance(config, TwoStageConfig):
        parts = (config.stage_1, config.stage_2)
        return [_stage(part.rollout, part.rl.algorithm, part.rl.sampler.type, part.yarn_factor) for part in parts]
    if isinstance(config, RlCommandConfig):
        return [_stage(config.rollout, config.rl.algorithm, config.rl.sampler.type, has_cluster=config.cluster.is_used)]
    taught = config.collect_rollout or config.rollout
    rl = _stage(config.rollout, config.rl.algorithm, config.rl.sampler.type)
    return [_stage(taught, config.sft, None), rl]


def _stage(
    rollout: RolloutConfig,
    learned: Learned,
    sampler: Engine | None,
    yarn_factor: float = 1.0,
    *,
    has_cluster: bool = False,
) -> Stage:
    is_here = sampler == "embedded" and not has_cluster
    num_engines = size_workers(rollout, [this_host()]).num_workers if is_here else 0
    return Stage(rollout.pipeline.max_len_tokens, learned, sampler, yarn_factor, rollout, num_engines)


def preflight(model: Path, stages: list[Stage], num_processes: int, room: Room | None = None) -> Iterator[str]:
    """Yield what each stage asks for; `ConfigError` at the first that cannot be met.

    Without a GPU in ``room`` (None: nothing is known) its memory is only named. So is that of vLLM, which is on GPUs of
    its server.
    """
    shape, room = dense_shape(model), room or Room()
    for stage in stages:
        positions = read_positions(model, stage.yarn_factor)
        context = stage.context_tokens
        if context is None:
            context = min(stage.learned.compute.micro_batch_tokens, positions.accepted_by("learner"))
        if stage.sampler:
            yield from sampler_lines(positions, shape, stage.sampler, stage.rollout, context)
        demand = _learner_demand(shape, context, stage.learned, num_processes, room.gpu_bytes)
        yield check_demand(positions, demand)
        if shape and (parts := _host_parts(shape, stage, context, demand, room)) and room.host_bytes is not None:
            yield check_host(str(model), parts, room.host_bytes, is_here=room.is_here)
        if stage.learned.compute.is_bf16 and room.gpu_bytes is None and room.cpu_bf16 == "emulated":
            yield "compute.is_bf16=true, and this processor has no bfloat16: float32 is about ten times faster here"


def sampler_lines(
    positions: Positions, shape: ModelShape | None, sampler: Engine, rollout: RolloutConfig, context_tokens: int
) -> Iterator[str]:
    """Yield what an engine that samples episodes of ``rollout`` asks for; `ConfigError` where it does not take them."""
    if sampler == "embedded":
        rollout.engine.require_room(context_tokens)
    elif idle := rollout.describe_idle_engine(sampler):
        yield idle
    held = None
    if shape is not None:
        held = vllm_bytes(shape, context_tokens, 1) if sampler == "vllm" else embedded_bytes(shape, rollout.engine)
    yield check_demand(positions, Demand(sampler, context_tokens, int(sampler == "embedded"), step_bytes=held))


def _host_parts(shape: ModelShape, stage: Stage, context_tokens: int, demand: Demand, room: Room) -> dict[str, float]:
    """Return what is in the machine's memory at one time, by name: learners without a GPU, and engines."""
    engines = engines_bytes(shape, stage.rollout.engine, context_tokens, stage.num_engines)
    parts = {f"{stage.num_engines} engines": engines} if stage.num_engines else {}
    if room.gpu_bytes is None:
        return {f"{room.num_local} learners": room.num_local * (demand.step_bytes or 0.0)} | parts
    if stage.learned.compute.is_offloaded:
        state = step_parts(shape, _share(context_tokens, stage.learned, demand.num_gpus))
        held = sum(state[name] for name in ("weights and moments", "gradients"))
        return {"weights, gradients and moments": room.num_local * held} | parts
    # One process reads a whole model before it goes to the GPU; several read their slices.
    return ({"weights while loading": 4.0 * shape.num_parameters} if demand.num_gpus == 1 else {}) | parts


def dense_shape(model: Path) -> ModelShape | None:
    """Return the shape of a model; None for others than dense decoders with full attention: their memory is unknown."""
    try:
        shape = read_shape(str(model))
    except ModelFolderError:
        return None
    return None if limited_attention(read_config(model)) else shape


def _share(context_tokens: int, learned: Learned, num_processes: int) -> Share:
    compute, trained = learned.compute, learned.trained
    num_tokens = max(context_tokens, compute.micro_batch_tokens) / compute.context_parallel
    return Share(
        num_processes,
        num_tokens,
        min(compute.head_chunk_tokens, num_tokens),
        trained.rank if isinstance(trained, LoraConfig) else 0,
        is_bf16=compute.is_bf16,
        is_checkpointing=compute.is_checkpointing,
        has_reference=isinstance(learned, AlgorithmConfig) and learned.needs_reference,
    )


def _learner_demand(
    shape: ModelShape | None, context_tokens: int, learned: Learned, num_processes: int, gpu_bytes: float | None
) -> Demand:
    compute, share = learned.compute, _share(context_tokens, learned, num_processes)
    return Demand(
        "learner",
        context_tokens,
        num_processes,
        context_parallel=compute.context_parallel,
        step_bytes=None if shape is None else sum(step_parts(shape, share).values()),
        room_bytes=None if compute.is_offloaded else gpu_bytes,
    )
