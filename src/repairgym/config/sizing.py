"""What `repairgym plan` reckons with: a model, machines, episodes and a recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from repairgym.records import Record


class MachineConfig(Record):
    """The GPUs, and the cores that tools and tests run on."""

    gpu: Literal["a100", "h100", "h200", "b200"] = "h200"
    num_gpus: PositiveInt = 8
    """Paper A: one node of 8 H200."""
    gpus_per_node: PositiveInt = 8
    num_cores: PositiveInt = 256
    """For sandboxes, of all nodes together. Paper B: 32 cores beside each node's GPUs, sandboxes elsewhere."""
    num_sandboxes: PositiveInt = 512
    """Episodes in flight at one time."""
    is_colocated: bool = True
    """The same GPUs generate and train in turn; False: ``rollout_share`` of them generate, the others train."""
    rollout_share: float = Field(default=0.5, gt=0.0, lt=1.0)
    usd_per_gpu_hour: NonNegativeFloat = 0.0
    """0.0: no cost is told."""


class EpisodeConfig(Record):
    """Episodes on average; `repairgym plan --measure RUN` reads them off a run."""

    num_turns: PositiveFloat = 30.0
    """Paper B caps turns at 40 and 80 and gives no mean."""
    opening_tokens: PositiveFloat = 2_500.0
    action_tokens: PositiveFloat = 150.0
    """Sampled tokens per turn, thoughts included."""
    observation_tokens: PositiveFloat = 700.0
    tool_s: NonNegativeFloat = 1.0
    """Seconds of one core per turn."""
    grade_s: NonNegativeFloat = 20.0
    """Seconds of one core per episode."""
    spread: NonNegativeFloat = 0.5
    """Deviation of the logarithm of turns, tokens and seconds: how long the tail is."""


class EfficiencyConfig(Record):
    """Share of the hardware's peak that is reached: our choice, to be replaced by what a first run measures."""

    update_mfu: float = Field(default=0.35, gt=0.0, le=1.0)
    prefill_mfu: float = Field(default=0.45, gt=0.0, le=1.0)
    decode_bandwidth: float = Field(default=0.6, gt=0.0, le=1.0)
    memory: float = Field(default=0.9, gt=0.0, le=1.0)
    """Share of a GPU's memory that may be filled."""


class PlanCommandConfig(Record):
    """`repairgym plan`."""

    model: str = "Qwen3-32B"
    """A name that `repairgym plan --models` lists, or a model folder or ``config.json``."""
    context_tokens: PositiveInt = 131_072
    """Both papers' longest context."""
    update: Literal["full", "lora"] = "full"
    lora_rank: PositiveInt = 32
    head_chunk_tokens: PositiveInt = 8192
    """Positions whose vocabulary logits exist at one time."""
    num_groups: PositiveInt = 8
    """Groups per iteration (paper A: 8; paper B: 300)."""
    group_size: PositiveInt = 4
    """Paper A: 4; paper B: 10."""
    num_iterations: PositiveInt = 1000
    """Paper A: 1,000 steps."""
    seed: int = 0
    machine: MachineConfig = MachineConfig()
    episode: EpisodeConfig = EpisodeConfig()
    efficiency: EfficiencyConfig = EfficiencyConfig()
