"""The action formats by name. Adding one is one file and one line here (docs/howto/pipeline.md)."""

from __future__ import annotations

from mendwright.agent.formats.base import ActionFormat
from mendwright.agent.formats.compact import CompactFormat
from mendwright.agent.formats.fenced import FencedFormat
from mendwright.agent.formats.json_xml import JsonXmlFormat
from mendwright.agent.formats.native import NativeFormat

FORMATS: dict[str, type[ActionFormat]] = {
    one.name: one for one in (CompactFormat, FencedFormat, JsonXmlFormat, NativeFormat)
}


def make_format(name: str) -> ActionFormat:
    """The format that a pipeline's configuration names (the configuration knows the names)."""
    return FORMATS[name]()
