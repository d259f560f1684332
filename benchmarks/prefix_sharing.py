"""One policy-gradient step on groups of eight: each distinct token once against every sample on its own (plain
packing).

Same samples, same loss and gradients (checked here), one thread of this process; the two take turns. Workloads:
`shared`, 60 % of the tokens of a group are common to all; `tree`, the same, and members part one after another;
`nothing`, no two samples begin alike. Figures are tokens of all samples per CPU-second, the ratio is the CPU time
saved.

    python benchmarks/prefix_sharing.py --quick --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch
from transformers import PreTrainedModel

from repairgym.config.algorithms import DapoLossConfig
from repairgym.config.learning import ComputeConfig
from repairgym.config.models import ModelConfig
from repairgym.inference.loading import create_model
from repairgym.learning.losses import policy_loss
from repairgym.learning.packing.batching import pack
from repairgym.learning.packing.forward import Scorer, score
from repairgym.learning.samples import Sample

MODEL = ModelConfig(num_layers=6, num_heads=6, head_dim=32, is_tied=False)
"""The shipped base."""
WORKLOADS = ("shared", "tree", "nothing")


def make_samples(workload: str, num_groups: int, group_size: int, length: int) -> list[Sample]:
    """Groups of sequences of about ``length`` tokens, a third of what is not shared by all is actions."""
    samples = []
    for group in range(num_groups):
        generator = np.random.default_rng(group)
        common = 0 if workload == "nothing" else int(0.6 * length)
        kept = generator.integers(5, MODEL.vocab_size, length)
        for _ in range(group_size):
            ids = generator.integers(5, MODEL.vocab_size, int(length * generator.uniform(0.85, 1.15)))
            until = int(generator.uniform(common, 0.9 * length)) if workload == "tree" else common
            ids[:until] = kept[:until]
            weight = (np.arange(len(ids)) % 30 < 10).astype(np.float32)
            weight[: max(1, common)] = 0.0
            old = np.where(weight > 0, np.float32(-7.6), np.float32(0.0))
            samples.append(Sample(ids.astype(np.int32), weight, old, float(generator.normal()), f"g{group}"))
    return samples


def step(model: PreTrainedModel, samples: list[Sample], is_sharing: bool) -> tuple[float, float]:
    """(CPU seconds, gradient norm) of one forward and backward over all samples."""
    model.zero_grad()
    loss, scorer = policy_loss(DapoLossConfig()), Scorer(model)
    normalizer = sum(float(sample.weight.sum()) for sample in samples)
    begin = time.process_time()
    for batch in pack(samples, 8192, is_sharing=is_sharing):
        loss(score(scorer, batch, ComputeConfig()), normalizer).loss.backward()
    seconds = time.process_time() - begin
    norm = torch.linalg.vector_norm(torch.stack([parameter.grad.norm() for parameter in model.parameters()]))
    return seconds, float(norm)


def measure(workload: str, num_groups: int, length: int, repeats: int) -> dict[str, float]:
    model = create_model(MODEL)
    samples = make_samples(workload, num_groups, 8, length)
    pairs = [(step(model, samples, True), step(model, samples, False)) for _ in range(repeats)]
    difference = abs(pairs[0][0][1] - pairs[0][1][1]) / pairs[0][1][1]
    if difference > 1e-4:
        raise SystemExit(f"gradient norms differ by {difference:.1e}: packing changes the result")
    num_tokens = sum(len(sample) for sample in samples)
    num_distinct = sum(batch.num_tokens for batch in pack(samples, 8192))
    return {
        "packed_tokens_per_cpu_s": num_tokens / min(packed for (packed, _), _ in pairs),
        "plain_tokens_per_cpu_s": num_tokens / min(plain for _, (plain, _) in pairs),
        "ratio": statistics.median(plain / packed for (packed, _), (plain, _) in pairs),
        "tokens_ratio": num_tokens / num_distinct,
        "gradient_norm_difference": difference,
        "num_tokens": float(num_tokens),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small and few repeats, under a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--length", type=int, default=500, help="tokens of a sample")
    options = parser.parse_args()
    torch.set_num_threads(1)
    step(create_model(MODEL), make_samples("shared", 1, 2, 50), True)
    num_groups, repeats = (1, 3) if options.quick else (4, 7)
    results = {name: measure(name, num_groups, options.length, repeats) for name in WORKLOADS}
    if options.json:
        print(json.dumps(results))
        return
    print(f"{'workload':<10} {'packed':>8} {'plain':>8} tokens per CPU-second, ratio, of distinct tokens")
    for name, row in results.items():
        packed, plain = row["packed_tokens_per_cpu_s"], row["plain_tokens_per_cpu_s"]
        print(f"{name:<10} {packed:>8.0f} {plain:>8.0f} {row['ratio']:>24.2f} {row['tokens_ratio']:>18.2f}")


if __name__ == "__main__":
    main()
