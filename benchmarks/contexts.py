"""The learner and the engine by context length: seconds, tokens per second, utilization, peak memory.

A Qwen3-architecture model of random weights learns from one episode of each length (half of its tokens are actions, in
turns), then generates after prompts of that length. The estimate of `repairgym plan` is printed next to the figures, so
that a run on a GPU calibrates it. A context that does not fit is a row that says so.

    python benchmarks/contexts.py --quick --json
    python benchmarks/contexts.py --model Qwen3-0.6B --contexts 8192 32768 65536 131072
    python benchmarks/contexts.py --model Qwen3-8B --trained lora --contexts 32768 65536 131072 --slots 4
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import torch
from transformers import PreTrainedModel

from repairgym.config.algorithms import DapoLossConfig
from repairgym.config.cluster import PlanCommandConfig
from repairgym.config.learning import ComputeConfig, FullConfig, LoraConfig, OptimizerConfig
from repairgym.config.models import DtypeName, EngineConfig, ModelConfig
from repairgym.inference.engine.core import Engine
from repairgym.inference.loading import create_model
from repairgym.learning.learner import Learner, release_memory
from repairgym.learning.losses import policy_loss
from repairgym.learning.samples import Sample
from repairgym.sizing.estimate import GIB, GPUS, training_memory
from repairgym.sizing.shapes import SHAPES, ModelShape

TINY = ModelShape(4, 256, 8, 4, 32, 768, 4096, is_tied=True)
"""For a processor."""
TURN_TOKENS = 512
"""Half of them the agent's."""
IS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if IS_GPU else "cpu"


@dataclass(frozen=True)
class Row:
    """One length."""

    what: str
    context_tokens: int
    seconds: float | None = None
    """Median; None when it did not fit."""
    tokens_per_s: float | None = None
    utilisation: float | None = None
    """Useful operations (no recomputation) of the published peak; on a processor of a measured matrix product."""
    peak_gib: float | None = None
    estimated_gib: float | None = None
    """By `repairgym plan`, for one such GPU."""
    trouble: str = ""


def make_model(shape: ModelShape, context_tokens: int, dtype: DtypeName) -> PreTrainedModel:
    """Random weights of ``shape`` on the device."""
    with torch.device(DEVICE):
        return create_model(ModelConfig(**asdict(shape), max_len_tokens=context_tokens + 1), dtype)


def make_episode(shape: ModelShape, context_tokens: int) -> Sample:
    """An episode whose turns are half observation, half action."""
    generator = np.random.default_rng(0)
    ids = generator.integers(0, shape.vocab_size, context_tokens).astype(np.int32)
    is_action = (np.arange(context_tokens) % TURN_TOKENS) >= TURN_TOKENS // 2
    weight = is_action.astype(np.float32)
    return Sample(ids, weight, np.where(is_action, -np.log(shape.vocab_size), 0.0).astype(np.float32), advantage=1.0)


def peak_flops(gpu: str) -> float:
    """Operations per second at best."""
    if IS_GPU:
        return GPUS[gpu].bf16_flops
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / min(seconds_of(lambda: left @ right) for _ in range(5))


def seconds_of(action: Callable[[], object]) -> float:
    """Of one call, the device's work included."""
    started = time.perf_counter()
    action()
    if IS_GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def peak_gib() -> float:
    """Most memory so far: of the GPU since `measured` began, of a processor since the program began."""
    if IS_GPU:
        return torch.cuda.max_memory_allocated() / GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def measured(what: str, context_tokens: int, action: Callable[[], list[Row]]) -> list[Row]:
    """``action``'s rows, or one that says that it did not fit."""
    release_memory()
    if IS_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        return action()
    except torch.OutOfMemoryError as error:
        return [Row(what, context_tokens, trouble=str(error).splitlines()[0][:120])]


def learn(shape: ModelShape, context_tokens: int, options: argparse.Namespace) -> list[Row]:
    """Whole optimizer steps on one episode."""
    is_lora = options.trained == "lora"
    model = make_model(shape, context_tokens, "bfloat16" if is_lora and IS_GPU else "float32")
    compute = ComputeConfig(micro_batch_tokens=context_tokens, is_bf16=IS_GPU, is_checkpointing=True)
    trained = LoraConfig() if is_lora else FullConfig()
    learner = Learner(model, OptimizerConfig(learning_rate=1e-6), compute, trained=trained)
    loss, samples = policy_loss(DapoLossConfig()), [make_episode(shape, context_tokens)]
    learner.step(samples, loss)  # kernels are chosen, the optimizer's state is made
    seconds = statistics.median(seconds_of(lambda: learner.step(samples, loss)) for _ in range(options.rounds))
    # Frozen matrices need no gradient of their own: two of three passes.
    flops = (2.0 if is_lora else 3.0) * shape.forward_flops(context_tokens, context_tokens / 2)
    utilisation = flops / seconds / peak_flops(options.gpu)
    speed, expected = context_tokens / seconds, estimated_gib(shape, context_tokens, options)
    return [Row(f"learn ({options.trained})", context_tokens, seconds, speed, utilisation, peak_gib(), expected)]


def estimated_gib(shape: ModelShape, context_tokens: int, options: argparse.Namespace) -> float | None:
    """What `repairgym plan` expects on a GPU without end."""
    if not IS_GPU:
        return None
    config = PlanCommandConfig(context_tokens=context_tokens, update=options.trained)
    endless = replace(GPUS[options.gpu], memory_bytes=1e15)
    return training_memory(shape, endless, config, 1).total_bytes / GIB


def generate(shape: ModelShape, context_tokens: int, options: argparse.Namespace) -> list[Row]:
    """Prompts without a common prefix, then one token after the other."""
    num_new = options.new_tokens
    model = make_model(shape, context_tokens + num_new, "bfloat16" if IS_GPU else "float32")
    config = EngineConfig(num_slots=options.slots, max_len_tokens=context_tokens + num_new)
    engine = Engine(model, config)
    generator = np.random.default_rng(0)
    for number in range(options.slots):
        prompt = generator.integers(0, shape.vocab_size, context_tokens).tolist()
        engine.submit(str(number), prompt, max_tokens=num_new, stop_token_ids=())
    prefill_s = seconds_of(engine.step)
    started, num_before = time.perf_counter(), engine.statistics.num_decode_tokens
    while engine.has_work:
        engine.step()
    decode_s = time.perf_counter() - started
    num_decoded = engine.statistics.num_decode_tokens - num_before
    num_prefilled = options.slots * context_tokens
    flops = shape.forward_flops(num_prefilled, context_tokens / 2)
    utilisation = flops / prefill_s / peak_flops(options.gpu)
    return [
        Row("prefill", context_tokens, prefill_s, num_prefilled / prefill_s, utilisation, peak_gib()),
        Row(f"decode, {options.slots} at once", context_tokens, decode_s, num_decoded / decode_s, None, peak_gib()),
    ]


def show(rows: list[Row]) -> str:
    """A Markdown table."""
    lines = ["| what | context | seconds | tokens/s | MFU | peak GiB | plan GiB |", "|---|" + "---:|" * 6]
    for row in rows:
        if row.trouble:
            lines.append(f"| {row.what} | {row.context_tokens:,} | {row.trouble} | | | | |")
            continue
        mfu = "" if row.utilisation is None else f"{row.utilisation:.1%}"
        plan = "" if row.estimated_gib is None else f"{row.estimated_gib:.1f}"
        lines.append(
            f"| {row.what} | {row.context_tokens:,} | {row.seconds:.2f} | {row.tokens_per_s:,.0f} | {mfu} | "
            f"{row.peak_gib:.1f} | {plan} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["tiny", *SHAPES], default="Qwen3-0.6B" if IS_GPU else "tiny")
    parser.add_argument("--contexts", type=int, nargs="+", default=[8192, 32_768] if IS_GPU else [512, 2048])
    parser.add_argument("--trained", choices=["full", "lora"], default="full", help="what the learner trains")
    parser.add_argument("--slots", type=int, default=8, help="sequences that the engine generates at once")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens that each of them generates")
    parser.add_argument("--rounds", type=int, default=3, help="measured optimizer steps")
    parser.add_argument("--gpu", choices=list(GPUS), default="h200", help="whose published peak MFU is of")
    parser.add_argument("--only", nargs="+", choices=["learn", "generate"], default=["learn", "generate"])
    parser.add_argument("--quick", action="store_true", help="the smallest model and two short lengths, seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.quick:
        options.model, options.contexts, options.rounds, options.new_tokens = "tiny", [512, 1024], 1, 8
    shape = TINY if options.model == "tiny" else SHAPES[options.model]
    actions = {"learn": learn, "generate": generate}
    rows: list[Row] = []
    for context_tokens in options.contexts:
        for name in options.only:
            print(f"{options.model}, {context_tokens:,} tokens: {name}", file=sys.stderr, flush=True)
            rows += measured(name, context_tokens, partial(actions[name], shape, context_tokens, options))
    device = torch.cuda.get_device_name() if IS_GPU else f"processor, {torch.get_num_threads()} threads"
    if options.json:
        print(json.dumps({"model": options.model, "device": device, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(f"{options.model} on {device}\n\n{show(rows)}")


if __name__ == "__main__":
    main()
