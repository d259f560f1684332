"""Changelog entries as issue texts.

Reads the changelog of an sdist, else the part of its README, documentation or `PKG-INFO` about a version. Makes
entries, and their fit to groups of hunks. Guarantees: only entries of the given version count; an entry that names
mostly other code than the group's does not fit; headings, versions, links and author credits are removed.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Self

_FILE_NAME = re.compile(r"(change(s|log)?|history|news|versions|release[-_]?notes)(\.(rst|md|txt))?$", re.IGNORECASE)
_VERSION_HEADING = re.compile(r"^(#+\s*)?(release|version|=+|-+)?\s*\[?v?\d+\.\d+[\w.]*\]?", re.IGNORECASE)
_OTHER_PLACES = ("README*", "docs/*.rst", "docs/*.md", "docs/*.txt", "docs/source/*.rst", "PKG-INFO")
"""Places of a list of changes in projects without a changelog."""
_MAX_FILE_BYTES = 1_000_000
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_UNDERLINE = re.compile(r"^([=\-~^*#\"'`+])\1{2,}\s*$")
_BULLET = re.compile(r"^(\s*)(?:[-*+•]|\d+[.)])\s+(.*)$")
_ISSUE_NUMBER = re.compile(r"(?:issue|gh|bug|pr|#)[\s_#:-]*(\d{2,6})", re.IGNORECASE)
_WORD = re.compile(r"[a-z]{4,}")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w+")
_CODE = re.compile(r"`([^`]+)`|\b([a-z]\w*(?:_\w+|\.[a-z_]\w+)+)\b")
"""Code in an entry: between backticks, or a name that no language but code has."""
_COMMON_WORDS = frozenset(
    _WORD.findall(
        "test tests testing with from that this when into have does issue regression should only also more added "
        "support function method class return returns value values case cases fixed changed python version"
    )
)
ISSUE_SCORE, NAME_SCORE, WORD_SCORE = 6, 3, 1
MIN_FIT = 3
"""Least fit of an entry that becomes an issue text."""
STEM_CHARS = 5


@dataclass(frozen=True)
class Clues:
    """Facts about a group of hunks. Test source is searched for clues, never quoted."""

    issue_numbers: frozenset[str]
    names: frozenset[str]
    """Functions and classes that the hunks touch."""
    words: frozenset[str]
    """Stems of words in the failing tests' names and parameters."""
    code_words: frozenset[str] = frozenset()
    """Stems of words in the changed lines; they break ties."""
    identifiers: frozenset[str] = frozenset()
    """Names in the hunks and in the failing tests."""

    @classmethod
    def collect(
        cls, names: Iterable[str], test_ids: Iterable[str], hunk_text: str, test_source: str = "", old_text: str = ""
    ) -> Self:
        """Collect clues from touched names, failing tests (ids and source) and the text of the hunks."""
        names = list(names)
        tests = " ".join(test_id.partition("::")[2] for test_id in test_ids)
        parts = {part for name in names for part in name.split(".") if len(part) > 3 and not part.startswith("__")}
        numbers = _ISSUE_NUMBER.findall(f"{tests} {hunk_text} {test_source}")
        known = frozenset(_IDENTIFIER.findall(" ".join([hunk_text, old_text, test_source, *names])))
        return cls(frozenset(numbers), frozenset(parts), frozenset(_stems(tests)), frozenset(_stems(hunk_text)), known)

    def score(self, entry: str) -> tuple[int, int]:
        """Return the fit of ``entry``, and its fit to the changed lines; none for an entry on mostly other code."""
        named = _named_code(entry)
        if 2 * len(named & self.identifiers) < len(named):
            return 0, 0
        numbers = set(_ISSUE_NUMBER.findall(entry)) & self.issue_numbers
        names = {name for name in self.names if re.search(rf"(?<!JSON\.)\b{re.escape(name)}\b(?!\.\w)", entry)}
        stems = _stems(entry)
        fit = ISSUE_SCORE * len(numbers) + NAME_SCORE * len(names) + WORD_SCORE * len(stems & self.words)
        return fit, len(stems & self.code_words)


def _stems(text: str) -> set[str]:
    """Return the first letters of the words of ``text``: ``removes`` and ``removal`` are equal."""
    words = _WORD.findall(re.sub(r"[_:]", " ", text).lower())
    return {word[:STEM_CHARS] for word in words if word not in _COMMON_WORDS}


def _named_code(entry: str) -> set[str]:
    """Return the names of code in ``entry``, exceptions left out: the last part of a dotted one."""
    parts = ("".join(match).strip("(). ").rpartition(".")[2] for match in _CODE.findall(entry))
    names = {name for part in parts for name in _IDENTIFIER.findall(part)}
    return {name for name in names if not name.endswith(("Error", "Exception", "Warning"))}


def read_entries(tree: Path, version: str) -> list[str]:
    """Return the cleaned entries of ``version`` that ``tree`` has; empty without any."""
    for path in _places(tree):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        parts = (*_split_entries(_section(lines, version)), _listed_version(lines, version))
        if entries := list(filter(None, map(clean_entry, parts))):
            return entries
    return []


def _places(tree: Path) -> Iterator[Path]:
    """Yield the files that may list changes, changelogs first."""
    folders = [folder for folder in (tree, tree / "docs", tree / "doc", tree / "docs" / "source") if folder.is_dir()]
    named = [path for folder in folders for path in sorted(folder.glob("*")) if _FILE_NAME.match(path.name)]
    others = [path for pattern in _OTHER_PLACES for path in sorted(tree.glob(pattern))]
    for path in dict.fromkeys((*named, *others)):
        if path.is_file() and path.stat().st_size <= _MAX_FILE_BYTES:
            yield path


def _listed_version(lines: list[str], version: str) -> str:
    """Return the item of ``version`` in a list of versions; empty without one."""
    item = re.compile(rf"\s*[-*+]\s+v?{re.escape(version)}(?![\w.])[\s:,-]*(.*)")
    for number, line in enumerate(lines):
        if match := item.match(line):
            rest = takewhile(lambda text: text.strip() and not _BULLET.match(text), lines[number + 1 :])
            return " ".join([match[1], *(text.strip() for text in rest)])
    return ""


def clean_entry(entry: str) -> str:
    """Return an entry as plain text, without markup, links and credits."""
    text = re.sub(r"(?::(?:gh|pr|issue|user)s?:|\{(?:gh|pr|issue)s?\})`#?(\d+)`", r"#\1", entry)
    text = re.sub(r"\{\w+\}(?=`)", "", text)
    text = re.sub(r"(?<!\w)\*\*(\w[^*]*?)\*\*(?!\w)", r"\1", text)
    text = re.sub(r"\[(`[^`]+`)\]\[[^\]]*\]", r"\1", text)
    text = re.sub(r":[\w:]+:`~?([^`<]+?)(?:\s*<[^>]*>)?`", r"`\1`", text)
    text = re.sub(r"\s*\[`[0-9a-f]{7,40}`\]\([^)]*\)", "", text)
    text = _LINK.sub(r"\1", text)
    text = re.sub(r"`([^`<]+?)\s*<[^>]*>`_+", r"\1", text)
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    text = re.sub(r"<?https?://[^\s)>\]]+>?", "", text)
    text = re.sub(r"[\s,;]*[(\[](?:thanks|by|patch|contributed|courtesy|reported)\b[^)\]]*[)\]]", "", text, flags=re.I)
    text = re.sub(r"[\s,;]*(?:pr\s*#?\d+\s+)?by\s+@?[\w-]+(?=[)\]])", "", text, flags=re.IGNORECASE)
    text = re.sub(r"\s+(?:by|thanks to)\s+@?[\w-]+(?:\s+in\s*)?[.!]?$", "", text, flags=re.IGNORECASE)
    text = re.sub(r"\s*\([\s,]*\)", "", text)
    return " ".join(text.split()).strip(" -*")


def _section(lines: list[str], version: str) -> list[str]:
    wanted = re.compile(rf"(?<![\d.])v?{re.escape(version)}(?![\d]|\.\d)")
    section: list[str] = []
    is_inside = False
    for number, line in enumerate(lines):
        if _is_version_heading(lines, number):
            if is_inside:
                return section
            is_inside = bool(wanted.search(line))
        elif is_inside:
            section.append(line)
    return section


def _is_version_heading(lines: list[str], number: int) -> bool:
    line = _LINK.sub(r"\1", lines[number].strip()).replace("**", "")
    if not line or len(line) > 80 or lines[number][:1].isspace() or not _VERSION_HEADING.match(line):
        return False
    is_underlined = number + 1 < len(lines) and bool(_UNDERLINE.match(lines[number + 1]))
    return is_underlined or line.startswith("#") or len(line.split()) <= 5


def _split_entries(section: list[str]) -> Iterator[str]:
    entry: list[str] = []
    for number, line in enumerate(section):
        bullet = _BULLET.match(line)
        is_underlined = number + 1 < len(section) and bool(_UNDERLINE.match(section[number + 1]))
        is_heading = line.startswith("#") or bool(_UNDERLINE.match(line)) or is_underlined
        if bullet or is_heading or not line.strip():
            if entry:
                yield " ".join(entry)
            entry = [bullet.group(2)] if bullet and not is_heading else []
        else:
            entry.append(line.strip())
    if entry:
        yield " ".join(entry)
