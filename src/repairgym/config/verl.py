"""Machines and engines of RL under verl: what `bridges/verl/training.py` reads beside a recipe's own TOML.

What is learned is no part of it: that is the recipe's (`RlConfig`, `RolloutConfig`). Imports no torch and no verl.
"Paper A" is arXiv 2510.22075, "paper B" is arXiv 2508.03501. Defaults without a source are our choice.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from repairgym.records import Record

VerlRecipe = Literal["rl", "distil_then_grpo", "dapo_two_stage"]
"""Which command's TOML says what is learned: `repairgym train rl`, `distil_then_grpo`, `dapo_two_stage`."""


class VerlConfig(Record):
    """Where verl runs, and with which engine."""

    num_nodes: PositiveInt = 1
    """Paper A: one node."""
    gpus_per_node: PositiveInt = 8
    """Both papers: 8 H200 per node. On a CPU: the learner's processes."""
    device: Literal["cuda", "cpu"] = "cuda"
    """``cpu``: everything that a GPU run does but vLLM, on this machine (tests, a look at how it works)."""
    engine: Literal["vllm", "embedded"] = "vllm"
    """Who generates: vLLM on the learner's GPUs, or the embedded engine, one beside each process of the learner."""
    rollout_tensor_parallel: PositiveInt = 4
    """GPUs that one vLLM shares a model between; the embedded engine has 1."""
    sequence_parallel: PositiveInt = 8
    """GPUs that one sequence is cut between in training (Ulysses); 131,072 tokens do not fit one."""
    is_offloaded: bool = True
    """Weights and optimiser of the learner lie in host memory while vLLM generates."""
    gpu_memory_share: float = Field(default=0.6, gt=0.0, lt=1.0)
    """Of each GPU, for vLLM's weights and cache."""
    batch_rounding: Literal["refuse", "nearest"] = "refuse"
    """verl counts optimiser batches in whole groups: what becomes of a `batch_size` that is no multiple of `group_size`
    (paper B: 128 trajectories in groups of 10)."""
    save_every: PositiveInt = 10
    """Iterations between checkpoints of weights and optimiser."""
    num_checkpoints_kept: PositiveInt = 2
    ray_address: str = ""
    """A running Ray cluster; empty: one is started on this machine for the run."""
    num_cpus: NonNegativeInt = 0
    """That a Ray started here believes in; 0: those of the machine. Each process of the learner takes three."""

    @model_validator(mode="after")
    def _nothing_is_set_in_vain(self) -> Self:
        if self.ray_address and self.num_cpus:
            raise ValueError(
                f"num_cpus={self.num_cpus} is for a Ray that is started here, but ray_address={self.ray_address!r} "
                "names one that runs; leave one of them out"
            )
        if self.engine == "embedded" and self.gpu_memory_share != type(self).model_fields["gpu_memory_share"].default:
            raise ValueError("gpu_memory_share is vLLM's; leave it out with engine='embedded'")
        return self

    @model_validator(mode="after")
    def _engine_fits(self) -> Self:
        if self.device == "cpu" and self.engine == "vllm":
            raise ValueError("device='cpu' has no vLLM under verl; set engine='embedded'")
        if self.device == "cpu" and self.sequence_parallel != 1:
            raise ValueError(
                f"device='cpu' with sequence_parallel={self.sequence_parallel}: verl cuts sequences with flash "
                "attention only; set sequence_parallel=1"
            )
        if self.engine == "embedded" and self.rollout_tensor_parallel != 1:
            raise ValueError(
                f"engine='embedded' with rollout_tensor_parallel={self.rollout_tensor_parallel}: it computes in one "
                "process; set rollout_tensor_parallel=1"
            )
        num_gpus = self.num_nodes * self.gpus_per_node
        for name in ("rollout_tensor_parallel", "sequence_parallel"):
            if num_gpus % getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)} does not divide num_nodes x gpus_per_node = {num_gpus}")
        return self
