"""Three engines on one multi-turn workload: ours, vLLM on the CPU, transformers' `generate`. Tokens per CPU-second.

Each is a process of its own with one thread, holds the shipped base in float32 and plays the same rounds: groups of
episodes that begin with the same prompt; each turn samples a fixed number of tokens at temperature 1 with their
log-probabilities, then the environment appends an observation. The engines take turns, round by round, and every
round has new prompts, so that no cache helps from one to the next. What an engine takes is the processor time of its
whole process tree: other work on the machine changes it little. First of all, the log-probabilities that each engine
reports are compared with a plain forward pass; an engine that is wrong is not measured.

    python benchmarks/engines.py --quick --json
    python benchmarks/engines.py --vllm-python .venv-vllm/bin/python

vLLM's CPU build runs in an environment of its own, the one that `make vllm` builds, because it pins its torch and its
transformers; where it is not there, vLLM is left out with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil

ENGINES = ("embedded", "vllm", "generate")
FIRST_ID, LAST_ID = 300, 2000
"""Prompts and observations are drawn from these; special tokens lie below."""
MAX_LEN_TOKENS = 2048
TOLERANCE = 1e-3
"""Of a log-probability against a plain forward pass in float32."""


@dataclass(frozen=True)
class Workload:
    """Lengths in tokens; prompts are drawn between ``min_prompt`` and ``max_prompt``."""

    num_groups: int = 4
    group_size: int = 8
    min_prompt: int = 250
    max_prompt: int = 350
    num_turns: int = 6
    new: int = 24
    observed: int = 60

    @property
    def num_episodes(self) -> int:
        return self.num_groups * self.group_size

    @property
    def num_new(self) -> int:
        return self.num_episodes * self.num_turns * self.new

    def prompts(self, number: int) -> list[list[int]]:
        """One prompt per episode of round ``number``, equal within a group."""
        found = []
        for group in range(self.num_groups):
            generator = np.random.default_rng([number, group])
            length = int(generator.integers(self.min_prompt, self.max_prompt))
            found += [generator.integers(FIRST_ID, LAST_ID, length).tolist()] * self.group_size
        return [list(prompt) for prompt in found]

    def observation(self, number: int, episode: int, turn: int) -> list[int]:
        generator = np.random.default_rng([number, episode, turn])
        return generator.integers(FIRST_ID, LAST_ID, self.observed).tolist()


@dataclass(frozen=True)
class Turn:
    """What an engine made of a batch of prompts."""

    token_ids: list[list[int]]
    log_probs: list[list[float]]
    num_cached_tokens: int
    """Of the prompts, those that were not computed again."""


class Side(Protocol):
    """An engine in a worker process."""

    def turn(self, prompts: list[list[int]], num_new: int, number: int) -> Turn:
        """Continue every prompt by ``num_new`` tokens."""
        ...

    def end(self, num_episodes: int) -> None:
        """The episodes of a round are over."""
        ...


class Embedded:
    """Ours: sessions keep their keys and values, groups share their prompt."""

    def __init__(self, folder: Path, num_episodes: int) -> None:
        from repairgym.config.models import EngineConfig
        from repairgym.inference.engine.core import Engine
        from repairgym.inference.loading import load_model

        self._engine = Engine(load_model(folder), EngineConfig(num_slots=num_episodes, max_len_tokens=MAX_LEN_TOKENS))

    def turn(self, prompts: list[list[int]], num_new: int, number: int) -> Turn:
        counters = self._engine.statistics
        before = counters.num_reused_tokens + counters.num_shared_tokens
        requests = [
            self._engine.submit(
                str(episode), prompt, max_tokens=num_new, stop_token_ids=(), seed=number * 1000 + episode
            )
            for episode, prompt in enumerate(prompts)
        ]
        while self._engine.has_work:
            self._engine.step()
        cached = counters.num_reused_tokens + counters.num_shared_tokens - before
        return Turn([one.token_ids for one in requests], [one.log_probs for one in requests], cached)

    def end(self, num_episodes: int) -> None:
        for episode in range(num_episodes):
            self._engine.end_session(str(episode))


class Generate:
    """transformers' `generate`: the whole conversation again each turn, as agent loops over it do."""

    def __init__(self, folder: Path, num_episodes: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def turn(self, prompts: list[list[int]], num_new: int, number: int) -> Turn:
        import torch

        torch.manual_seed(number)
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in prompts])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
        with torch.inference_mode():
            out = self._model.generate(
                input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                min_new_tokens=num_new, max_new_tokens=num_new, pad_token_id=0, return_dict_in_generate=True,
                output_logits=True,
            )  # fmt: skip
            new = out.sequences[:, longest:]
            scores = torch.log_softmax(torch.stack(out.logits, dim=1).float(), -1).gather(2, new[..., None])[..., 0]
        return Turn(new.tolist(), scores.tolist(), 0)

    def end(self, num_episodes: int) -> None:
        """Nothing is kept."""


class Vllm:
    """vLLM in its offline form, with its automatic prefix cache; no server in between."""

    def __init__(self, folder: Path, num_episodes: int) -> None:
        from vllm import LLM

        self._llm = LLM(
            model=str(folder), dtype="float32", enforce_eager=True, enable_prefix_caching=True,
            max_model_len=MAX_LEN_TOKENS, max_num_seqs=num_episodes, disable_log_stats=True,
        )  # fmt: skip

    def turn(self, prompts: list[list[int]], num_new: int, number: int) -> Turn:
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=1.0, top_p=1.0, top_k=-1, max_tokens=num_new, min_tokens=num_new, ignore_eos=True, logprobs=0,
            detokenize=False,
        )  # fmt: skip
        outputs = self._llm.generate([{"prompt_token_ids": row} for row in prompts], sampling, use_tqdm=False)
        done = [output.outputs[0] for output in outputs]
        log_probs = [
            [step[token].logprob for step, token in zip(one.logprobs, one.token_ids, strict=True)] for one in done
        ]
        cached = sum(output.num_cached_tokens or 0 for output in outputs)
        return Turn([list(one.token_ids) for one in done], log_probs, cached)

    def end(self, num_episodes: int) -> None:
        """Its cache forgets by itself."""


# --- the worker -----------------------------------------------------------------------------------------------------


def play(side: Side, work: Workload, number: int) -> dict[str, Any]:
    """One round; also the first episode as it was sampled, for the comparison."""
    rows = work.prompts(number)
    num_prompt = num_cached = 0
    first: dict[str, list[Any]] = {"positions": [], "log_probs": []}
    begin = cpu_s()
    for turn in range(work.num_turns):
        num_prompt += sum(map(len, rows))
        found = side.turn(rows, work.new, number * work.num_turns + turn)
        num_cached += found.num_cached_tokens
        first["positions"] += range(len(rows[0]), len(rows[0]) + work.new)
        first["log_probs"] += found.log_probs[0]
        for episode, row in enumerate(rows):
            row += found.token_ids[episode] + work.observation(number, episode, turn)
    used_s = cpu_s() - begin
    side.end(len(rows))
    return {"cpu_s": used_s, "hit_rate": num_cached / num_prompt, "first": first | {"ids": rows[0]}}


def cpu_s() -> float:
    """Processor time of this process and all below it."""
    process = psutil.Process()
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def serve(name: str, folder: Path, work: Workload) -> None:
    """Answer each line of standard input, a round's number, with one line."""
    sides: dict[str, Callable[[Path, int], Side]] = {"embedded": Embedded, "generate": Generate, "vllm": Vllm}
    import torch

    torch.set_num_threads(1)
    side = sides[name](folder, work.num_episodes)
    for line in sys.stdin:
        found = play(side, work, int(line))
        peak = sum(one.memory_info().rss for one in (psutil.Process(), *psutil.Process().children(recursive=True)))
        print("@" + json.dumps(found | {"rss_bytes": peak}), flush=True)


# --- the parent -----------------------------------------------------------------------------------------------------


class Worker:
    """A worker process as the parent sees it."""

    def __init__(self, name: str, python: str, folder: Path, work: Workload, scratch: Path) -> None:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # or it takes a thread per core
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CACHE_ROOT": str(scratch),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        arguments = [python, __file__, "--worker", name, "--folder", str(folder)]
        arguments += ["--workload", json.dumps(asdict(work))]
        self._log = (scratch / f"{name}.log").open("w+")
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment
        )

    def ask(self, number: int) -> dict[str, Any]:
        """A round; lines that libraries print are passed over.

        Raises:
            RuntimeError: the process ended; the message is the last that it wrote.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(number, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("@"):
                answer: dict[str, Any] = json.loads(line[1:])
                return answer
        self._process.wait()
        self._log.seek(0)
        said = [line for line in self._log.read().splitlines() if line.strip()]
        raise RuntimeError(said[-1] if said else f"exit status {self._process.returncode}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait()
        self._log.close()


def worst_difference(folder: Path, first: dict[str, Any]) -> float:
    """Largest distance of the reported log-probabilities from those of a plain forward pass."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([first["ids"]])
    with torch.inference_mode():
        scores = torch.log_softmax(model(input_ids=ids).logits[0], -1)
    positions = torch.tensor(first["positions"])
    expected = scores[positions - 1].gather(1, ids[0, positions, None])[:, 0]
    return float((expected - torch.tensor(first["log_probs"])).abs().max())


def compare(pythons: dict[str, str], work: Workload, num_rounds: int) -> dict[str, Any]:
    """Rounds of all engines in turn; what cannot start is left out with the reason.

    Raises:
        SystemExit: ours is one that cannot start, or an engine reports wrong log-probabilities.
    """
    folder = Path(str(resources.files("repairgym") / "data" / "base"))
    result: dict[str, Any] = {"workload": asdict(work), "num_rounds": num_rounds, "left_out": {}}
    with tempfile.TemporaryDirectory() as scratch:
        workers: dict[str, Worker] = {}
        try:
            for name, python in pythons.items():
                _start(name, python, folder, work, Path(scratch), workers, result)
            if "embedded" not in workers:
                raise SystemExit(f"our engine does not start: {result['left_out']['embedded']}")
            rounds = []
            for number in range(1, num_rounds + 1):
                order = list(workers)[number % len(workers) :] + list(workers)[: number % len(workers)]
                rounds.append({name: workers[name].ask(number) for name in order})
        finally:
            for worker in workers.values():
                worker.close()
    for name in workers:
        seconds = [found[name]["cpu_s"] for found in rounds]
        result[name] |= {
            "tokens_per_cpu_s": statistics.median(work.num_new / one for one in seconds),
            "hit_rate": statistics.median(found[name]["hit_rate"] for found in rounds),
            "rss_bytes": max(found[name]["rss_bytes"] for found in rounds),
        }
        if name != "embedded":
            ratios = [found[name]["cpu_s"] / found["embedded"]["cpu_s"] for found in rounds]
            result[name] |= {"embedded_speedup": statistics.median(ratios), "embedded_speedups": ratios}
    return result


def _start(
    name: str,
    python: str,
    folder: Path,
    work: Workload,
    scratch: Path,
    workers: dict[str, Worker],
    result: dict[str, Any],
) -> None:
    """Start an engine, warm it with round 0 and check what it reports."""
    if not Path(python).exists():
        result["left_out"][name] = f"{python} is not there"
        return
    worker = Worker(name, python, folder, work, scratch)
    try:
        difference = worst_difference(folder, worker.ask(0)["first"])
    except RuntimeError as error:
        worker.close()
        result["left_out"][name] = str(error)
        return
    workers[name] = worker
    result[name] = {"worst_log_prob_difference": difference}
    if difference > TOLERANCE:
        raise SystemExit(f"{name}: log-probabilities are {difference:.2g} off a plain forward pass; nothing to compare")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small, two rounds: idle a minute, with vLLM two")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--vllm-python", default=".venv-vllm/bin/python", help="interpreter that has vllm")
    parser.add_argument("--rounds", type=int, default=0, help="measured rounds (default: 5, quick: 2)")
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--workload", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(options.worker, options.folder, Workload(**options.workload))
        return
    work = Workload(num_groups=2, num_turns=4, new=16) if options.quick else Workload()
    pythons = {"embedded": sys.executable, "vllm": options.vllm_python, "generate": sys.executable}
    result = compare(pythons, work, options.rounds or (2 if options.quick else 5))
    if options.json:
        print(json.dumps(result))
        return
    print(f"{'':<10}{'tokens/CPU-s':>14}{'hit rate':>10}{'RSS MiB':>9}{'embedded by':>13}{'log-prob error':>16}")
    for name in ENGINES:
        if name in result:
            found = result[name]
            ratio = f"{found['embedded_speedup']:.2f}x" if "embedded_speedup" in found else ""
            print(
                f"{name:<10}{found['tokens_per_cpu_s']:>14.0f}{found['hit_rate']:>10.0%}{found['rss_bytes'] >> 20:>9}"
                f"{ratio:>13}{found['worst_log_prob_difference']:>16.1e}"
            )
    for name, reason in result["left_out"].items():
        print(f"{name} was not measured: {reason}")


if __name__ == "__main__":
    main()
