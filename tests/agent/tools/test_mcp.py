"""Tools of MCP servers: their schemas as servers write them. No server starts."""

from __future__ import annotations

from typing import Any

import pytest

from repairgym.agent.formats import FORMATS, Action, describe_schemas
from repairgym.agent.tools.base import ToolServices
from repairgym.agent.tools.mcp import ListedTool, McpTool
from repairgym.config.mcp import McpServerConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.inference.tool_calls import CALL_FORMS
from repairgym.sandbox.cache import ExecutionCache

OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Note"}
SCHEMA = {
    "$defs": {"Mode": {"enum": ["fast", "12"], "type": "string", "title": "Mode"}, "Size": {"type": "integer"}},
    "properties": {
        "plain": {"type": "string"},
        "note": OPTIONAL,
        "listed": {"type": ["string", "null"]},
        "mode": {"$ref": "#/$defs/Mode"},
        "maybe": {"anyOf": [{"$ref": "#/$defs/Mode"}, {"type": "null"}]},
        "choice": {"enum": ["1", "2"]},
        "size": {"$ref": "#/$defs/Size"},
        "num": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "any": True,
        "odd": {"$ref": "#/$defs/Gone"},
        "circle": {"$ref": "#/properties/circle"},
    },
    "required": ["plain"],
}
TEXTS = {"plain", "note", "listed", "mode", "maybe", "choice"}


def tool(schema: dict[str, Any]) -> McpTool:
    server = McpServerConfig(name="helper", command=("python",))
    return McpTool(ToolServices(PipelineConfig(), ExecutionCache()), server, ListedTool("note", "note it", schema))


def test_references_of_a_schema_lead_somewhere() -> None:
    made = tool(SCHEMA)
    (described,) = describe_schemas({made.name: made})
    parameters = described["function"]["parameters"]
    assert parameters["$defs"] == SCHEMA["$defs"]
    assert parameters["properties"]["any"] == {}
    assert "title" not in parameters["properties"]["note"]
    assert OPTIONAL["title"] == "Note", "the server's own schema stays as it is"


@pytest.mark.parametrize("schema", [{}, {"properties": None, "required": None}, {"type": "object"}])
def test_a_schema_may_name_nothing(schema: dict[str, Any]) -> None:
    made = tool(schema)
    (described,) = describe_schemas({made.name: made})
    assert described["function"]["parameters"] == {"type": "object", "properties": {}}
    assert not made.is_text("x")
    assert made.check({"x": 1}).model_dump() == {"x": 1}


@pytest.mark.parametrize("name", ["coder", "glm"])
@pytest.mark.parametrize("text", ["2024", "null", "true", '{"a": 1}'])
def test_an_argument_that_may_be_a_string_is_sent_as_it_was_written(name: str, text: str) -> None:
    made = tool(SCHEMA)
    native = FORMATS["native"](next(form for form in CALL_FORMS if form.name == name))
    written = native.write(Action(made.name, dict.fromkeys(SCHEMA["properties"], text)))
    found = native.parse(written, {made.name: made})
    assert isinstance(found, Action)
    assert {key for key, value in found.values.items() if value == text} == TEXTS
