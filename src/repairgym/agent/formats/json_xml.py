"""Paper A's action format: JSON inside of XML tags (appendix A.2).

The paper shows no example of a call; the names of its tokens (``run_sh_response``) say that tags carry the tool's name,
so ``<run_sh>{"command": "ls"}</run_sh>`` is a call and ``<run_sh_response>...</run_sh_response>`` what comes back.
"""

from __future__ import annotations

import json
import re

from repairgym.agent.formats.base import Action, ActionFormat, ParseError, Tools, describe_schemas, read_json

_NO_CALL = (
    'error: no tool call could be read from your answer. Write one as <NAME>{"argument": "value"}</NAME>, where NAME '
    "is one of "
)


class JsonXmlFormat(ActionFormat):
    """``<NAME>{json}</NAME>``."""

    name = "json_xml"

    def parse(self, text: str, tools: Tools) -> Action | ParseError:
        """The only call; what stands around it is reasoning."""
        calls: list[Action] = []
        problem = ""
        position = 0
        opening = re.compile("<(" + "|".join(map(re.escape, tools)) + ")>")
        while match := opening.search(text, position):
            name = match.group(1)
            found = _read_call(text, match.end(), name)
            if isinstance(found, str):
                problem, position = problem or f" (<{name}>: {found})", match.end()
            else:
                calls.append(found[0])
                position = found[1]
        if len(calls) == 1:
            return calls[0]
        if calls:
            return ParseError(f"error: your answer has {len(calls)} tool calls and none was made; make one at a time")
        return ParseError(_NO_CALL + ", ".join(sorted(tools)) + problem)

    def write(self, action: Action, reasoning: str = "") -> str:
        """``reasoning`` and the call."""
        call = f"<{action.tool}>{json.dumps(action.values, ensure_ascii=False)}</{action.tool}>"
        return f"{reasoning}\n{call}" if reasoning else call

    def answer(self, observation: str, action: Action | None) -> str:
        """The observation between the response tags of its tool."""
        if action is None:
            return observation
        return f"<{action.tool}_response>\n{observation}\n</{action.tool}_response>"

    def describe(self, tools: Tools) -> str:
        """Each tool with the JSON schema of its arguments."""
        functions = [schema["function"] for schema in describe_schemas(tools)]
        return "\n".join(
            f"<{one['name']}>: {one['description']}\n  arguments: {json.dumps(one['parameters'])}" for one in functions
        )


def _read_call(text: str, start: int, name: str) -> tuple[Action, int] | str:
    found = read_json(text, start)
    if isinstance(found, str):
        return found
    value, end = found
    closing = re.compile(rf"\s*</{re.escape(name)}>").match(text, end)
    if closing is None:
        return f"no </{name}> behind the JSON"
    if not isinstance(value, dict):
        return "the JSON is no object"
    return Action(name, value), closing.end()
