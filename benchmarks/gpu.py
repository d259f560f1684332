"""One GPU in ten minutes: log-prob gap, contexts, one DAPO step with each sampler, a saved and loaded state.

Random weights of a published shape, so nothing is downloaded. Every part is a process of its own with a bound on its
time, and a part that fails is a row that says so. Without a GPU the parts are listed with what they would do;
``--quick`` runs the parts that a processor can, on a tiny shape.

    python benchmarks/gpu.py --write docs/reference/benchmarks.md      # `make gpu`
    python benchmarks/gpu.py --quick --json
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from repairgym.config.learning import AlgorithmConfig, ComputeConfig, OptimizerConfig
from repairgym.config.models import EndpointConfig, EngineConfig, ModelConfig
from repairgym.inference.base import SamplingParams
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.engine.core import Engine
from repairgym.inference.loading import create_model, load_model, load_tokenizer, save_checkpoint, shipped_base
from repairgym.inference.vllm.policy import VllmPolicy
from repairgym.inference.vllm.server import TokenServer
from repairgym.learning.checkpoints import load_training_state, save_training_state
from repairgym.learning.distributed.fsdp import process_group
from repairgym.learning.rl import PolicyTrainer
from repairgym.learning.samples import Sample
from repairgym.learning.weight_loading import open_model
from repairgym.sizing.estimate import GIB, GPUS
from repairgym.sizing.shapes import SHAPES

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
SEED_SHAPE = "Qwen3-0.6B"
NUM_PROMPTS, GROUP_SIZE, PROMPT_TOKENS, NEW_TOKENS = 4, 8, 1024, 128
SERVER_START_S = 180.0
CONTEXTS = (8192, 32_768, 65_536, 131_072)
BEGIN, END = "<!-- benchmarks/gpu.py -->", "<!-- end -->"


@dataclass(frozen=True)
class Row:
    """One figure."""

    what: str
    figure: str


@dataclass(frozen=True)
class Part:
    """A part of the benchmark; runs in a process of its own."""

    does: str
    limit_s: float
    run: Callable[[Path], list[Row]]
    needs: str = ""
    """``gpu``, ``vllm`` (with a GPU), or nothing."""


def make_folder(folder: Path) -> Path:
    """A model folder of random weights, with the shipped tokenizer."""
    shape = SHAPES[SEED_SHAPE] if HAS_GPU else None
    config = ModelConfig(**asdict(shape), max_len_tokens=40_960) if shape else ModelConfig(max_len_tokens=4096)
    save_checkpoint(create_model(config, "bfloat16" if HAS_GPU else "float32"), load_tokenizer(shipped_base()), folder)
    return folder


def prompts() -> list[list[int]]:
    """Equal prompts within a group, as in RL."""
    generator = np.random.default_rng(0)
    size = PROMPT_TOKENS if HAS_GPU else 64
    return [generator.integers(300, 1800, size).tolist() for _ in range(NUM_PROMPTS) for _ in range(GROUP_SIZE)]


def num_new_tokens() -> int:
    return NEW_TOKENS if HAS_GPU else 8


def learn(model: PreTrainedModel, sampled: list[tuple[list[int], list[int], list[float]]]) -> tuple[float, float]:
    """One DAPO step on (prompt, tokens, log-probabilities); returns its seconds and the log-prob gap."""
    compute = ComputeConfig(is_bf16=HAS_GPU, is_checkpointing=HAS_GPU, micro_batch_tokens=16_384)
    config = AlgorithmConfig(optimizer=OptimizerConfig(learning_rate=1e-6), compute=compute, batch_size=len(sampled))
    samples = []
    for number, (prompt, tokens, log_probs) in enumerate(sampled):
        before = [0.0] * len(prompt)
        samples.append(
            Sample(
                np.array(prompt + tokens, np.int32),
                np.array(before + [1.0] * len(tokens), np.float32),
                np.array(before + log_probs, np.float32),
                advantage=1.0 if number % 2 else -1.0,
                group_id=str(number // GROUP_SIZE),
            )
        )
    trainer = PolicyTrainer(model, config)
    started = time.perf_counter()
    metrics = trainer.update(samples)
    return time.perf_counter() - started, metrics["policy/log_prob_gap"]


def step_rows(
    name: str, folder: Path, sampled: list[tuple[list[int], list[int], list[float]]], sample_s: float
) -> list[Row]:
    """Figures of one DAPO step after sampling."""
    num_tokens = sum(len(tokens) for _, tokens, _ in sampled)
    update_s, gap = learn(load_model(folder, device=DEVICE), sampled)
    return [
        Row(f"{name}: sampling {len(sampled)} answers", f"{sample_s:.2f} s, {num_tokens / sample_s:,.0f} tokens/s"),
        Row(f"{name}: one DAPO step", f"{update_s:.2f} s"),
        Row(f"{name}: mean log-prob gap to the learner, nats per token", f"{gap:.2e}"),
    ]


def embedded_step(work: Path) -> list[Row]:
    """The embedded engine in the precision of the device, then one DAPO step."""
    folder = make_folder(work / "model")
    engine = Engine(
        load_model(folder, "bfloat16" if HAS_GPU else "float32", DEVICE),
        EngineConfig(num_slots=NUM_PROMPTS * GROUP_SIZE, max_len_tokens=PROMPT_TOKENS + NEW_TOKENS),
    )
    started = time.perf_counter()
    requests = [
        engine.submit(str(number), prompt, max_tokens=num_new_tokens(), stop_token_ids=(), seed=number)
        for number, prompt in enumerate(prompts())
    ]
    while engine.has_work:
        engine.step()
    sample_s = time.perf_counter() - started
    sampled = [
        (prompt, list(request.token_ids), list(request.log_probs))
        for prompt, request in zip(prompts(), requests, strict=True)
    ]
    return step_rows("embedded engine", folder, sampled, sample_s)


def vllm_step(work: Path) -> list[Row]:
    """A vLLM server on a third of the same GPU (time sharing), then one DAPO step."""
    folder = make_folder(work / "model")
    with vllm_server(folder, work / "server.log") as url:
        sampled, sample_s = asyncio.run(ask(url))
        return step_rows("vLLM", folder, sampled, sample_s)


async def ask(url: str) -> tuple[list[tuple[list[int], list[int], list[float]]], float]:
    """Sample from a server, all prompts at once."""
    config = EndpointConfig(base_url=url, model="policy", max_concurrent=NUM_PROMPTS * GROUP_SIZE)
    async with EndpointClient(config) as client:
        policy = VllmPolicy([TokenServer(client)])

        def answer(number: int, prompt: list[int]) -> asyncio.Future:  # type: ignore[type-arg]
            sampling = SamplingParams(max_tokens=num_new_tokens(), stop_token_ids=(2,), seed=number)
            return asyncio.ensure_future(policy.generate(str(number), prompt, sampling))

        started = time.perf_counter()
        generations = await asyncio.gather(*(answer(number, prompt) for number, prompt in enumerate(prompts())))
        sample_s = time.perf_counter() - started
    sampled = [
        (prompt, list(generation.token_ids), list(generation.log_probs))
        for prompt, generation in zip(prompts(), generations, strict=True)
    ]
    return sampled, sample_s


@contextmanager
def vllm_server(folder: Path, log: Path) -> Iterator[str]:
    """Yield the base URL of a server; `RuntimeError` with the end of its log if it does not start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--served-model-name", "policy", "--generation-config", "vllm"]
    command += [
        "--max-model-len",
        str(PROMPT_TOKENS + NEW_TOKENS),
        "--gpu-memory-utilization",
        "0.35",
        "--enforce-eager",
    ]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        started = time.monotonic()
        while not is_healthy(port):
            if process.poll() is not None or time.monotonic() - started > SERVER_START_S:
                raise RuntimeError(f"vLLM did not start: {log.read_text()[-500:]}")
            time.sleep(1.0)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(60)


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def contexts(work: Path) -> list[Row]:
    """The learner and the engine from 8k to 131k tokens: `benchmarks/contexts.py`."""
    command = [sys.executable, str(Path(__file__).with_name("contexts.py")), "--json", "--rounds", "1", "--slots", "2"]
    command += ["--new-tokens", "16", "--gpu", gpu_name(), "--model", SEED_SHAPE, "--contexts", *map(str, CONTEXTS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    rows = []
    for row in json.loads(done.stdout)["rows"]:
        figure = row["trouble"]
        if not figure:
            mfu = "" if row["utilisation"] is None else f", MFU {row['utilisation']:.1%}"
            figure = f"{row['seconds']:.2f} s, {row['tokens_per_s']:,.0f} tokens/s{mfu}, {row['peak_gib']:.1f} GiB"
        rows.append(Row(f"{row['what']}, {row['context_tokens']:,} tokens", figure))
    return rows


def gpu_name() -> str:
    """The key of `GPUS` that the device's name holds; H100 where none does."""
    name = torch.cuda.get_device_name().lower()
    return next((key for key in GPUS if key in name), "h100")


def state(work: Path) -> list[Row]:
    """Save and load a sharded training state, by torchrun with one process per GPU."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command = [
        *torchrun,
        str(max(1, torch.cuda.device_count())),
        __file__,
        "--part",
        "state_process",
        "--work",
        str(work),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return [Row(**row) for row in json.loads(done.stdout.strip().splitlines()[-1])]


def state_process(work: Path) -> list[Row]:
    """One process of `state`: save, load into another learner, compare what this process holds."""
    with process_group() as world:
        if world.is_leader:
            make_folder(work / "model")
        world.gather(None)
        first, second = (PolicyTrainer(open_model(work / "model"), AlgorithmConfig()).learner for _ in range(2))
        with torch.no_grad():
            for weight in first.model.parameters():
                weight.mul_(0.5)
        started = time.perf_counter()
        save_training_state(first, work / "state")
        saved_s = time.perf_counter() - started
        num_bytes = sum(path.stat().st_size for path in (work / "state").rglob("*") if path.is_file())
        started = time.perf_counter()
        load_training_state(second, work / "state")
        loaded_s = time.perf_counter() - started
        pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
        is_equal = all(torch.equal(own_part(left), own_part(right)) for left, right in pairs)
        return [
            Row(f"state of {world.size} process(es): save", f"{saved_s:.2f} s, {num_bytes / GIB:.2f} GiB"),
            Row("state: load", f"{loaded_s:.2f} s"),
            Row("state: loaded weights are equal", str(is_equal)),
        ]


def own_part(weight: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor that this process holds."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


PARTS = {
    "embedded": Part("sample with the embedded engine in bfloat16, one DAPO step, log-prob gap", 120.0, embedded_step),
    "vllm": Part("the same with a vLLM server on the same GPU", 180.0, vllm_step, "vllm"),
    "contexts": Part(
        f"learn and generate at {', '.join(f'{n:,}' for n in CONTEXTS)} tokens: MFU, memory", 210.0, contexts, "gpu"
    ),
    "state": Part("save and load a training state with torchrun", 90.0, state),
}
WORKERS = {"state_process": state_process}


def missing(part: Part) -> str:
    """Return what ``part`` needs and this machine lacks; empty if it can run."""
    if part.needs and not HAS_GPU:
        return "needs a GPU"
    has_vllm = importlib.util.find_spec("vllm") is not None
    return "needs vLLM (requirements-gpu.txt)" if part.needs == "vllm" and not has_vllm else ""


def run_part(name: str) -> list[Row]:
    """Run a part in a process of its own; a failure is a row."""
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, __file__, "--part", name, "--work", work]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PARTS[name].limit_s)
        except subprocess.TimeoutExpired:
            return [Row(name, f"not done within {PARTS[name].limit_s:.0f} s")]
    if done.returncode != 0:
        return [Row(name, f"failed with exit code {done.returncode}; its error is above")]
    return [Row(**row) for row in json.loads(done.stdout.strip().splitlines()[-1])]


def show(rows: list[Row]) -> str:
    """A Markdown table with the machine."""
    device = torch.cuda.get_device_name() if HAS_GPU else "no GPU"
    lines = [
        f"{SEED_SHAPE}, random weights, on {device}, torch {torch.__version__}:",
        "",
        "| what | figure |",
        "|---|---|",
    ]
    return "\n".join([*lines, *(f"| {row.what} | {row.figure} |" for row in rows)])


def write_section(page: Path, text: str) -> None:
    """Replace what stands between the marks of ``page``."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Run the parts, print or write their figures; without a GPU say what they would do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the parts that a processor can run, on a tiny shape")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table between the marks of a Markdown page")
    parser.add_argument("--part", choices=[*PARTS, *WORKERS], help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        run = WORKERS.get(options.part) or PARTS[options.part].run
        rows = run(options.work)
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps([asdict(row) for row in rows]))
        return
    if not HAS_GPU and not options.quick:
        print("There is no GPU here, so nothing is measured. With one, in ten minutes at most:")
        for name, part in PARTS.items():
            print(f"  {name:9} at most {part.limit_s:3.0f} s: {part.does}")
        return
    rows = []
    for name, part in PARTS.items():
        print(f"{name}: {part.does}", file=sys.stderr, flush=True)
        done = [Row(name, missing(part))] if missing(part) else run_part(name)
        for row in done:  # at once: whoever stops the benchmark keeps what it measured
            print(f"  {row.what}: {row.figure}", file=sys.stderr, flush=True)
        rows += done
    if options.json:
        print(json.dumps({"has_gpu": HAS_GPU, "rows": [asdict(row) for row in rows]}, indent=2))
    elif options.write and HAS_GPU:
        write_section(options.write, show(rows))
    else:
        print(show(rows))


if __name__ == "__main__":
    main()
