"""What accelerators can do at best, as their makers publish it (dense, no sparsity)."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """One accelerator."""

    name: str
    memory_bytes: float
    bf16_flops: float
    """Operations per second, matrix units, 16 bits."""
    bandwidth_bytes: float
    """Of its memory, per second."""


GPUS = {
    "a100": Gpu("A100 80 GB", 80e9, 312e12, 2.04e12),
    "h100": Gpu("H100 SXM", 80e9, 989e12, 3.35e12),
    "h200": Gpu("H200", 141e9, 989e12, 4.8e12),
    "b200": Gpu("B200", 180e9, 2250e12, 7.7e12),
}
