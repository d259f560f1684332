"""Which cluster episodes run on, and what a worker asks of it.

Reads nothing, makes :class:`ClusterConfig`. Invariants: without an address nothing of a cluster is set; what a cluster
cannot honour is refused here, before anything starts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

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
