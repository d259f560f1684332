"""Preflight of a training command: what it asks of its model and machines, before anything is loaded.

Reads a configuration and ``config.json``; makes one line per engine and stage, or the `ConfigError` that would
otherwise come after minutes. Guarantees: no weights are read; `positions.check_demand` is the only rule.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from repairgym.config.learning import AlgorithmConfig, LoraConfig, SftConfig
from repairgym.config.recipes import (
    DistillThenGrpoConfig,
    RftCommandConfig,
    RlCommandConfig,
    SftCommandConfig,
    TwoStageConfig,
)
from repairgym.errors import ModelFolderError
from repairgym.sizing.positions import Demand, Engine, check_demand, read_positions
from repairgym.sizing.shapes import read_shape
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


def stages_of(config: TrainCommandConfig) -> list[Stage]:
    """Return the stages of a recipe in their order."""
    if isinstance(config, SftCommandConfig):
        return [Stage(None, config.sft, None)]
    if isinstance(config, RftCommandConfig):
        sampler = None if config.sampler == "openai" else config.sampler
        return [Stage(config.rollout.pipeline.max_len_tokens, config.rft, sampler)]
    if isinstance(config, TwoStageConfig):
        return [
            Stage(part.rollout.pipeline.max_len_tokens, part.rl.algorithm, part.rl.sampler.type, part.yarn_factor)
            for part in (config.stage_1, config.stage_2)
        ]
    rl = Stage(config.rollout.pipeline.max_len_tokens, config.rl.algorithm, config.rl.sampler.type)
    if isinstance(config, RlCommandConfig):
        return [rl]
    taught = config.collect_rollout or config.rollout
    return [Stage(taught.pipeline.max_len_tokens, config.sft, None), rl]


def preflight(model: Path, stages: list[Stage], num_processes: int, room_bytes: float | None = None) -> Iterator[str]:
    """Yield what each stage asks for; `ConfigError` at the first that cannot be met.

    ``room_bytes`` is the memory of the GPU of one process; None: there is none, and memory is only named.
    """
    for stage in stages:
        positions = read_positions(model, stage.yarn_factor)
        context = stage.context_tokens
        if context is None:
            context = min(stage.learned.compute.micro_batch_tokens, positions.accepted_by("learner"))
        if stage.sampler:
            yield check_demand(positions, Demand(stage.sampler, context))
        yield check_demand(positions, _learner_demand(model, context, stage.learned, num_processes, room_bytes))


def _learner_demand(
    model: Path, context_tokens: int, learned: SftConfig | AlgorithmConfig, num_processes: int, room_bytes: float | None
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
    try:
        step_bytes = sum(step_parts(read_shape(str(model)), share).values())
    except ModelFolderError:
        step_bytes = None  # no dense decoder: it can be trained, its memory is not known
    return Demand(
        "learner",
        context_tokens,
        num_processes,
        context_parallel=compute.context_parallel,
        step_bytes=step_bytes,
        room_bytes=None if compute.is_offloaded else room_bytes,
    )
