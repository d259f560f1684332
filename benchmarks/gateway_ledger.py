"""Ledgers of external agents against the log of the server that sampled: every request of a run, token by token.

Starts a server with vLLM's routes in which the shell oracle plays the model, and which logs the prompt of each request
as it arrived, with the ids and log-probabilities of its answer. Answers are encoded in pieces that are cut at random,
so hardly any has the ids that the tokenizer gives its text: one that is encoded again somewhere differs from the log.
Then runs `repairgym rollout`, a process of its own, with the agent's configuration, and reads the ledgers back from
run.db. An answer whose episode was thrown away (invalid) is in the log alone. Ends with status 1 where a ledger holds
what was not sampled. Answers cut in pieces have more tokens than usual, so limits of tokens have to be wide.

    python benchmarks/gateway_ledger.py TASKS runs/log examples/agents/claude_code.toml select.num_tasks=20 \\
        rollout.pipeline.max_action_tokens=32768
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.config.agent import ExternalAgentConfig
from repairgym.config.commands import RolloutCommandConfig
from repairgym.config.loading import load_config
from repairgym.config.pipeline import PipelineConfig
from repairgym.inference.chat_template import Message
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Trajectory
from repairgym.rollout.store import RunStore
from repairgym.sandbox.cache import ExecutionCache
from repairgym.serving.models import Answer
from repairgym.serving.records import RequestError
from repairgym.serving.scripts import make_script
from repairgym.tasks.selection import select_tasks
from repairgym.tasks.store import TaskStore
from repairgym.testing.servers import HttpFake, HttpRequest, send

LAUNCH = "import sys; from repairgym.cli.main import main; main(sys.argv[1:])"
MAX_LEN_TOKENS = 1 << 20
MAX_PIECE_CHARS = 60
Sampled = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""Prompt, ids and log-probabilities (float32) of an answer."""


class LoggingServer(HttpFake):
    """A server whose model is a script over the conversation that it reads from the tokens of a prompt."""

    def __init__(self, renderer: ChatRenderer, answer: Answer) -> None:
        self._renderer, self._answer = renderer, answer
        self.log: list[Sampled] = []
        self.num_reencoded = 0
        """Answers whose ids are by chance those of the tokenizer."""

    async def answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        """Answer as vLLM does."""
        looks: dict[str, Any] = {
            "/version": {"version": "0.32.0"},
            "/v1/models": {"data": [{"id": "logged", "max_model_len": MAX_LEN_TOKENS}]},
        }
        if request.path == "/v1/completions" and request.body is not None:
            return await send(writer, 200, json.dumps(self._complete(request.body)).encode())
        found = request.path in looks
        return await send(writer, 200 if found else 404, json.dumps(looks.get(request.path, {})).encode())

    def _complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        prompt_ids = self._renderer.prompt_ids(prompt) if isinstance(prompt, str) else prompt
        stop_id = (body.get("stop_token_ids") or self._renderer.stop_token_ids)[0]
        messages = self._renderer.messages(prompt_ids) if isinstance(prompt, list) else []
        text = self._play(messages)
        ids = [*self._split_ids(text), stop_id]
        # The check asks for draws that fit their probabilities: certain ones do.
        log_probs = [float(np.float32(-(1 + place % 97) / 97)) if text else 0.0 for place in range(len(ids))]
        if messages:  # the client's own check sends a text, and ids that are no conversation
            self.log.append((tuple(prompt_ids), tuple(ids), tuple(log_probs)))
            self.num_reencoded += self._renderer.action_ids(text) == ids
        choice = {"text": text, "finish_reason": "stop", "token_ids": ids, "prompt_token_ids": prompt_ids}
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(ids)}
        return {"choices": [choice | {"logprobs": {"token_logprobs": log_probs}}], "usage": usage}

    def _play(self, messages: Sequence[Message]) -> str:
        """Return the script's answer; empty for a conversation about no task."""
        # OpenCode puts backslashes before the quotes of its prompt.
        asked = [message._replace(text=message.text.replace('\\"', '"')) for message in messages]
        try:
            return self._answer(asked, _tools(messages[0].text)) if messages else ""
        except RequestError:
            return ""

    def _split_ids(self, text: str) -> list[int]:
        draw, ids, place = random.Random(len(self.log)), list[int](), 0
        while place < len(text):
            end = place + draw.randint(1, MAX_PIECE_CHARS)
            ids += self._renderer.prompt_ids(text[place:end])
            place = end
        return ids


def _tools(system: str) -> list[Mapping[str, Any]]:
    """Read the schemas that the shipped chat template writes into the system message, one a line."""
    _, begin, rest = system.partition("<tools>\n")
    return [json.loads(line) for line in rest.partition("\n</tools>")[0].splitlines()] if begin else []


def ledger_answers(trajectory: Trajectory) -> list[Sampled]:
    """Read the answers of an episode from its ledger, each behind the tokens of its history."""
    ledger, answers = trajectory.ledger, []
    for turn in trajectory.turns:
        assert turn.action_span is not None
        own = slice(*turn.action_span)
        assert ledger.is_action[own].all()
        ids, log_probs = ledger.token_id[own].tolist(), ledger.log_prob[own].tolist()
        answers.append((tuple(ledger.prompt_of(turn.action_span)), tuple(ids), tuple(log_probs)))
    return answers


def compare(log: Sequence[Sampled], trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Count what both sides have, and what the agents did with the answers."""
    logged = Counter(log)
    stored = Counter(answer for trajectory in trajectories for answer in ledger_answers(trajectory))
    runs = [trajectory.agent_run for trajectory in trajectories if trajectory.agent_run is not None]
    return {
        "episodes": len(trajectories),
        "verdicts": dict(Counter(trajectory.verdict.kind.value for trajectory in trajectories)),
        "requests_logged": logged.total(),
        "answers_in_ledgers": stored.total(),
        "equal": (logged & stored).total(),
        "only_in_log": (logged - stored).total(),
        "only_in_ledgers": (stored - logged).total(),
        "sampled_tokens": sum(len(ids) for _, ids, _ in log),
        "action_tokens": sum(int(trajectory.ledger.is_action.sum()) for trajectory in trajectories),
        "forks": sum(run.num_forks for run in runs),
        "spliced": sum(run.num_spliced_answers for run in runs),
        "foreign": sum(run.num_foreign_answers for run in runs),
        "edits": [
            f"{each.task_id}: {edit}" for each in trajectories if each.agent_run for edit in each.agent_run.edits
        ],
    }


def main() -> None:
    """Run the agent and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    config = load_config(RolloutCommandConfig, arguments.config, arguments.overrides)
    agent = config.rollout.agent
    assert isinstance(agent, ExternalAgentConfig)
    tasks = select_tasks(TaskStore(arguments.tasks).load(), config.select).tasks
    renderer = ChatRenderer(load_tokenizer(shipped_base()))
    scaffold = make_pipeline(PipelineConfig(), ExecutionCache())
    server = LoggingServer(renderer, make_script("shell-oracle", tasks, scaffold, agent.shell))
    begun = time.monotonic()
    with server.in_thread() as url:
        command = [
            sys.executable,
            "-c",
            LAUNCH,
            "rollout",
            str(arguments.tasks),
            str(arguments.run),
            "--policy",
            "vllm",
        ]
        command += ["--config", str(arguments.config), f"endpoint.base_url={url}", "endpoint.model=logged"]
        subprocess.run([*command, *arguments.overrides], check=True, stdout=sys.stderr)
    with RunStore.open(arguments.run / "run.db") as store:
        counts = compare(server.log, list(store.trajectories()))
    counts |= {"answers_by_the_tokenizer": server.num_reencoded, "seconds": round(time.monotonic() - begun)}
    print(json.dumps(counts, indent=1, ensure_ascii=False))
    sys.exit(int(counts["only_in_ledgers"] > 0 or not counts["equal"]))


if __name__ == "__main__":
    main()
