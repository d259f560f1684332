"""MCP: ids of episodes, mistakes as results, the SDK's own client in both eras of the protocol (marked)."""

from __future__ import annotations

import pytest

from repairgym.bridges.clients.mcp import START, Episodes

REPAIR = {"path": "m.py", "content": "def f(a, b):\n    return a <= b\n"}


@pytest.mark.asyncio
async def test_episodes_are_found_by_their_ids_or_by_the_session(make_server):
    async with Episodes(make_server()) as episodes:
        (_, first, _), (_, second, _) = [await episodes.call(START, {"task_id": f"tiny-{k}"}) for k in (1, 2)]
        assert (first["task_id"], second["task_id"]) == ("tiny-1", "tiny-2")
        await episodes.call("write_file", REPAIR | {"episode_id": first["episode_id"]})
        text, _, is_error = await episodes.call("submit", {})
        assert (is_error, START in text) == (True, True)
        _, told, _ = await episodes.call("submit", {"episode_id": second["episode_id"]})
        assert told["verdict"] == "failed"
        text, told, is_error = await episodes.call("submit", {"episode_id": first["episode_id"]})
        assert (text, told["verdict"], is_error) == ("submitted\nThe episode has ended: passed.", "passed", False)
        await episodes.call(START, {"task_id": "tiny-1"}, "a")
        assert (await episodes.call("read_file", {"path": "m.py"}, "a"))[2] is False
        assert (await episodes.call("read_file", {"path": "m.py"}, "b"))[2] is True


@pytest.mark.asyncio
async def test_another_start_in_a_session_gives_the_first_episode_up(make_server):
    server = make_server("max_episodes=1")
    async with Episodes(server, default="stdio") as episodes:
        for _ in range(2):
            assert (await episodes.call(START, {}, "stdio"))[2] is False
        text, _, is_error = await episodes.call(START, {}, "other")
        assert (is_error, "max_episodes" in text) == (True, True)
        assert (await episodes.call(START, {"task_id": "absent"}, "stdio"))[2] is True
        assert (await episodes.call("read_file", {"path": "m.py"}, "stdio"))[2] is False  # the episode goes on
        assert "no such episode_id" in (await episodes.call("test", {"episode_id": ["x"]}, "stdio"))[0]
    assert server.num_running == 0


@pytest.mark.asyncio
async def test_tools_have_schemas_with_the_id(make_server):
    start, *tools = Episodes(make_server()).tools()
    assert start["name"] == START
    assert {tool["name"] for tool in tools} >= {"shell", "write_file", "test", "submit"}
    write = next(tool for tool in tools if tool["name"] == "write_file")
    assert set(write["parameters"]["properties"]) == {"path", "content", "episode_id"}
    assert write["parameters"]["required"] == ["path", "content"]


@pytest.mark.mcp
@pytest.mark.asyncio
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_client_of_the_sdk_repairs_a_task(make_server, mode):
    from mcp.client import Client

    async with Episodes(make_server()) as episodes, Client(episodes.mcp_server(), mode=mode) as client:
        assert START in [tool.name for tool in (await client.list_tools()).tools]
        begun = await client.call_tool(START, {})
        episode = {"episode_id": begun.structured_content["episode_id"]}
        missing = await client.call_tool("read_file", episode)
        assert missing.is_error
        await client.call_tool("write_file", REPAIR | episode)
        ended = await client.call_tool("submit", episode)
    assert ended.structured_content["reward"] == 1.0
