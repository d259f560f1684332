"""Settings of the cluster that episodes run on, of verl and of the planner.

Invariant: a setting without effect, and one that a cluster cannot support, is rejected before anything starts.
"""

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.records import Record

LOCAL = "local"
_ADDRESS = re.compile(r"local|auto|(ray://)?[^\s:/]+:\d{1,5}")
_OF_LOCAL = ("object_store_bytes", "temp_folder")


class ClusterConfig(Record):
    """Placement of rollout workers; without an address they are processes on this machine."""

    address: str = ""
    """``ray://HOST:10001`` (from outside), ``HOST:6379`` or ``auto`` (on one of its nodes): a running Ray cluster;
    ``local``: Ray on this machine, for this command; empty: no Ray."""
    sandbox_resource: str = Field(default="repairgym_sandbox", min_length=1)
    """Ray resource that counts the sandboxes a node may hold. A worker takes `rollout.max_sandboxes` of it."""
    num_cpus: float = Field(default=1.0, gt=0.0)
    """CPUs that Ray reserves for one worker and its sandboxes: a fraction below 1, or a whole number."""
    is_autoscaling: bool = False
    """True: workers without room wait for new nodes. False: a cluster that is too small is an error."""
    start_timeout_s: PositiveFloat = 300.0
    """Longest wait for the first worker, and for the answer of a node. Autoscaling needs more."""
    max_lost_workers: PositiveInt = 100
    """Number of lost workers that stops a command with the reason; until then each is replaced."""
    object_store_bytes: PositiveInt | None = None
    """Shared memory of Ray's object store (``local`` only); not set: Ray's choice."""
    temp_folder: str = ""
    """Folder of Ray's sockets and logs (``local`` only; at most about 60 characters); empty: Ray's choice."""

    @property
    def is_used(self) -> bool:
        """True when episodes run on Ray."""
        return bool(self.address)

    @model_validator(mode="after")
    def _ray_understands_it(self) -> Self:
        if self.address and not _ADDRESS.fullmatch(self.address):
            raise ValueError(
                f"got cluster.address={self.address!r}, expected local, auto, HOST:6379 or ray://HOST:10001"
            )
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


def check_cluster(config: Any) -> Any:
    """Check that the section ``cluster`` of a configuration, where it is used, can run its section ``rollout``.

    A ValueError names a sandbox that need not isolate, or a file or folder that only this machine has.
    """
    if config.cluster.is_used:
        _check_isolation(config.rollout)
        named = {} if config.cluster.address == LOCAL else _files_of_this_machine(config.rollout)
        for name, value in named.items():
            raise ValueError(
                f"rollout.{name}={value!r} is on this machine, and the nodes of a cluster do not have it; leave it "
                "out, or run without cluster.address"
            )
    return config


def _check_isolation(config: Any) -> Any:
    """Check that no node may fall back to the degraded back end: the affected nodes would not be visible."""
    if config.sandbox.is_degraded_allowed or config.sandbox.backend == "degraded":
        raise ValueError(
            "sandbox.is_degraded_allowed (or sandbox.backend=degraded) on a cluster: each node must isolate; leave it "
            "out, and `repairgym cluster check` says how to fix the nodes that do not"
        )
    return config


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


class ClusterCheckConfig(Record):
    """`repairgym cluster check`."""

    cluster: ClusterConfig = ClusterConfig()
    sandbox: SandboxConfig = SandboxConfig()
    probe_bytes: PositiveInt = 64 << 20
    """Size of the layer that is sent to each node."""
    max_clock_skew_s: PositiveFloat = 1.0
    """Largest accepted difference to this machine's clock, not counting the round trip of the answer."""

    _nodes_isolate = model_validator(mode="after")(_check_isolation)


VerlRecipe = Literal["rl", "distill_then_grpo", "dapo_two_stage"]
"""Command whose TOML defines the training: `repairgym train rl`, `distill_then_grpo`, `dapo_two_stage`."""


class VerlConfig(Record):
    """Hardware and engine of verl."""

    num_nodes: PositiveInt = 1
    """Paper A: one node."""
    gpus_per_node: PositiveInt = 8
    """Both papers: 8 H200 per node. On a CPU: the learner's processes."""
    device: Literal["cuda", "cpu"] = "cuda"
    """``cpu``: all of a GPU run except vLLM, on this machine (for tests and a first look)."""
    engine: Literal["vllm", "embedded"] = "vllm"
    """Sampling engine: vLLM on the learner's GPUs, or one embedded engine per learner process."""
    rollout_tensor_parallel: PositiveInt = 4
    """GPUs over which one vLLM server splits the model; the embedded engine has 1."""
    sequence_parallel: PositiveInt = 8
    """GPUs over which training splits one sequence (Ulysses); 131,072 tokens do not fit on one."""
    is_offloaded: bool = True
    """Keep the learner's weights and optimizer in host memory while vLLM generates."""
    gpu_memory_share: float = Field(default=0.6, gt=0.0, lt=1.0)
    """Share of each GPU's memory for vLLM's weights and cache."""
    batch_rounding: Literal["error", "nearest"] = "error"
    """Treatment of a `batch_size` that is no multiple of `group_size` (paper B: 128 trajectories in groups of 10): an
    error, or the nearest multiple. verl counts optimizer batches in whole groups."""
    save_every: PositiveInt = 10
    """Iterations between checkpoints of weights and optimizer."""
    num_checkpoints_kept: PositiveInt = 2
    ray_address: str = ""
    """Address of a running Ray cluster; empty: start one on this machine for the run."""
    num_cpus: NonNegativeInt = 0
    """CPUs that a Ray started here may use; 0: all of the machine. Each learner process takes three."""

    @model_validator(mode="after")
    def _nothing_is_set_in_vain(self) -> Self:
        if self.ray_address and self.num_cpus:
            raise ValueError(
                f"num_cpus={self.num_cpus} is for a Ray started here, but ray_address={self.ray_address!r} "
                "names a running cluster; leave one of them out"
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
    """GPUs, and CPU cores for tools and tests."""

    gpu: Literal["a100", "h100", "h200", "b200"] = "h200"
    num_gpus: PositiveInt = 8
    """Paper A: one node of 8 H200."""
    gpus_per_node: PositiveInt = 8
    num_cores: PositiveInt = 256
    """CPU cores for sandboxes, over all nodes. Paper B: 32 cores next to each node's GPUs, sandboxes elsewhere."""
    num_sandboxes: PositiveInt = 512
    """Episodes in flight at one time."""
    is_colocated: bool = True
    """The same GPUs generate and train in turn; False: ``rollout_share`` of them generate, the others train."""
    rollout_share: float = Field(default=0.5, gt=0.0, lt=1.0)
    usd_per_gpu_hour: NonNegativeFloat = 0.0
    """Price of one GPU hour in US dollars; 0: no cost is shown."""


class EpisodeConfig(Record):
    """Average episode; `repairgym plan --measure RUN` reads the values from a run."""

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
    """Standard deviation of the logarithm of turns, tokens and seconds; larger means a longer tail."""


class EfficiencyConfig(Record):
    """Shares of the hardware's peak that are reached. Our choice; replace them by the measurements of a first run."""

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
    is_checkpointing: bool = True
    """Compute layers again in the backward pass (`compute.is_checkpointing` of a training)."""
    has_reference: bool = False
    """Keep the frozen weights of the start for a KL term (`rl.algorithm.kl.type`); paper B has none."""
    head_chunk_tokens: PositiveInt = 8192
    """Positions whose vocabulary logits are in memory at one time."""
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
