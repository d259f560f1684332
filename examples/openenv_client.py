"""A scripted policy on our tasks through OpenEnv's own client: it reads the tools, writes the repair, submits.

    pip install openenv
    repairgym serve-tasks openenv tasks --run runs/openenv port=8010 select.num_tasks=50
    python examples/openenv_client.py tasks http://127.0.0.1:8010

Prints one line per task and ends with status 1 unless all are repaired. With ``--idle`` it submits without a repair.
Needs nothing of this project: it asks the server for its tasks and reads their repairs in the task file.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from openenv.core.generic_client import GenericEnvClient


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "call_tool", "tool_name": name, "arguments": arguments}


async def repair(env: GenericEnvClient, task: dict[str, Any], is_idle: bool) -> float | None:
    opened = await env.reset(task_id=task["id"], seed=1)
    assert task["issue"] in opened.observation["text"]
    assert not opened.done
    for path, text in ({} if is_idle else task["gold_files"]).items():
        step = await env.step(
            call("shell", command=f"rm {path}") if text is None else call("write_file", path=path, content=text)
        )
        assert step.observation["error"] is None
        assert step.reward is None
    ended = await env.step(call("submit"))
    state = await env.state()
    assert ended.done
    assert state["is_done"]
    return ended.reward


async def repair_all(url: str, waiting: list[dict[str, Any]], num_concurrent: int, is_idle: bool) -> list[float | None]:
    rewards: list[float | None] = []

    async def work() -> None:
        async with GenericEnvClient(base_url=url, message_timeout_s=600) as env:
            while waiting:
                task = waiting.pop()
                rewards.append(await repair(env, task, is_idle))
                print(task["id"], rewards[-1], flush=True)

    await asyncio.gather(*(work() for _ in range(num_concurrent)))
    return rewards


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("url")
    parser.add_argument("--concurrent", type=int, default=2)
    parser.add_argument("--idle", action="store_true")
    given = parser.parse_args()
    served = {task["id"] for task in json.load(urlopen(f"{given.url}/tasks"))}
    with (given.tasks / "tasks.jsonl").open(encoding="utf-8") as lines:
        waiting = [task for task in map(json.loads, lines) if task["id"] in served]
    num_tasks = len(waiting)
    rewards = asyncio.run(repair_all(given.url, waiting, given.concurrent, given.idle))
    return 0 if rewards == [0.0 if given.idle else 1.0] * num_tasks else 1


if __name__ == "__main__":
    sys.exit(main())
