from pathlib import Path

import torch

from repairgym.learning.memory import release_memory

MIB = 1 << 20


def resident_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_freed_blocks_between_live_ones_are_given_back() -> None:
    blocks = [torch.ones(16 * 1024) for _ in range(4096)]  # 64 KiB each, too small to be mapped one by one
    live = blocks[::16]
    before = resident_bytes()
    del blocks
    release_memory()
    assert resident_bytes() < before - 128 * MIB
    assert all(bool((block == 1).all()) for block in live)
