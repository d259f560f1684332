"""One SFT step on a single long sequence over several processes: how much memory and processor time each needs.

All processes share its tokens (Ulysses), and the weights are sharded over them. Memory is the most that a process held
in the first step above what it had before, seconds are those of the second step; both of the process with the most.

    torchrun --nproc-per-node 2 benchmarks/long_context.py --tokens 16384 --checkpointing
"""

from __future__ import annotations

import argparse
import json
import threading
import time

import numpy as np
import psutil
import torch

from repairgym.config.learning import ComputeConfig, OptimizerConfig
from repairgym.config.models import ModelConfig
from repairgym.inference.loading import create_model
from repairgym.learning.distributed.fsdp import process_group
from repairgym.learning.learner import Learner
from repairgym.learning.losses import sft_loss
from repairgym.learning.samples import text_sample

_INTERVAL_S = 0.02
MODEL = ModelConfig(num_layers=4, num_heads=8, num_kv_heads=4, head_dim=32, hidden_size=256, intermediate_size=768)


class PeakMemory:
    """Most resident bytes of this process while it is open, above those at the start."""

    def __enter__(self) -> PeakMemory:
        self._process = psutil.Process()
        self._start_bytes = self._process.memory_info().rss
        self.peak_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(_INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, self._process.memory_info().rss - self._start_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--checkpointing", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with process_group() as world:
        compute = ComputeConfig(
            micro_batch_tokens=arguments.tokens,
            head_chunk_tokens=1024,
            is_checkpointing=arguments.checkpointing,
            context_parallel=world.size,
        )
        model = create_model(MODEL.model_copy(update={"max_len_tokens": arguments.tokens}))
        learner = Learner(model, OptimizerConfig(), compute)
        samples = [text_sample(np.random.default_rng(0).integers(0, MODEL.vocab_size, arguments.tokens).tolist())]
        with PeakMemory() as memory:
            learner.step(samples, sft_loss)
        cpu_s, wall_s = time.process_time(), time.monotonic()
        metrics = learner.step(samples, sft_loss)
        found = world.gather((memory.peak_bytes, time.process_time() - cpu_s))
        if world.is_leader:
            result = {
                "num_processes": world.size,
                "num_tokens": arguments.tokens,
                "is_checkpointing": arguments.checkpointing,
                "peak_mib_per_process": round(max(peak for peak, _ in found) / 2**20, 1),
                "cpu_s_per_process": round(max(used for _, used in found), 2),
                "wall_s": round(time.monotonic() - wall_s, 2),
                "loss": metrics["train/loss"],
            }
            print(json.dumps(result))


if __name__ == "__main__":
    main()
