"""Preflight of a training command: what it asks of its model and machines, before anything is loaded.

Reads a configuration and ``config.json``; makes one line per engine and stage, or the `ConfigError` that would
otherwise come after minutes. Guarantees: no weights are read; `positions.check_demand` is the only rule.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from repairgym.config.learning import AlgorithmConfig, LoraConfig, SftConfig
from repairgym.config.models import EngineConfig
from repairgym.config.recipes import (
    DistillThenGrpoConfig,
    RftCommandConfig,
    RlCommandConfig,
    RlConfig,
    SftCommandConfig,
    TwoStageConfig,
)
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ModelFolderError
from repairgym.sizing.positions import Demand, Engine, check_demand, read_positions
from repairgym.sizing.sampling_memory import embedded_bytes, vllm_bytes
from repairgym.sizing.shapes import ModelShape, read_shape
from repairgym.sizing.step_memory import Share, step_parts

TrainCommandConfig = SftCommandConfig | RftCommandConfig | RlCommandConfig | DistillThenGrpoConfig | TwoStageConfig


@dataclass(frozen=True)
class Stage:
    """Episodes that are learned, and sampled before."""

    context_tokens: int | None
    """None: stored episodes, as long as they are."""
    learned: SftConfig | AlgorithmConfig
    sampler: Engine | None
    """Engine of the model itself; None: another model samples, which is not known here."""
    yarn_factor: float = 1.0
    """Stretch that the recipe makes first."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Of an embedded sampler."""


def stages_of(config: TrainCommandConfig, *, is_sampling: bool = True) -> list[Stage]:
    """Return the stages of a recipe in their order; RFT may learn from a stored run without sampling."""
    if isinstance(config, SftCommandConfig):
        return [Stage(None, config.sft, None)]
    if isinstance(config, RftCommandConfig):
        sampler = None if config.sampler == "openai" or not is_sampling else config.sampler
        context = config.rollout.pipeline.max_len_tokens
        return [Stage(context, config.rft, sampler, engine=config.rollout.engine)]
    if isinstance(config, TwoStageConfig):
        return [_rl_stage(part.rollout, part.rl, part.yarn_factor) for part in (config.stage_1, config.stage_2)]
    rl = _rl_stage(config.rollout, config.rl)
    if isinstance(config, RlCommandConfig):
        return [rl]
    taught = config.collect_rollout or config.rollout
    return [Stage(taught.pipeline.max_len_tokens, config.sft, None), rl]


def _rl_stage(rollout: RolloutConfig, rl: RlConfig, yarn_factor: float = 1.0) -> Stage:
    return Stage(rollout.pipeline.max_len_tokens, rl.algorithm, rl.sampler.type, yarn_factor, rollout.engine)


def preflight(model: Path, stages: list[Stage], num_processes: int, room_bytes: float | None = None) -> Iterator[str]:
    """Yield what each stage asks for; `ConfigError` at the first that cannot be met.

    ``room_bytes`` is the memory of the GPU of one process; None: there is none, and memory is only named. So is that
    of samplers, which are elsewhere: embedded engines in host memory, vLLM on GPUs of its server.
    """
    shape = dense_shape(model)
    for stage in stages:
        positions = read_positions(model, stage.yarn_factor)
        context = stage.context_tokens
        if context is None:
            context = min(stage.learned.compute.micro_batch_tokens, positions.accepted_by("learner"))
        if stage.sampler:
            yield check_demand(positions, _sampler_demand(shape, context, stage.sampler, stage.engine))
        yield check_demand(positions, _learner_demand(shape, context, stage.learned, num_processes, room_bytes))


def dense_shape(model: Path) -> ModelShape | None:
    """Return the shape of a model; None for others than dense decoders, whose memory is not known."""
    try:
        return read_shape(str(model))
    except ModelFolderError:
        return None


def _sampler_demand(shape: ModelShape | None, context_tokens: int, sampler: Engine, engine: EngineConfig) -> Demand:
    if shape is None:
        return Demand(sampler, context_tokens)
    held = vllm_bytes(shape, context_tokens, 1) if sampler == "vllm" else embedded_bytes(shape, engine)
    return Demand(sampler, context_tokens, step_bytes=held)


def _learner_demand(
    shape: ModelShape | None,
    context_tokens: int,
    learned: SftConfig | AlgorithmConfig,
    num_processes: int,
    room_bytes: float | None,
) -> Demand:
    compute, trained = learned.compute, learned.trained
    num_tokens = max(context_tokens, compute.micro_batch_tokens) / compute.context_parallel
    share = Share(
        num_processes,
        num_tokens,
        min(compute.head_chunk_tokens, num_tokens),
        trained.rank if isinstance(trained, LoraConfig) else 0,
        is_bf16=compute.is_bf16,
        is_checkpointing=compute.is_checkpointing,
    )
    return Demand(
        "learner",
        context_tokens,
        num_processes,
        context_parallel=compute.context_parallel,
        step_bytes=None if shape is None else sum(step_parts(shape, share).values()),
        room_bytes=None if compute.is_offloaded else room_bytes,
    )
