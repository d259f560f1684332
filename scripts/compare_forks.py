"""Compare three ways to one state on real tasks: the episode itself, the replay of its first turns, and a fork of it.

    python scripts/compare_forks.py TASKS --tasks 20

For each pipeline and task one episode runs to its end, and its state is kept behind each turn. Then branches with its
seed begin behind some of its turns, once with a fork and once with a replay; each has to end like the episode: the same
token ids and log-probabilities, the same states of turns, stop reason, files and verdict. The compact pipeline is
played by the shipped base; in the others a script changes files, shell variables, functions, folders, links and modes,
`/tmp` and `/dev/shm`, and prints all of it at the end. Prints one JSON object and fails if a branch differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repairgym.agent.conversation import SEED_STRIDE
from repairgym.agent.formats import Action
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.agent.recording import normalize
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import FullConfig, PaperBConfig, PipelineConfig, SimplifiedConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.inference.base import Generation, Policy, SamplingParams
from repairgym.inference.embedded import EmbeddedPolicy
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob, Prefix
from repairgym.rollout.runner import Runner
from repairgym.sandbox.cache import ExecutionCache
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore

PIPELINES: dict[str, PipelineConfig] = {
    "compact": PipelineConfig(max_turns=12, max_action_tokens=24, max_len_tokens=1536),
    "paper_b": PaperBConfig(max_turns=20),
    "simplified": SimplifiedConfig(max_turns=20),
    "full": FullConfig(max_turns=4, max_attempts=3, max_retries=1),
}
SHELL = (
    "mkdir -p d && cd d && export X={seed} && echo {seed} > f.txt && echo t{seed} > /tmp/t.txt",
    "f() {{ echo fn $X $1; }}; ln -s f.txt link; chmod 600 f.txt; echo shm{seed} > /dev/shm/s; cd ..",
    "f again; umask 027; pwd; cat /tmp/t.txt; echo more >> d/f.txt; set -o pipefail",
    "cd d; false; f $?; rm link; mkdir -m 700 e; printf 'a\\0b' > e/binary; echo $X > /tmp/x",
)
PROBE = (
    "pwd; f end; umask; set -o | grep pipefail; cat /tmp/t.txt /tmp/x /dev/shm/s; cd /testbed; "
    "find d -printf '%M %p\\n' | sort; stat -c '%s %n' d/f.txt d/e/binary; cat d/f.txt; od -c d/e/binary; "
    "sha256sum d/f.txt {path}; git status --porcelain 2>&1 | head -5"
)
"""Without the sizes of folders: on an overlay they count entries that were deleted."""


def script(name: str, task: Task, seed: int) -> list[tuple[str, Any]]:
    """Actions of one pipeline on ``task``."""
    path = next(iter(task.gold_files))
    commands = [command.format(seed=seed) for command in SHELL]
    probe = PROBE.format(path=path)
    if name == "paper_b":
        edit = f"1:1 << 'EOF'\n# {seed}\nEOF"
        middle = [("open", path), ("edit", edit), ("scroll_down", ""), ("edit", edit.replace("1:1", "2:2"))]
        mixed = [part for pair in zip([("shell", c) for c in commands], middle, strict=True) for part in pair]
        return [*mixed, ("shell", probe), ("submit", "")]
    text = f"# {seed}\n{task.base_files.get(path) or ''}"
    writes = [("write_file", {"path": path, "content": text * number}) for number in (1, 1, 1)]
    shell = [("run_sh", {"command": command}) for command in commands]
    return [
        shell[0], writes[0], shell[1], ("validate_and_build", {}), shell[2], ("read_file", {"path": path}), shell[3],
        ("run_sh", {"command": probe}), ("validate_and_build", {}),
    ]  # fmt: skip


class Script:
    """A policy that says what the script of a task says at this turn, with log-probabilities drawn from the prompt."""

    id = "script"

    def __init__(self, renderer: ChatRenderer, texts: Sequence[str], seed: int) -> None:
        self._renderer, self._texts, self._seed = renderer, texts, seed

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        turn = (sampling.seed - self._seed * SEED_STRIDE) % len(self._texts)
        ids = self._renderer.action_ids(self._texts[turn])
        drawn = random.Random(f"{sampling.seed} {len(prompt_ids)}")
        log_probs = tuple(float(np.float32(-drawn.random())) for _ in ids)
        return Generation(token_ids=tuple(ids), log_probs=log_probs, is_stopped=True, policy_version=0)

    async def end_session(self, session_id: str) -> None:
        pass


def other_observations(parent: Trajectory, branch: Trajectory) -> list[str]:
    """Return both texts of the first observation that differs."""
    for one, other in zip(parent.turns, branch.turns, strict=False):
        if normalize(one.observation) != normalize(other.observation):
            return [f"{one.action[:200]!r}: {one.observation[:600]!r} and {other.observation[:600]!r}"]
    return []


def differences(parent: Trajectory, branch: Trajectory) -> list[str]:
    """Name what differs between an episode and its branch; times, temporary names and addresses may."""
    num_tokens = parent.turns[branch.parent.num_turns].action_span[0] if branch.parent else 0
    same = {
        "valid": branch.verdict.is_valid,
        "context": not branch.ledger.is_action[:num_tokens].any(),
        "actions": [t.action for t in branch.turns] == [t.action for t in parent.turns],
        "observations": not (seen := other_observations(parent, branch)),
        "states": [t.state for t in branch.turns] == [t.state for t in parent.turns],
        "stop": branch.stop_reason is parent.stop_reason,
        "attempts": branch.attempts == parent.attempts,
        "files": branch.final_files == parent.final_files,
        "patch": branch.final_patch == parent.final_patch,
        "verdict": branch.verdict.kind is parent.verdict.kind,
    }
    return [name for name, is_same in same.items() if not is_same] + seen


def bytes_differ(parent: Trajectory, branch: Trajectory) -> bool:
    """Compare token ids, and log-probabilities of the branch's own tokens, bit for bit."""
    num_tokens = parent.turns[branch.parent.num_turns].action_span[0] if branch.parent else 0
    is_same = branch.ledger.token_id.tobytes() == parent.ledger.token_id.tobytes()
    return not (
        is_same and branch.ledger.log_prob[num_tokens:].tobytes() == parent.ledger.log_prob[num_tokens:].tobytes()
    )


async def compare(name: str, tasks: Sequence[Task], num_points: int, seed: int) -> dict[str, Any]:
    """Play one pipeline on ``tasks``."""
    config = PIPELINES[name]
    engine = EngineConfig(num_slots=8, max_len_tokens=1536, is_batch_invariant=True)
    rollout = RolloutConfig(pipeline=config, engine=engine, max_in_flight=8)
    renderer, store = ChatRenderer(load_tokenizer(shipped_base())), LayerStore(config=rollout.layers)
    backend = create_backend(rollout.sandbox)
    find_layers = lambda task: task_layers(task, store)  # noqa: E731
    runner = Runner(rollout, backend, find_layers, renderer, store)
    write = make_pipeline(config, ExecutionCache(), renderer.call_form).format.write
    model = EmbeddedPolicy.from_folder(shipped_base(), engine) if name == "compact" else None
    counts, problems, generator = Counter[str](), list[str](), random.Random(seed)
    for number, task in enumerate(tasks):
        own_seed = seed * 1000 + number
        texts = [] if model else [write(Action(*action)) for action in script(name, task, own_seed)]
        policy: Policy = model or Script(renderer, texts, own_seed)
        job = EpisodeJob(f"c/0/{task.id}#0", f"c/0/{task.id}", task.id, own_seed, is_kept=True)
        parent = await runner.run_job(job, task, policy, 1.0)
        counts["episodes"] += 1
        counts["turns"] += len(parent.turns)
        points = range(1, len(parent.turns))
        for num_turns in sorted(generator.sample(points, min(num_points, len(points)))):
            branch = EpisodeJob(
                f"{job.group_id}#{num_turns}", job.group_id, task.id, own_seed, Prefix(parent, num_turns)
            )
            for way, group_id in (
                ("fork", job.group_id),
                ("replay", f"{job.group_id}-replay"),
            ):  # nothing is kept of it
                began = time.monotonic()
                one = replace(branch, trajectory_id=f"{branch.trajectory_id}-{way}", group_id=group_id)
                ended = await runner.run_job(one, task, policy, 1.0)
                counts[f"{way}s"] += 1
                counts[f"{way}_ms"] += round(1000 * (time.monotonic() - began - ended.durations_s.get("grade", 0.0)))
                counts[f"{way}s_with_other_bytes"] += bytes_differ(parent, ended)
                if found := differences(parent, ended):
                    place = f"{name} {task.id} {way} behind turn {num_turns}"
                    problems.append(f"{place}: {', '.join(found)}; {ended.verdict.reason[:200]}")
    counters = runner.counters()
    counts["forked"] = int(counters["turns/num_forked_episodes"])
    counts["executed_again"] = int(counters["turns/num_executed_again"])
    await runner.close()
    await backend.close()
    if model:
        await model.close()
    return {**counts, "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Folder of tasks.")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--skip", type=int, default=0, help="Leave out the first of them, to go on elsewhere.")
    parser.add_argument("--points", type=int, default=2, help="Turns of each episode to branch behind.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pipeline", nargs="+", choices=list(PIPELINES), default=list(PIPELINES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = sorted(TaskStore(arguments.folder).load_certified(), key=lambda task: task.id)
    tasks = random.Random(arguments.seed).sample(known, arguments.tasks)[arguments.skip :]
    result: dict[str, Any] = {"load": os.getloadavg()[0]}
    for name in arguments.pipeline:
        result[name] = asyncio.run(compare(name, tasks, arguments.points, arguments.seed))
        print(name, result[name], file=sys.stderr, flush=True)
    print(json.dumps(result, indent=2))
    sys.exit(any(result[name]["problems"] for name in arguments.pipeline))


if __name__ == "__main__":
    main()
