"""`repairgym serve` over a script that calls the first tool of an agent once, then answers: prints its address."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from repairgym.config.commands import ServeConfig
from repairgym.inference.chat_template import Message
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tool_calls import HERMES, Call
from repairgym.serving.models import ScriptModel
from repairgym.serving.process import serve

VALUES = {"string": "Paris", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
ALIASES = ("claude-sonnet-4-20250514", "claude-sonnet-4-5")


def answer(conversation: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
    """Write smolagents' form of code where the system message asks for it, else a call, else a sentence."""
    if "<code>" in conversation[0].text and not tools:
        return "Thought: 155 m at 58 km/h.\n<code>\nfinal_answer(round(155 / (58 / 3.6), 1))\n</code>"
    called = [message for message in conversation if message.role == "tool"]
    final = next((tool for tool in tools if tool["function"]["name"] in ("final_answer", "submit")), None)
    if not tools or (called and final is None):
        return "It is sunny."
    function = (final if called and final else tools[0])["function"]
    properties = (function.get("parameters") or {}).get("properties") or {}
    return HERMES.write(
        Call(
            function["name"], {name: VALUES.get(str(shape.get("type")), "Paris") for name, shape in properties.items()}
        )
    )


if __name__ == "__main__":
    renderer = ChatRenderer(load_tokenizer(shipped_base()))
    config = ServeConfig(port=0, model_aliases=ALIASES)
    asyncio.run(serve(ScriptModel(answer, renderer), "gpt-4o", config, lambda url: print(url, flush=True)))
