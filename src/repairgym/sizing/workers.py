"""Workers and sandboxes for the machines: what ``auto`` means in a rollout's configuration.

Reads a `RolloutConfig` and the hosts of a run. Makes one in which every number is chosen. Guarantees: numbers that the
user gave stay; equal hosts give equal numbers; there is at least one worker with one sandbox, also where a host is too
small for it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from repairgym.config.rollout import RolloutConfig

WORKER_BYTES = 1 << 30
"""Memory of a worker: interpreter, torch and the warm interpreters of its sandboxes; a small engine fits in it."""
SANDBOXES_PER_CPU = 2
"""Paper B, appendix D: half a processor for each sandbox."""
CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Host:
    """One machine, as far as it can be used for rollouts."""

    num_cpus: float
    memory_bytes: int
    max_sandboxes: int | None = None
    """Sandboxes that it may hold in all; None: as many as fit."""


def this_host() -> Host:
    """Return the processors and the memory that this process may use: the machine's, bounded by a cgroup."""
    num_cpus, quota = len(os.sched_getaffinity(0)), cgroup_cores()
    total, bound = psutil.virtual_memory().total, cgroup_memory_bytes()
    return Host(num_cpus if quota is None else min(num_cpus, quota), total if bound is None else min(total, bound))


def cpu_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the bfloat16 support of the CPU: ``amx``, ``avx512``, ``arm`` or ``emulated``."""
    flags = cpuinfo.read_text().split() if cpuinfo.is_file() else []
    ways = {"amx_bf16": "amx", "avx512_bf16": "avx512", "bf16": "arm"}
    return next((way for flag, way in ways.items() if flag in flags), "emulated")


def size_workers(
    config: RolloutConfig, hosts: Sequence[Host], *, cpus_per_worker: float = 1.0, num_episodes: int | None = None
) -> RolloutConfig:
    """Return ``config`` with a number in the place of each ``auto``.

    Workers: one for each ``cpus_per_worker`` processors and `WORKER_BYTES` of every host, within its sandboxes, and not
    more than ``num_episodes`` at one time can use. Sandboxes of a worker: its share of its host's, where the host has
    `SANDBOXES_PER_CPU` for each processor and the memory that `sandbox.limits` lets each one take.
    """
    if config.num_workers and config.max_sandboxes:
        return config
    by_host = [_places(host, config, cpus_per_worker) for host in hosts]
    num_workers = config.num_workers or max(1, sum(by_host))
    if not config.num_workers and num_episodes:
        num_workers = min(num_workers, -(-num_episodes // config.max_in_flight))
    if config.num_workers:
        by_host = [-(-num_workers // len(hosts))] * len(hosts)
    shares = [_num_sandboxes(host, config) // (places or 1) for host, places in zip(hosts, by_host, strict=True)]
    shares = [share for share, places in zip(shares, by_host, strict=True) if places] or shares
    chosen = config.max_sandboxes or max(1, min(config.max_in_flight, *shares))
    return config.model_copy(update={"num_workers": num_workers, "max_sandboxes": chosen})


def _places(host: Host, config: RolloutConfig, cpus_per_worker: float) -> int:
    bounds = [host.num_cpus / cpus_per_worker, host.memory_bytes / WORKER_BYTES]
    if host.max_sandboxes is not None:
        bounds.append(host.max_sandboxes / (config.max_sandboxes or 1))
    return int(min(bounds))


def _num_sandboxes(host: Host, config: RolloutConfig) -> int:
    """Return the sandboxes that ``host`` may hold at one time."""
    if host.max_sandboxes is not None:
        return host.max_sandboxes
    return int(min(SANDBOXES_PER_CPU * host.num_cpus, host.memory_bytes / config.sandbox.limits.memory_bytes))


def describe_workers(asked: RolloutConfig, chosen: RolloutConfig, hosts: Sequence[Host]) -> str:
    """Return a line on what ``auto`` became; empty where everything was given."""
    if asked == chosen:
        return ""
    num_cpus, memory = sum(host.num_cpus for host in hosts), sum(host.memory_bytes for host in hosts) >> 30
    place = "this machine" if len(hosts) == 1 else f"{len(hosts)} machines"
    return (
        f"{chosen.num_workers} workers with up to {chosen.max_in_flight} episodes and {chosen.max_sandboxes} sandboxes "
        f"each, for {num_cpus:g} processors and {memory} GiB of {place}"
    )


def cgroup_cores(root: Path = CGROUP) -> float | None:
    """Return the cores granted by the cgroup (v2 or v1) mounted at ``root``; None when unbounded."""
    quota, _, period = _read(root / "cpu.max").partition(" ")
    if not quota:
        quota, period = _read(root / "cpu/cpu.cfs_quota_us"), _read(root / "cpu/cpu.cfs_period_us")
    is_bound = quota.isdigit() and period.isdigit() and int(period) > 0
    return int(quota) / int(period) if is_bound else None


def cgroup_memory_bytes(root: Path = CGROUP, membership: Path = _MEMBERSHIP) -> int | None:
    """Return the least bytes granted by the cgroups (v2 or v1) of this process below ``root``; None when unbounded."""
    bounds = []
    for line in [*_read(membership).splitlines(), "0::/", "0:memory:/"]:
        _, kinds, path = line.split(":", 2)
        if kinds in ("", "memory"):
            base, name = (root / "memory", "memory.limit_in_bytes") if kinds else (root, "memory.max")
            own = Path(path.lstrip("/"))
            bounds += [_read(base / folder / name) for folder in (own, *own.parents)]
    # v1 writes "unbounded" as the largest multiple of the page size.
    return min((int(text) for text in bounds if text.isdigit() and int(text) < 1 << 60), default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
