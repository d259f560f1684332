"""The action formats by name. A new one is a class and one line here (docs/howto/pipeline.md)."""

from repairgym.agent.formats.base import ActionFormat
from repairgym.agent.formats.text import CompactFormat, FencedFormat
from repairgym.agent.formats.tool_calls import JsonXmlFormat, NativeFormat

FORMATS: dict[str, type[ActionFormat]] = {
    action_format.name: action_format for action_format in (CompactFormat, FencedFormat, JsonXmlFormat, NativeFormat)
}


def make_format(name: str) -> ActionFormat:
    """Return the format that a pipeline's configuration names (the configuration knows the names)."""
    return FORMATS[name]()
