r"""Trains with TRL's environments (`environment_factory`) on tasks of our OpenEnv server, through OpenEnv's own client.

    pip install 'trl>=1.16,<1.17' openenv     # an environment of its own; nothing of this project is imported
    repairgym serve-tasks openenv tasks port=8011 'rollout.pipeline.tools=["edit","undo","test","submit"]' \
        rollout.pipeline.is_place_opened=true rollout.pipeline.max_turns=6
    python examples/trl_openenv.py MODEL out http://127.0.0.1:8011 --steps 3

MODEL is a folder of a causal LM that writes one action of the compact pipeline per message, such as the shipped base
(`python -c "import repairgym; print(repairgym.shipped_base())"`). TRL encodes, samples, and runs the loop of calls;
sandboxes, tools and rewards are the server's. docs/howto/trl.md has a bridge that keeps exact tokens instead.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from openenv.core.generic_client import GenericEnvClient
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + ('user' if message['role'] == 'tool' else message['role']) + '\n' + message['content'] -}}
{%- for call in message['tool_calls'] or [] %}{{- call['function'] | tojson -}}{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""
"""Tools are not listed: the model knows them, and writes actions as text, which `parse_response` turns into calls."""


class ActionTokenizer(PreTrainedTokenizerFast):
    """Reads each answer as one call of the tool `act`."""

    def parse_response(self, response: Any, *_: Any, **__: Any) -> dict[str, Any]:
        text = self.decode(response, skip_special_tokens=True)
        call = {"type": "function", "function": {"name": "act", "arguments": {"action": text}}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}


class RepairEnvironment:
    """One rollout: an episode of the server over a connection of its own."""

    url = ""

    def __init__(self) -> None:
        self._client = GenericEnvClient(base_url=self.url, message_timeout_s=600).sync()
        self._client.connect()
        self._reward: float | None = 0.0

    def reset(self, task_id: str, **_: Any) -> str:
        """Begin the episode of a task."""
        self._reward, self._is_done = 0.0, False
        return self._client.reset(task_id=task_id).observation["text"]

    def act(self, action: str) -> str:
        """Execute one action.

        Args:
            action: Name of a tool and its argument, e.g. `edit < => <= @12`.

        Returns:
            What the tool says.
        """
        if self._is_done:
            raise ValueError("the episode has ended")
        name, _, argument = action.strip().partition(" ")
        arguments = {"argument": argument} if argument else {}
        step = self._client.step({"type": "call_tool", "tool_name": name, "arguments": arguments})
        if step.done:
            self._reward, self._is_done = step.reward, True
        return step.observation["result"] or str(step.observation["error"])

    def get_reward(self) -> float | None:
        """Return the verdict; 0 for an episode that did not end, None where the infrastructure failed."""
        return self._reward


def train(arguments: argparse.Namespace, task_ids: list[str]) -> GRPOTrainer:
    RepairEnvironment.url = arguments.url
    tokenizer = ActionTokenizer.from_pretrained(arguments.model)
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = {}  # `parse_response` needs none; TRL looks for it
    rows = [{"prompt": [{"role": "user", "content": ""}], "task_id": task_id} for task_id in task_ids]
    trainer = GRPOTrainer(
        model=str(arguments.model),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        environment_factory=RepairEnvironment,
        args=GRPOConfig(
            output_dir=str(arguments.out),
            max_steps=arguments.steps,
            per_device_train_batch_size=len(task_ids) * arguments.group_size,
            num_generations=arguments.group_size,
            max_completion_length=600,
            max_tool_calling_iterations=arguments.max_actions,
            learning_rate=2e-5,
            scale_rewards="none",
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            seed=arguments.seed,
        ),
    )
    trainer.train()
    trainer.save_model()
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--num-tasks", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-actions", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    trainer = train(arguments, served(arguments.url)[: arguments.num_tasks])
    steps = [entry for entry in trainer.state.log_history if "reward" in entry]
    for number, entry in enumerate(steps, 1):
        shown = {name: entry[name] for name in ("loss", "grad_norm", "reward", "reward_std", "tools/call_frequency")}
        print(f"step {number}: {json.dumps(shown)}", flush=True)
    before = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).state_dict()
    after = AutoModelForCausalLM.from_pretrained(arguments.out, dtype=torch.float32).state_dict()
    changed = max(float((after[name] - before[name]).abs().max()) for name in before)
    print(f"weights changed by at most {changed:.2e}")
    if len(steps) != arguments.steps or not all(math.isfinite(entry["loss"]) for entry in steps) or not changed:
        raise SystemExit("training failed: steps are missing, a loss is not finite, or no weight has changed")


def served(url: str) -> list[str]:
    from urllib.request import urlopen

    return [task["id"] for task in json.load(urlopen(f"{url}/tasks"))]


if __name__ == "__main__":
    main()
