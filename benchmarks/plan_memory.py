"""Memory of a training step: what `repairgym plan` reckons with, and what processes on this machine hold.

Shapes are drawn by seed: width, depth, vocabulary, heads, context, all weights or adapters, with and without activation
checkpointing, some with the reference of a KL term. Every process takes a step of two micro-batches; its most memory
(the kernel's own mark) above that before loading is compared with the estimate of tensors. Ends with 1 when a shape is
further off than --within.

    python benchmarks/plan_memory.py --seed 1 --processes 1 2 --json
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repairgym.config.learning import ComputeConfig, FullConfig, LoraConfig, OptimizerConfig
from repairgym.config.models import ModelConfig
from repairgym.inference.loading import create_model, save_checkpoint
from repairgym.learning.distributed.fsdp import World, process_group
from repairgym.learning.learner import Learner
from repairgym.learning.losses import sft_loss
from repairgym.learning.samples import Sample
from repairgym.learning.weight_loading import open_model
from repairgym.sizing.shapes import ModelShape
from repairgym.sizing.step_memory import Share, step_parts

_RANK = 16
_HEAD_DIM = 64
_LEAST_PARAMETERS = 20e6
"""What libraries keep, about 10 MB in a process, is much of a smaller model."""
_MOST_PRODUCTS = 15e9
"""Parameters times tokens of a micro-batch, so that a step takes seconds."""
_GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
"""So that the C library keeps little of what is freed."""


@dataclass(frozen=True)
class Case:
    """A model and how it is trained."""

    shape: ModelShape
    num_tokens: int
    """Of a micro-batch: one sequence."""
    is_lora: bool
    is_checkpointing: bool
    has_reference: bool = False


def draw_cases(seed: int, num_cases: int) -> list[Case]:
    """Both kinds of training with and without checkpointing, in turn."""
    generator, cases = random.Random(seed), []
    while len(cases) < num_cases:
        number = len(cases)
        heads = generator.choice([4, 6, 8, 12])
        shape = ModelShape(
            num_layers=generator.randint(3, 16),
            hidden_size=heads * _HEAD_DIM,
            num_heads=heads,
            num_kv_heads=generator.choice([1, 2, heads]),
            head_dim=_HEAD_DIM,
            intermediate_size=heads * _HEAD_DIM * generator.choice([2, 3, 4]),
            vocab_size=generator.choice([2048, 8192, 32768, 80_000]),
            is_tied=generator.random() < 0.5,
        )
        if shape.num_parameters < _LEAST_PARAMETERS:
            continue
        longest = [tokens for tokens in (128, 256, 512, 1024) if tokens * shape.num_parameters <= _MOST_PRODUCTS]
        num_tokens = generator.choice(longest or [64])
        cases.append(
            Case(
                shape,
                num_tokens,
                is_lora=number % 4 >= 2,
                is_checkpointing=number % 2 == 0,
                has_reference=number % 3 == 1,
            )
        )
    return cases


def estimated_bytes(case: Case, num_processes: int) -> dict[str, float]:
    """Return what the plan reckons with, by name."""
    share = Share(
        num_processes,
        case.num_tokens,
        case.num_tokens,
        _RANK if case.is_lora else 0,
        is_bf16=False,
        is_checkpointing=case.is_checkpointing,
        has_reference=case.has_reference,
    )
    return step_parts(case.shape, share)


def measured_bytes(case: Case, folder: Path, world: World) -> int:
    """Return the most that this process held in a step, above what it held before it loaded the model."""
    if world.is_leader and not folder.exists():
        model = create_model(ModelConfig(**asdict(case.shape), max_len_tokens=case.num_tokens))
        save_checkpoint(model, None, folder)
        del model
    world.gather(None)
    base = settled_bytes()
    compute = ComputeConfig(micro_batch_tokens=case.num_tokens, is_checkpointing=case.is_checkpointing)
    trained = LoraConfig(rank=_RANK) if case.is_lora else FullConfig()
    learner = Learner(open_model(folder), OptimizerConfig(), compute, trained=trained)
    for parameter in learner.model.parameters():
        parameter.detach().sum()  # frozen weights are mapped files: pages that nothing reads would not count
    reference = learner.scorer_of(open_model(folder)) if case.has_reference else None
    # The first step makes the moments.
    learner.step(samples_of(8, world.size), sft_loss)
    batch = samples_of(case.num_tokens, 2 * world.size)
    Path("/proc/self/clear_refs").write_text("5")
    if reference:
        learner.measure(batch, reference)
    learner.step(batch, sft_loss)
    return status_bytes("VmHWM") - base


def samples_of(num_tokens: int, num_samples: int) -> list[Sample]:
    """Make sequences that share nothing."""
    ids = np.arange(num_tokens, dtype=np.int32)
    weight = (ids > 0).astype(np.float32)
    return [Sample((ids + at) % 2000, weight, np.zeros(num_tokens, np.float32)) for at in range(num_samples)]


def settled_bytes() -> int:
    """Return the memory of this process, mapped weights too, after what is free has gone back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return status_bytes("VmRSS")


def status_bytes(name: str) -> int:
    """Return a figure of the kernel about this process."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, name
    return int(found[1]) << 10


def work(seed: int, num_cases: int, folder: Path) -> None:
    """Measure all cases in this process, one of those that torchrun has started."""
    small = ModelShape(2, 64, 1, 1, _HEAD_DIM, 128, 2048)
    with process_group() as world:
        for is_lora in (False, True):  # what libraries keep after a first use
            measured_bytes(Case(small, 64, is_lora, is_checkpointing=True), folder / "warm", world)
        for number, case in enumerate(draw_cases(seed, num_cases)):
            held = world.gather(measured_bytes(case, folder / f"model-{number}", world))
            if world.is_leader:
                (folder / f"held-{world.size}-{number}.json").write_text(json.dumps(held))


def rows(seed: int, num_cases: int, counts: list[int]) -> list[dict[str, Any]]:
    """Measure each case with each number of processes."""
    made = []
    with tempfile.TemporaryDirectory() as name:
        for count in counts:
            launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
            own = [__file__, "--seed", str(seed), "--shapes", str(num_cases), "--worker", name]
            subprocess.run([*launch, *own], env=os.environ | {"OMP_NUM_THREADS": "1"} | _GIVES_BACK, check=True)
            for number, case in enumerate(draw_cases(seed, num_cases)):
                held = max(json.loads((Path(name) / f"held-{count}-{number}.json").read_text()))
                parts = estimated_bytes(case, count)
                found = {"held_mb": held / 1e6, "estimated_mb": sum(parts.values()) / 1e6}
                found["ratio"] = found["estimated_mb"] / found["held_mb"]
                parts_mb = {part: round(value / 1e6, 1) for part, value in parts.items()}
                described = asdict(case) | {"num_parameters": case.shape.num_parameters, "parts_mb": parts_mb}
                made.append(
                    {"num_processes": count} | {key: round(value, 3) for key, value in found.items()} | described
                )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shapes", type=int, default=5)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--within", type=float, default=0.15, help="accepted relative difference")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.seed, arguments.shapes, arguments.worker)
        return
    made = rows(arguments.seed, arguments.shapes, arguments.processes)
    if arguments.json:
        print(json.dumps(made, indent=2))
    for row in [] if arguments.json else made:
        shape = row["shape"]
        print(
            f"{row['num_processes']} x {row['num_parameters'] / 1e6:6.1f} M, {shape['num_layers']:2} layers of "
            f"{shape['hidden_size']:4}, vocabulary {shape['vocab_size']:6}, {row['num_tokens']:5} tokens, "
            f"{'lora' if row['is_lora'] else 'full'}, checkpointing {'on ' if row['is_checkpointing'] else 'off'}"
            f"{', reference' if row['has_reference'] else ''}: "
            f"held {row['held_mb']:7.1f} MB, estimated {row['estimated_mb']:7.1f}, ratio {row['ratio']:.2f}"
        )
    sys.exit(any(abs(row["ratio"] - 1) > arguments.within for row in made))


if __name__ == "__main__":
    main()
