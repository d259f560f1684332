"""A dependency as a manifest of another ecosystem than Python's declares it, and the editors of such manifests."""

import re
from dataclasses import dataclass
from typing import Protocol


class ManifestError(Exception):
    """A manifest that cannot be read or edited safely; the text says why and what to do."""


@dataclass(frozen=True)
class ManifestEntry:
    """One declared dependency."""

    path: str
    place: str
    """Section, or kind of declaration, e.g. ``devDependencies``."""
    name: str
    version: str
    """As written; empty where the declaration has none."""
    aliases: tuple[str, ...] = ()
    """Other names that an agent may call it by."""
    span: tuple[int, int] = (0, 0)
    """[start, end) of the version in the text, for editors by place."""
    extent: tuple[int, int] = (0, 0)
    """[start, end) of the whole declaration, for editors by place."""
    problem: str = ""
    """Reason why its version cannot be changed here."""
    note: str = ""
    """Fact that an agent should know after a change."""

    def is_named(self, name: str) -> bool:
        """Return True when ``name`` means this dependency."""
        return name == self.name or name in self.aliases


class ManifestEditor(Protocol):
    """Finds and changes the dependencies of one kind of file; everything else in the text stays as it is."""

    ecosystem: str
    """Names of different ecosystems have nothing to do with each other."""
    version_form: re.Pattern[str]
    """Versions and ranges that the ecosystem reads."""
    example: str
    """A version and a range, for errors."""

    def is_manifest(self, path: str) -> bool:
        """Return True for a file of this kind."""

    def find(self, path: str, text: str) -> list[ManifestEntry]:
        """Return the dependencies of ``text`` in their order; `ManifestError` if it is malformed."""

    def with_version(self, text: str, entry: ManifestEntry, version: str) -> str:
        """Return ``text`` where ``entry`` asks for ``version``."""

    def without(self, text: str, entry: ManifestEntry) -> str:
        """Return ``text`` without ``entry``."""


def without_lines(text: str, start: int, end: int) -> str:
    """Return ``text`` without [start, end), and without the rest of its lines where that is white space."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    if text[line_start:start].strip() or text[end:line_end].strip():
        return text[:start] + text[end:]
    return text[:line_start] + text[line_end + 1 :]


def masked(text: str, patterns: str) -> str:
    """Return ``text`` with spaces for what group ``comment`` of ``patterns`` matches; places stay."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group()) if match["comment"] is not None else match.group()

    return re.sub(patterns, blank, text)


def keeping_prefix(old: str, new: str) -> str:
    """Return ``new`` with the caret or tilde of ``old``, where ``new`` is a version alone; ``=1.2`` pins 1.2."""
    prefix = re.match(r"[\^~]", old)
    return f"{prefix.group()}{new}" if prefix and new[0].isdigit() else new
