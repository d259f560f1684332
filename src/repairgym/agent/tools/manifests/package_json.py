"""Dependencies of ``package.json``, found by the standard library's decoder and changed in place."""

import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from repairgym.agent.tools.manifests.entry import ManifestEntry, ManifestError, keeping_prefix

SECTIONS = ("dependencies", "devDependencies", "peerDependencies", "optionalDependencies", "overrides", "resolutions")
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


class PackageJsonEditor:
    """Editor of ``package.json``."""

    ecosystem = "npm"
    version_form = re.compile(r"[\w.^~<>=|*\s-]+|(?:npm|file|link|workspace):\S+")
    example = "7.0.0 (keeps ^ or ~), =7.0.0 (a pin) or '>=7 <8'"

    def is_manifest(self, path: str) -> bool:
        """Return True for ``package.json``."""
        return PurePosixPath(path).name == "package.json"

    def find(self, path: str, text: str) -> list[ManifestEntry]:
        """Return the dependencies of every section that has some."""
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"{path} is no JSON ({error}); correct that first") from None
        entries = []
        for section, value, _, start, _ in _members(text, _SPACE.match(text).end()):  # type: ignore[union-attr]
            if section not in SECTIONS or not isinstance(value, dict):
                continue
            for name, version, key, first, end in _members(text, start):
                is_text = isinstance(version, str)
                problem = "" if is_text else f"{section} has a nested value for it; change it with an edit"
                text_of = version if isinstance(version, str) else ""
                span = (first + 1, end - 1)
                entries.append(ManifestEntry(path, section, name, text_of, (), span, (key, end), problem))
        return entries

    def with_version(self, text: str, entry: ManifestEntry, version: str) -> str:
        """Return ``text`` with another range; a version alone keeps the caret or tilde, ``=7.0.0`` pins."""
        new = version[1:] if re.fullmatch(r"=\d[\w.-]*", version) else keeping_prefix(entry.version, version)
        return text[: entry.span[0]] + json.dumps(new)[1:-1] + text[entry.span[1] :]

    def without(self, text: str, entry: ManifestEntry) -> str:
        """Return ``text`` without the member and its comma."""
        start, end = entry.extent
        if after := re.compile(r"\s*,\s*").match(text, end):
            return text[:start] + text[after.end() :]
        if before := re.search(r"\s*,\s*$", text[:start]):
            return text[: before.start()] + text[end:]
        return text[:start].rstrip() + text[end:].lstrip()


def _members(text: str, start: int) -> Iterator[tuple[str, object, int, int, int]]:
    """Yield key, value, start of the key, and [start, end) of the value of each member of the object at ``start``."""
    place = start
    while text[place] != "}":
        key_start = _skip(text, place + 1)
        if text[key_start] == "}":
            return
        key, key_end = _DECODER.raw_decode(text, key_start)
        value_start = _skip(text, _skip(text, key_end) + 1)
        value, value_end = _DECODER.raw_decode(text, value_start)
        yield key, value, key_start, value_start, value_end
        place = _skip(text, value_end)


def _skip(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place
