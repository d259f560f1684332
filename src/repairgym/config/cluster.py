"""Which cluster episodes run on, and what a worker asks of it.

Reads nothing, makes :class:`ClusterConfig`. Invariants: without an address nothing of a cluster is set; what a cluster
cannot honour is refused here, before anything starts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.records import Record

LOCAL = "local"
_ADDRESS = re.compile(r"local|auto|(ray://)?[^\s:/]+:\d{1,5}")
_OF_LOCAL = ("object_store_bytes", "temp_folder")


class ClusterConfig(Record):
    """Where rollout workers run; without an address they are processes of this machine."""

    address: str = ""
    """``ray://HOST:10001`` (from outside), ``HOST:6379`` or ``auto`` (on one of its nodes): a Ray cluster that runs;
    ``local``: Ray on this machine, for this command; empty: no Ray."""
    sandbox_resource: str = Field(default="repairgym_sandbox", min_length=1)
    """Ray resource: how many sandboxes a node may hold. A worker takes `rollout.max_sandboxes` of it."""
    num_cpus: float = Field(default=1.0, gt=0.0)
    """CPUs that Ray sets aside for one worker and its sandboxes: a share of one, or whole ones."""
    is_autoscaling: bool = False
    """Workers that have no room yet wait for nodes to come; otherwise too small a cluster is refused."""
    start_timeout_s: PositiveFloat = 300.0
    """How long a run waits without any worker, and a node may take to answer. Autoscaling wants more."""
    max_lost_workers: PositiveInt = 100
    """Workers lost in one command that stop it with the reason; before that, each is replaced."""
    object_store_bytes: PositiveInt | None = None
    """Shared memory of Ray's object store (``local`` only); not set: Ray's choice."""
    temp_folder: str = ""
    """Where Ray keeps its sockets and logs (``local`` only; at most about 60 characters); empty: Ray's choice."""

    @property
    def is_used(self) -> bool:
        """True when episodes run on Ray."""
        return bool(self.address)

    @model_validator(mode="after")
    def _address_is_one(self) -> Self:
        if self.address and not _ADDRESS.fullmatch(self.address):
            raise ValueError(
                f"got cluster.address={self.address!r}, expected local, auto, HOST:6379 or ray://HOST:10001"
            )
        return self

    @model_validator(mode="after")
    def _ray_can_count_it(self) -> Self:
        if self.num_cpus > 1 and not self.num_cpus.is_integer():
            raise ValueError(f"got cluster.num_cpus={self.num_cpus}, expected at most 1 or a whole number: Ray's rule")
        return self

    @model_validator(mode="after")
    def _nothing_is_set_in_vain(self) -> Self:
        given = [name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default]
        if given and not self.address:
            raise ValueError(f"cluster.{given[0]} is set, but there is no cluster; set cluster.address, too")
        foreign = [name for name in given if name in _OF_LOCAL]
        if foreign and self.address != LOCAL:
            raise ValueError(
                f"cluster.{foreign[0]} is for cluster.address=local; a running cluster has its own (`ray start`)"
            )
        if self.is_autoscaling and self.address == LOCAL:
            raise ValueError(
                "cluster.is_autoscaling with cluster.address=local: leave it out, this machine does not grow"
            )
        return self

    def require_honoured(self, rollout: RolloutConfig) -> None:
        """Check that workers on a cluster can do what ``rollout`` asks for.

        Raises:
            ValueError: a sandbox that does not isolate is allowed, or a file or folder of this machine is named.
        """
        if not self.is_used:
            return
        require_isolating(rollout.sandbox)
        named = {} if self.address == LOCAL else _files_of_this_machine(rollout)
        for name, value in named.items():
            raise ValueError(
                f"rollout.{name}={value!r} is on this machine, and the nodes of a cluster do not have it; leave it "
                "out, or run without cluster.address"
            )


class ClusterCheckConfig(Record):
    """`repairgym cluster check`."""

    cluster: ClusterConfig = ClusterConfig()
    sandbox: SandboxConfig = SandboxConfig()
    probe_bytes: PositiveInt = 64 << 20
    """Size of the layer that is sent to each node."""
    max_clock_skew_s: PositiveFloat = 1.0
    """Difference to this machine's clock that is accepted, beyond what the way of the answer explains."""

    @model_validator(mode="after")
    def _nodes_isolate(self) -> Self:
        require_isolating(self.sandbox)
        return self


def require_isolating(sandbox: SandboxConfig) -> None:
    """Check that no node may fall back on the degraded back end: nobody would see on which nodes it did.

    Raises:
        ValueError: it is allowed, or asked for.
    """
    if sandbox.is_degraded_allowed or sandbox.backend == "degraded":
        raise ValueError(
            "sandbox.is_degraded_allowed (or sandbox.backend=degraded) on a cluster: each node must isolate; leave it "
            "out, and `repairgym cluster check` says how to fix the nodes that do not"
        )


def _files_of_this_machine(rollout: RolloutConfig) -> dict[str, str]:
    pipeline, judge = rollout.pipeline, rollout.grading.judge
    prompts = {name: getattr(pipeline, name) for name in ("system_prompt", "opening_prompt", "demonstration")}
    knowledge, starts = getattr(pipeline, "knowledge", None), getattr(pipeline, "starts", "")
    named = {
        **{f"pipeline.{name}": value for name, value in prompts.items() if Path(value).suffix},  # names have none
        "pipeline.knowledge.path": knowledge.path if knowledge else "",
        "pipeline.starts": starts,
        "grading.judge.model": judge.model if judge.is_enabled else "",
    }
    return {name: value for name, value in named.items() if value}


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
    """Who generates: vLLM on the learner's GPUs, or the embedded engine, one next to each process of the learner."""
    rollout_tensor_parallel: PositiveInt = 4
    """GPUs that one vLLM shares a model between; the embedded engine has 1."""
    sequence_parallel: PositiveInt = 8
    """GPUs that one sequence is cut between in training (Ulysses); 131,072 tokens do not fit one."""
    is_offloaded: bool = True
    """Weights and optimizer of the learner lie in host memory while vLLM generates."""
    gpu_memory_share: float = Field(default=0.6, gt=0.0, lt=1.0)
    """Of each GPU, for vLLM's weights and cache."""
    batch_rounding: Literal["refuse", "nearest"] = "refuse"
    """verl counts optimizer batches in whole groups: what becomes of a `batch_size` that is no multiple of `group_size`
    (paper B: 128 trajectories in groups of 10)."""
    save_every: PositiveInt = 10
    """Iterations between checkpoints of weights and optimizer."""
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


class MachineConfig(Record):
    """The GPUs, and the cores that tools and tests run on."""

    gpu: Literal["a100", "h100", "h200", "b200"] = "h200"
    num_gpus: PositiveInt = 8
    """Paper A: one node of 8 H200."""
    gpus_per_node: PositiveInt = 8
    num_cores: PositiveInt = 256
    """For sandboxes, of all nodes together. Paper B: 32 cores next to each node's GPUs, sandboxes elsewhere."""
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
