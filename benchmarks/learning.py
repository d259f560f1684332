"""Whole RL steps, ours beside TRL's GRPOTrainer: the shipped base, equal prompts, groups of eight, multi-turn
histories.

Two processes take turns, step by step: ours (this interpreter) and TRL's (`--trl-python`, by default the environment
that `make parity` builds). Every step is a rollout (each turn samples a fixed number of tokens, then the environment
appends an observation) and one update with the same loss: DAPO over action tokens, advantages R - mean. First both
learn from the same recorded rollouts: loss and gradient norm must agree, or there is nothing to compare. Times are of
the processor, one thread per process, so a busy machine does not change the ratios much.

    python benchmarks/learning.py --quick --json
    python benchmarks/learning.py --trl-python .venv-parity/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

GROUP_SIZE, NUM_TURNS, ACTION_TOKENS, OBSERVATION_TOKENS = 8, 3, 16, 40
LEARNING_RATE = 1e-5
FIRST_ID, LAST_ID = 300, 2000
"""Prompts and observations are drawn from these; special tokens lie below."""
Rollout = dict[str, list[Any]]
"""``prompt_ids``, ``completion_ids``, ``logprobs`` and ``env_mask`` of every sequence, as TRL names them."""


def make_prompts(num_prompts: int) -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [
        generator.integers(FIRST_ID, LAST_ID, int(generator.integers(180, 220))).tolist() for _ in range(num_prompts)
    ]


def observation(number: int, turn: int) -> list[int]:
    """What the environment says to sequence ``number`` after ``turn``."""
    return np.random.default_rng([number, turn]).integers(FIRST_ID, LAST_ID, OBSERVATION_TOKENS).tolist()


def reward_of(completion_ids: list[int]) -> float:
    """Share of even tokens in the first action: anything that differs within a group."""
    return sum(token % 2 == 0 for token in completion_ids[:ACTION_TOKENS]) / ACTION_TOKENS


def matmul_flops_per_s() -> float:
    """What this processor reaches in a float32 product, one thread: the peak that utilisation is measured by."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    times = []
    for _ in range(6):
        begin = time.process_time()
        left @ right
        times.append(time.process_time() - begin)
    return 2 * 1024**3 / min(times)


def train_flops(config: Any, lengths: list[int], num_tokens: int) -> float:
    """Forward and backward: 6 per weight and token that is computed, and attention of each whole sequence."""
    head_dim = config.head_dim * config.num_attention_heads
    per_layer = config.hidden_size * (2 * head_dim + 2 * config.head_dim * config.num_key_value_heads)
    per_layer += 3 * config.hidden_size * config.intermediate_size
    attention = sum(6 * length * length * head_dim for length in lengths)
    return 6.0 * num_tokens * config.num_hidden_layers * per_layer + config.num_hidden_layers * attention


# --- ours ----------------------------------------------------------------------------------------------------------


class Ours:
    """Our engine and learner."""

    def __init__(self, folder: Path, prompts: list[list[int]]) -> None:
        from repairgym.config.algorithms import DapoLossConfig, DrGrpoAdvantageConfig
        from repairgym.config.learning import AlgorithmConfig, OptimizerConfig
        from repairgym.config.models import EngineConfig
        from repairgym.inference.engine.core import Engine
        from repairgym.inference.loading import load_model
        from repairgym.learning.rl import PolicyTrainer

        self.prompts = prompts
        self.config = AlgorithmConfig(
            loss=DapoLossConfig(eps_high=0.2),
            advantage=DrGrpoAdvantageConfig(),
            optimizer=OptimizerConfig(learning_rate=LEARNING_RATE, weight_decay=0.0),
            batch_size=len(prompts) * GROUP_SIZE,
        )
        self.model = load_model(folder)
        self.trainer = PolicyTrainer(self.model, self.config)
        self.engine = Engine(load_model(folder), EngineConfig(num_slots=len(prompts) * GROUP_SIZE))
        self.num_steps = 0

    def rollout(self) -> Rollout:
        rows = [list(prompt) for prompt in self.prompts for _ in range(GROUP_SIZE)]
        found: Rollout = {"prompt_ids": [list(row) for row in rows], "env_mask": [[] for _ in rows]}
        found |= {"completion_ids": [[] for _ in rows], "logprobs": [[] for _ in rows]}
        for turn in range(NUM_TURNS):
            requests = [
                self.engine.submit(
                    str(number), row, max_tokens=ACTION_TOKENS, stop_token_ids=(), seed=self.num_steps * 10_000 + number
                )
                for number, row in enumerate(rows)
            ]
            while self.engine.has_work:
                self.engine.step()
            for number, request in enumerate(requests):
                said = observation(number, turn) if turn + 1 < NUM_TURNS else []
                rows[number] += request.token_ids + said
                found["completion_ids"][number] += request.token_ids + said
                found["logprobs"][number] += list(request.log_probs) + [0.0] * len(said)
                found["env_mask"][number] += [1] * len(request.token_ids) + [0] * len(said)
        for number in range(len(rows)):
            self.engine.end_session(str(number))
        return found

    def update(self, found: Rollout) -> dict[str, float]:
        from repairgym.learning.advantages import Outcome, estimate_advantages
        from repairgym.learning.samples import Sample

        rewards = [reward_of(ids) for ids in found["completion_ids"]]
        groups = [
            [Outcome(reward, 1) for reward in rewards[at : at + GROUP_SIZE]]
            for at in range(0, len(rewards), GROUP_SIZE)
        ]
        advantages = [value for group in estimate_advantages(groups, self.config.advantage) for value in group.values]
        samples = []
        for number, (prompt, completion) in enumerate(zip(found["prompt_ids"], found["completion_ids"], strict=True)):
            start = [0.0] * len(prompt)
            weight = np.array(start + found["env_mask"][number], np.float32)
            old = np.array(start + found["logprobs"][number], np.float32)
            ids = np.array(prompt + completion, np.int32)
            samples.append(Sample(ids, weight, old, advantages[number], f"g{number // GROUP_SIZE}"))
        metrics = self.trainer.update(samples)
        self.num_steps += 1
        self.engine.load_state(self.model.state_dict(), self.num_steps)
        lengths = [len(sample) for sample in samples]
        return {
            "loss": metrics["train/loss"],
            "grad_norm": metrics["optim/grad_norm"],
            "flops": train_flops(self.model.config, lengths, int(metrics["train/num_tokens"])),
        }


def serve_ours(folder: Path, prompts: list[list[int]], commands: Iterator[dict[str, Any]]) -> None:
    side = Ours(folder, prompts)
    for command in commands:
        begin = time.process_time()
        recorded = command.get("recorded")
        found = recorded or side.rollout()
        sampled = time.process_time()
        metrics = side.update(found)
        reply(found if command.get("is_recording") else None, begin, sampled, found, metrics)


# --- TRL -----------------------------------------------------------------------------------------------------------


def serve_trl(folder: Path, prompts: list[list[int]], commands: Iterator[dict[str, Any]]) -> None:
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    state: dict[str, Any] = {}

    def rollout(numbers: list[str], trainer: GRPOTrainer) -> Rollout:
        if state["command"].get("recorded"):
            state["sampled"] = time.process_time()
            state["found"] = state["command"]["recorded"]
            return dict(state["found"])
        model, pad = trainer.model, trainer.processing_class.pad_token_id
        rows = [list(prompts[int(number)]) for number in numbers]
        found: Rollout = {"prompt_ids": [list(row) for row in rows], "env_mask": [[] for _ in rows]}
        found |= {"completion_ids": [[] for _ in rows], "logprobs": [[] for _ in rows]}
        model.eval()
        for turn in range(NUM_TURNS):
            longest = max(map(len, rows))
            ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
            mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
            with torch.no_grad():
                out = model.generate(
                    input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                    min_new_tokens=ACTION_TOKENS, max_new_tokens=ACTION_TOKENS, pad_token_id=pad,
                    return_dict_in_generate=True, output_logits=True,
                )  # fmt: skip
            new = out.sequences[:, longest:]
            scores = torch.log_softmax(torch.stack(out.logits, dim=1), -1).gather(2, new[..., None])[..., 0]
            for number, row in enumerate(rows):
                said = observation(number, turn) if turn + 1 < NUM_TURNS else []
                row += new[number].tolist() + said
                found["completion_ids"][number] += new[number].tolist() + said
                found["logprobs"][number] += scores[number].tolist() + [0.0] * len(said)
                found["env_mask"][number] += [1] * ACTION_TOKENS + [0] * len(said)
        model.train()
        state["sampled"], state["found"] = time.process_time(), found
        return dict(found)

    class Turns(TrainerCallback):
        """Waits for a command before each step and answers after it."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            state["command"] = next(commands, None)
            if state["command"] is None:
                raise SystemExit
            state["begin"] = time.process_time()

        def on_log(self, args: Any, trainer_state: Any, control: Any, logs: dict[str, float], **__: Any) -> None:
            if "grad_norm" not in logs:
                return
            found = state["found"]
            lengths = [len(p) + len(c) for p, c in zip(found["prompt_ids"], found["completion_ids"], strict=True)]
            flops = train_flops(trainer.model.config, lengths, sum(lengths))
            metrics = {"loss": logs["loss"], "grad_norm": logs["grad_norm"], "flops": flops}
            reply(None, state["begin"], state["sampled"], found, metrics)

    rows = len(prompts) * GROUP_SIZE
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out, use_cpu=True, bf16=False, learning_rate=LEARNING_RATE, weight_decay=0.0, max_grad_norm=1.0,
            lr_scheduler_type="constant", per_device_train_batch_size=rows, num_generations=GROUP_SIZE,
            max_steps=10_000, beta=0.0, epsilon=0.2, loss_type="dapo", scale_rewards="none", temperature=1.0,
            shuffle_dataset=False, max_completion_length=1024, logging_steps=1, report_to="none", save_strategy="no",
            disable_tqdm=True, gradient_checkpointing=False,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            reward_funcs=lambda completion_ids, **_: [reward_of(list(ids)) for ids in completion_ids],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [str(number) for number in range(len(prompts))]}),
            processing_class=AutoTokenizer.from_pretrained(folder),
            rollout_func=rollout,
            callbacks=[Turns()],
        )
        trainer.train()


# --- both ----------------------------------------------------------------------------------------------------------


def reply(recorded: Rollout | None, begin: float, sampled: float, found: Rollout, metrics: dict[str, float]) -> None:
    """One line to the parent: seconds of both halves, tokens, metrics, memory."""
    line = {
        "rollout_s": sampled - begin,
        "train_s": time.process_time() - sampled,
        "num_sampled": sum(sum(mask) for mask in found["env_mask"]),
        "num_trained": sum(len(p) + len(c) for p, c in zip(found["prompt_ids"], found["completion_ids"], strict=True)),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "recorded": recorded,
        **metrics,
    }
    print("@" + json.dumps(line), flush=True)


class Side:
    """A worker process."""

    def __init__(self, name: str, python: str, folder: Path, num_prompts: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        arguments = [python, __file__, "--worker", name, "--folder", str(folder), "--prompts", str(num_prompts)]
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, **command: Any) -> dict[str, Any]:
        """One step; lines that libraries print are passed over."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("@"):
                answer: dict[str, Any] = json.loads(line[1:])
                return answer
        raise SystemExit(f"a worker ended with exit status {self._process.wait()}")

    def close(self) -> None:
        """End of the commands; the process leaves."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait()


def compare(trl_python: str | None, num_prompts: int, num_rounds: int) -> dict[str, Any]:
    folder = Path(str(resources.files("repairgym") / "data" / "base"))
    sides = {"ours": Side("ours", sys.executable, folder, num_prompts)}
    if trl_python:
        sides["trl"] = Side("trl", trl_python, folder, num_prompts)
    try:
        first = sides["ours"].ask(is_recording=True)
        checks = {"ours": first} | {n: s.ask(recorded=first["recorded"]) for n, s in sides.items() if n != "ours"}
        for name in sides:
            sides[name].ask()  # warm
        rounds = [{name: side.ask() for name, side in sides.items()} for _ in range(num_rounds)]
    finally:
        for side in sides.values():
            side.close()
    peak = matmul_flops_per_s()
    result: dict[str, Any] = {name: _summary([found[name] for found in rounds], peak) for name in sides}
    result["num_prompts"], result["group_size"], result["num_rounds"] = num_prompts, GROUP_SIZE, num_rounds
    if "trl" in sides:
        norms = [checks[name]["grad_norm"] for name in ("ours", "trl")]
        result["grad_norm_on_equal_rollouts"] = norms
        if abs(norms[0] - norms[1]) > 2e-3 * norms[1]:
            raise SystemExit(f"gradient norms on equal rollouts differ: {norms}; the two do not learn the same")
        for part in ("step_s", "rollout_s", "train_s"):
            ratios = [_seconds(found["trl"], part) / _seconds(found["ours"], part) for found in rounds]
            result[f"speedup_{part.removesuffix('_s')}"] = statistics.median(ratios)
    return result


def _seconds(found: dict[str, Any], part: str) -> float:
    return float(found["rollout_s"] + found["train_s"] if part == "step_s" else found[part])


def _summary(found: list[dict[str, Any]], peak: float) -> dict[str, float]:
    def median(values: Iterator[float]) -> float:
        return statistics.median(values)

    return {
        "step_s": median(_seconds(one, "step_s") for one in found),
        "rollout_tokens_per_s": median(one["num_sampled"] / one["rollout_s"] for one in found),
        "train_tokens_per_s": median(one["num_trained"] / one["train_s"] for one in found),
        "mfu": median(one["flops"] / one["train_s"] / peak for one in found),
        "peak_bytes": max(one["peak_bytes"] for one in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 prompts, 3 steps of each, under a minute when idle")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--trl-python", default=".venv-parity/bin/python", help="interpreter that has trl")
    parser.add_argument("--rounds", type=int, default=0, help="measured steps of each (default: 7, quick: 3)")
    parser.add_argument("--worker", choices=("ours", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--prompts", type=int, default=0, help="problems per step (default: 8, quick: 2)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.worker:
        serve = serve_ours if options.worker == "ours" else serve_trl
        serve(options.folder, make_prompts(options.prompts), (json.loads(line) for line in sys.stdin))
        return
    trl_python = options.trl_python if Path(options.trl_python).exists() else None
    num_prompts = options.prompts or (2 if options.quick else 8)
    result = compare(trl_python, num_prompts, options.rounds or (3 if options.quick else 7))
    if options.json:
        print(json.dumps(result))
        return
    columns = ("step_s", "rollout_tokens_per_s", "train_tokens_per_s", "mfu", "peak_bytes")
    print(f"{'':<6}" + "".join(f"{name:>22}" for name in columns))
    for name in ("ours", "trl"):
        if name in result:
            print(f"{name:<6}" + "".join(f"{result[name][column]:>22.3g}" for column in columns))
    if trl_python is None:
        print(f"TRL was not measured: {options.trl_python} is not there; `make parity` builds it")
        return
    ratios = ", ".join(f"{part} {result[f'speedup_{part}']:.2f}" for part in ("step", "rollout", "train"))
    print(
        f"TRL's processor time over ours: {ratios}; gradient norms on equal rollouts "
        f"{result['grad_norm_on_equal_rollouts'][0]:.5f} and {result['grad_norm_on_equal_rollouts'][1]:.5f}"
    )


if __name__ == "__main__":
    main()
