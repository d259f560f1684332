"""Operators that break build settings as people do: one edit in ``pyproject.toml``, ``setup.cfg`` or ``setup.py``.

Reads the text of a settings file; makes `SettingsEdit` objects with the whole new text. Invariants: an edit touches one
entry (one key with its value) and nothing else, and the same text gives the same edits in the same order. The
build decides whether an edit breaks anything.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from repairgym.records import ErrorClass

SETTINGS_FILES = ("pyproject.toml", "setup.cfg", "setup.py", "MANIFEST.in")
_HEADER = re.compile(r"^\s*\[+\s*([^\]]+?)\s*\]+\s*(?:#.*)?$")
_ENTRY = re.compile(r"^(\s*)([\w.\"'-]+)\s*(=|:)(?!=)\s*(.*)$", re.DOTALL)
_STRING = re.compile(r"(?P<quote>[\"'])(?P<text>[^\"'\n]*)(?P=quote)")
_BOUND = re.compile(r"(?:[<>=!~]=?|===)\s*[\w.*]+(?:\s*,\s*(?:[<>=!~]=?)\s*[\w.*]+)*")


@dataclass(frozen=True)
class SettingsEdit:
    """One broken state of a settings file."""

    operator: str
    error_class: str
    """Class of the failure in the words of paper A's error table (section A3)."""
    path: str
    recipe: str
    text: str


def edit_at(
    operator: str, error_class: ErrorClass, path: str, text: str, span: tuple[int, int], new: str
) -> SettingsEdit:
    """Return ``text`` with ``new`` in the place of ``span``; the recipe names line, operator and what is new."""
    line = text.count("\n", 0, span[0]) + 1
    column = span[0] - text.rfind("\n", 0, span[0])
    recipe = f"{line}:{column}: {operator} {new}".rstrip()
    return SettingsEdit(operator, error_class, path, recipe, text[: span[0]] + new + text[span[1] :])


def distinct(edits: Iterable[SettingsEdit], text: str) -> list[SettingsEdit]:
    """Return the edits that change ``text``, each text and each recipe once."""
    kept: dict[str, SettingsEdit] = {}
    for edit in edits:
        if edit.text != text and all(edit.recipe != other.recipe for other in kept.values()):
            kept.setdefault(edit.text, edit)
    return list(kept.values())


@dataclass(frozen=True)
class Entry:
    """A key with its value, over [first, end) of the file's lines (0-based)."""

    section: str
    key: str
    value: str
    first: int
    end: int


Change = Callable[[Entry], Iterator[str]]
"""New texts of an entry's value; an empty text removes the whole entry."""


@dataclass(frozen=True)
class Operator:
    """An edit for a selection of entries."""

    name: str
    error_class: str
    section: str
    """Regular expression for the whole section name; ``setup.py`` has the empty one."""
    key: str
    change: Change


def parse_entries(text: str) -> list[Entry]:
    """Return the entries of a TOML, INI or ``setup(...)`` text.

    A value extends over the next lines while brackets are open; one that starts empty, while they are indented.
    """
    lines = text.splitlines(keepends=True)
    entries: list[Entry] = []
    section, number = "", 0
    while number < len(lines):
        header = _HEADER.match(lines[number])
        match = _ENTRY.match(lines[number])
        if header:
            section = header.group(1)
        elif match:
            end = _end_of_value(lines, number, match.group(4), len(match.group(1)))
            value = "".join([match.group(4), *lines[number + 1 : end]])
            entries.append(Entry(section, match.group(2).strip("\"'"), value, number, end))
            number = end
            continue
        number += 1
    return entries


def _end_of_value(lines: list[str], number: int, value: str, indent: int) -> int:
    end = number + 1
    depth = _depth(value)
    while end < len(lines) and (depth > 0 or (not value.strip() and _is_indented(lines[end], indent))):
        depth += _depth(lines[end])
        end += 1
    return end


def _is_indented(line: str, indent: int) -> bool:
    return bool(line.strip()) and len(line) - len(line.lstrip()) > indent


def _depth(text: str) -> int:
    plain = _STRING.sub("", text.split(" #")[0])
    return sum(plain.count(character) for character in "[{(") - sum(plain.count(character) for character in "]})")


def find_edits(path: str, text: str, operators: "tuple[Operator, ...] | None" = None) -> list[SettingsEdit]:
    """Return every edit of every operator (default: `OPERATORS`), in the order of the operators."""
    if path == "MANIFEST.in":
        return [] if operators else list(_manifest_edits(path, text))
    entries = parse_entries(text)
    edits: dict[str, SettingsEdit] = {}
    for operator in operators or OPERATORS:
        for entry in entries:
            is_meant = re.fullmatch(operator.section, entry.section) and re.fullmatch(operator.key, entry.key)
            for value in operator.change(entry) if is_meant else ():
                new = replace_value(text, entry, value)
                recipe = (
                    f"{operator.name}: [{entry.section}] {entry.key} = {' '.join(value.split())[:60] or '(removed)'}"
                )
                if new != text:
                    edits.setdefault(new, SettingsEdit(operator.name, operator.error_class, path, recipe, new))
    return list(edits.values())


def replace_value(text: str, entry: Entry, value: str) -> str:
    """Return ``text`` with another value of ``entry``; without the entry for an empty one."""
    lines = text.splitlines(keepends=True)
    old = "".join(lines[entry.first : entry.end])
    new = old[: len(old) - len(entry.value)] + value if value else ""
    return "".join([*lines[: entry.first], new, *lines[entry.end :]])


def _manifest_edits(path: str, text: str) -> Iterator[SettingsEdit]:
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.strip() and not line.startswith("#"):
            new = "".join(lines[:number] + lines[number + 1 :])
            yield SettingsEdit("missing_data", "configuration", path, f"missing_data: without {line.strip()}", new)


# --- changes -------------------------------------------------------------------------------------------------------


def _remove(entry: Entry) -> Iterator[str]:
    yield ""


def _drop_item(entry: Entry) -> Iterator[str]:
    """Remove one string (or line) of the value."""
    for match in _STRING.finditer(entry.value):
        if not match.group("text"):
            continue
        tail = re.match(r"\s*,[ \t]*", entry.value[match.end() :])
        yield entry.value[: match.start()] + entry.value[match.end() + (tail.end() if tail else 0) :]
    if not _STRING.search(entry.value):
        lines = entry.value.splitlines(keepends=True)
        yield from ("".join(lines[:n] + lines[n + 1 :]) for n in range(1, len(lines)) if lines[n].strip())


def _bad_bound(entry: Entry) -> Iterator[str]:
    """Set a version bound that nothing satisfies."""
    for match in _BOUND.finditer(entry.value):
        yield entry.value[: match.start()] + ">=999" + entry.value[match.end() :]
    for match in _STRING.finditer(entry.value):
        if re.fullmatch(r"[\w.-]+", match.group("text")):
            quoted = f"{match.group('quote')}{match.group('text')}>=999{match.group('quote')}"
            yield entry.value[: match.start()] + quoted + entry.value[match.end() :]


def _bad_python(entry: Entry) -> Iterator[str]:
    """Set a bound that excludes current versions of Python."""
    match = _BOUND.search(entry.value)
    for bound in ("<3.8", ">=3.99") if match else ():
        yield entry.value[: match.start()] + bound + entry.value[match.end() :] if match else ""


def _misspell(entry: Entry) -> Iterator[str]:
    """Swap two letters of the last word of each reference or path."""
    for match in re.finditer(r"[A-Za-z_]\w{2,}(?=[^\w]*(?:[\"'\n]|$))", entry.value):
        word = match.group()
        place = next((i for i in range(len(word) - 2, 0, -1) if word[i] != word[i + 1]), None)
        if place is not None:
            swapped = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
            yield entry.value[: match.start()] + swapped + entry.value[match.end() :]


def _rename(entry: Entry) -> Iterator[str]:
    """Rename the project."""
    match = re.search(r"[A-Za-z][\w.-]*", entry.value)
    if match:
        yield entry.value[: match.end()] + "-project" + entry.value[match.end() :]


def _negate(entry: Entry) -> Iterator[str]:
    for old, new in (("True", "False"), ("true", "false")):
        if re.search(rf"\b{old}\b", entry.value):
            yield re.sub(rf"\b{old}\b", new, entry.value, count=1)


def _lose_quote(entry: Entry) -> Iterator[str]:
    """Remove the end of a string."""
    match = _STRING.search(entry.value)
    if match and match.group("text"):
        yield entry.value[: match.end() - 1] + entry.value[match.end() :]


_TOOL = r"tool\..*|options(\..*)?|files|"
_ENTRY_POINTS = r"project\.(scripts|gui-scripts|entry-points.*)"
_INI_POINTS = r"options\.entry_points|"
_PACKAGES = "packages|where|package-dir|package_dir|py_modules|py-modules"
_DATA = r"tool\.setuptools\.package-data|options\.package_data"
_VERSIONS = r"tool\..*version.*|tool\.setuptools\.dynamic|metadata"
_NEEDS = "dependencies|install_requires"
OPERATORS = (
    Operator("removed_build_requirement", "dependency", "build-system", "requires", _drop_item),
    Operator("bad_build_bound", "dependency", "build-system", "requires", _bad_bound),
    Operator("bad_backend", "build_tool", "build-system", "build-backend", _misspell),
    Operator("bad_python_bound", "version", "project|options|", "requires-python|python_requires", _bad_python),
    Operator("removed_dependency", "dependency", "project|options|", _NEEDS, _drop_item),
    Operator("bad_dependency_bound", "dependency", "project|options|", _NEEDS, _bad_bound),
    Operator("bad_entry_point", "configuration", _ENTRY_POINTS, ".*", _misspell),
    Operator("bad_entry_point", "configuration", _INI_POINTS, "console_scripts|entry_points", _misspell),
    Operator("removed_entry_point", "configuration", _ENTRY_POINTS, ".*", _remove),
    Operator("bad_package_path", "configuration", _TOOL, _PACKAGES, _misspell),
    Operator("missing_package", "configuration", _TOOL, _PACKAGES, _drop_item),
    Operator("missing_package", "configuration", _TOOL, "packages|where|package-dir|package_dir|module|name", _remove),
    Operator("missing_data", "configuration", _DATA, ".*", _remove),
    Operator("missing_data", "configuration", _TOOL, "package_data|include", _drop_item),
    Operator("missing_data", "configuration", _TOOL, "include_package_data|include-package-data", _negate),
    Operator("wrong_name", "configuration", "project|metadata|", "name", _rename),
    Operator("bad_version_source", "configuration", _VERSIONS, "path|version|version_file|version-file", _misspell),
    Operator("removed_dynamic", "configuration", "project", "dynamic", _drop_item),
    Operator("missing_file", "configuration", "project|metadata", "readme|license-files|long_description", _misspell),
    Operator("broken_syntax", "configuration", r"project|build-system|tool\..*", "name|requires|version", _lose_quote),
)
