"""Requirements of ``go.mod``, one a line, changed in place."""

import re
from pathlib import PurePosixPath

from repairgym.agent.tools.manifests.entry import ManifestEntry, without_lines

_LINE = re.compile(r"(?m)^[ \t]*(?:require[ \t]+)?(?P<name>[^\s(]+)[ \t]+(?P<version>v[\w.+-]+)(?P<rest>[^\n]*)$")
_BLOCK = re.compile(r"(?ms)^(?P<verb>\w+)[ \t]*\((?P<lines>.*?)^\)")
_SINGLE = re.compile(r"(?m)^require[ \t]+[^(\n]*$")
_REPLACED = re.compile(r"(?m)^\s*(?:replace\s+)?([\w.~/-]+)(?:\s+v\S+)?\s+=>")


class GoModEditor:
    """Editor of ``go.mod``."""

    ecosystem = "go"
    version_form = re.compile(r"v?\d+\.\d+\.\d+[\w.+-]*")
    example = "v1.2.3"

    def is_manifest(self, path: str) -> bool:
        """Return True for ``go.mod``."""
        return PurePosixPath(path).name == "go.mod"

    def find(self, path: str, text: str) -> list[ManifestEntry]:
        """Return the required modules; those of ``exclude`` and ``replace`` are none."""
        parts = [match.span() for match in _SINGLE.finditer(text)]
        parts += [match.span("lines") for match in _BLOCK.finditer(text) if match["verb"] == "require"]
        replaced = {match[1] for match in _REPLACED.finditer(text)}
        entries = []
        for start, end in sorted(parts):
            for match in _LINE.finditer(text, start, end):
                place = "require, indirect" if "// indirect" in match["rest"] else "require"
                note = "a replace directive decides what is built" if match["name"] in replaced else ""
                span, extent = match.span("version"), match.span()
                entries.append(
                    ManifestEntry(path, place, match["name"], match["version"], span=span, extent=extent, note=note)
                )
        return entries

    def with_version(self, text: str, entry: ManifestEntry, version: str) -> str:
        """Return ``text`` with another version."""
        return text[: entry.span[0]] + (version if version.startswith("v") else f"v{version}") + text[entry.span[1] :]

    def without(self, text: str, entry: ManifestEntry) -> str:
        """Return ``text`` without the line."""
        return without_lines(text, *entry.extent)
