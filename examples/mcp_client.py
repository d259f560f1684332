"""A scripted agent on our tasks through the official MCP client: it lists the tools, writes the repair, submits.

    pip install mcp
    python examples/mcp_client.py tasks --command "repairgym serve-tasks mcp tasks --stdio --run runs/mcp"
    python examples/mcp_client.py tasks --url http://127.0.0.1:8010/mcp

Prints one line per task and ends with status 1 unless all are repaired. With ``--idle`` it submits without a repair.
"""

import argparse
import asyncio
import shlex
import sys
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

from repairgym.records import Task
from repairgym.tasks.store import TaskStore


async def repair(client: Client, task: Task, is_idle: bool) -> str:
    started = await client.call_tool("start_task", {"task_id": task.id})
    episode: dict[str, Any] = {"episode_id": (started.structured_content or {})["episode_id"]}
    for path, text in ({} if is_idle else task.gold_files).items():
        call = ("shell", {"command": f"rm {path}"}) if text is None else ("write_file", {"path": path, "content": text})
        await client.call_tool(call[0], call[1] | episode)
    ended = await client.call_tool("submit", episode)
    return str((ended.structured_content or {}).get("verdict"))


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--num", type=int, default=3)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="server over HTTP")
    where.add_argument("--command", type=shlex.split, help="command that starts a server over stdio")
    parser.add_argument("--mode", default="auto", help="auto, legacy or a version of the protocol")
    parser.add_argument("--idle", action="store_true")
    given = parser.parse_args()
    wanted = "failed" if given.idle else "passed"
    tasks = list(TaskStore(given.tasks).load("train"))[: given.num]
    server = given.url or stdio_client(StdioServerParameters(command=given.command[0], args=given.command[1:]))
    verdicts = []
    async with Client(server, mode=given.mode) as client:
        tools = await client.list_tools()
        print("tools:", ", ".join(tool.name for tool in tools.tools))
        for task in tasks:
            verdicts.append(await repair(client, task, given.idle))
            print(task.id, verdicts[-1], flush=True)
    return 0 if verdicts == [wanted] * len(tasks) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
