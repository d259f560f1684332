"""Embedded engine against `transformers.generate` in one multi-turn workload, as a ratio of tokens per CPU-second.

Both get the same prompts (groups of members that share a prompt) and the same numbers of new and observed tokens per
turn, both return log-probabilities, both run on one thread of this process. `generate` computes the whole conversation
again each turn; that is what an agent loop over it costs.

    python benchmarks/engine.py --quick --json
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from mendwright.config.models import EngineConfig, ModelConfig
from mendwright.engine.core import Engine
from mendwright.models.loading import create_model

MODEL = ModelConfig(max_len_tokens=2048)


@dataclass(frozen=True)
class Workload:
    """An agent-like workload; lengths in tokens."""

    num_groups: int = 4
    group_size: int = 8
    prompt: int = 250
    num_turns: int = 5
    new: int = 16
    observed: int = 40

    @property
    def num_new(self) -> int:
        return self.num_groups * self.group_size * self.num_turns * self.new

    def prompts(self) -> list[list[int]]:
        """One prompt per episode, equal within a group."""
        starts = [
            np.random.default_rng(group).integers(5, MODEL.vocab_size, self.prompt).tolist()
            for group in range(self.num_groups)
        ]
        return [list(start) for start in starts for _ in range(self.group_size)]

    def observation(self, episode: int, turn: int) -> list[int]:
        generator = np.random.default_rng([episode, turn])
        ids: list[int] = generator.integers(5, MODEL.vocab_size, self.observed).tolist()
        return ids


def run_engine(model: PreTrainedModel, work: Workload) -> Engine:
    engine = Engine(model, EngineConfig(num_slots=work.num_groups * work.group_size, max_len_tokens=2048))
    prompts = work.prompts()
    for turn in range(work.num_turns):
        requests = [
            engine.submit(f"s{episode}", prompt, max_tokens=work.new, stop_token_ids=(), seed=episode)
            for episode, prompt in enumerate(prompts)
        ]
        while engine.has_work:
            engine.step()
        for episode, request in enumerate(requests):
            prompts[episode] += request.token_ids + work.observation(episode, turn)
    return engine


def run_generate(model: PreTrainedModel, work: Workload) -> None:
    prompts = work.prompts()
    for turn in range(work.num_turns):
        ids = torch.tensor(prompts)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=work.new,
            min_new_tokens=work.new,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        new = out.sequences[:, ids.shape[1] :]
        logits = torch.stack(out.logits, dim=1).float()
        torch.log_softmax(logits, -1).gather(2, new[..., None])
        for episode, row in enumerate(new.tolist()):
            prompts[episode] += row + work.observation(episode, turn)


def cpu_seconds(function: object, *arguments: object) -> tuple[float, object]:
    begin = time.process_time()
    result = function(*arguments)  # type: ignore[operator]
    return time.process_time() - begin, result


def measure(work: Workload, repeats: int) -> dict[str, float]:
    engine_s, generate_s = [], []
    for _ in range(repeats):
        seconds, engine = cpu_seconds(run_engine, create_model(MODEL), work)
        engine_s.append(seconds)
        plain = create_model(MODEL)
        plain.set_attn_implementation("sdpa")
        generate_s.append(cpu_seconds(run_generate, plain.eval(), work)[0])
    statistics = engine.statistics.as_metrics()  # type: ignore[attr-defined]
    return {
        "engine_tokens_per_cpu_s": work.num_new / min(engine_s),
        "generate_tokens_per_cpu_s": work.num_new / min(generate_s),
        "ratio": min(generate_s) / min(engine_s),
        **statistics,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small repeat, under a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    work = Workload(num_groups=2, num_turns=4) if options.quick else Workload()
    measure(Workload(num_groups=1, group_size=2, num_turns=1), 1)
    result = measure(work, 1 if options.quick else 3)
    if options.json:
        print(json.dumps(result))
        return
    print(f"engine    {result['engine_tokens_per_cpu_s']:8.0f} tokens per CPU-second")
    print(f"generate  {result['generate_tokens_per_cpu_s']:8.0f} tokens per CPU-second")
    print(f"ratio     {result['ratio']:8.2f}")


if __name__ == "__main__":
    main()
