"""Comparison of what a training holds in the memory of its machine with what the machine, or its cgroup, has."""

from collections.abc import Mapping

from repairgym.errors import ConfigError

_GIB = 1 << 30


def check_host(name: str, parts: Mapping[str, float], host_bytes: float, *, is_here: bool = True) -> str:
    """Return a line that names ``parts``, the bytes of all processes on one machine by name.

    ``is_here`` is false in a dry run, which may be for another machine: the line then says what is too much.

    Raises:
        ConfigError: they are more than ``host_bytes``; the message says what to do.
    """
    together = sum(parts.values())
    named = ", ".join(f"{part} {size / _GIB:.3g}" for part, size in parts.items())
    told = f"{name}: at least {together / _GIB:.3g} GiB in the machine's memory ({named})"
    if together <= host_bytes:
        return f"{told}, of {host_bytes / _GIB:.3g}"
    if not is_here:
        return f"{told}; this machine has {host_bytes / _GIB:.3g}, too few to run it here"
    raise ConfigError(
        f"{told}; this machine (or its cgroup) has {host_bytes / _GIB:.3g}: start fewer processes on it, lower "
        "rollout.num_workers, rollout.engine.num_slots, compute.micro_batch_tokens or the context, set "
        "compute.is_checkpointing=true or trained.type=lora, or take a machine with more memory"
    )
