"""Operators that break build settings as real changes of a project do.

Each is a change that people make and forget to follow in the settings, or a rule of the tools that changed under them:
a function, a version file, a readme or a license file moves; a project moves into ``src`` or out of it; a cap of a
build requirement is left behind; metadata of another tool or time is kept. Reads and makes what `settings_operators`
does, and keeps its invariants.
"""

import re
from collections.abc import Iterator

from repairgym.tasks.mutation.settings_operators import Change, Entry, Operator, SettingsEdit, find_edits

_STRING = re.compile(r"(?P<quote>[\"'])(?P<text>[^\"'\n]*)(?P=quote)")


def _with(pattern: str, replacement: str) -> Change:
    """Return the change that replaces each match of ``pattern`` in a value by itself."""

    def change(entry: Entry) -> Iterator[str]:
        for match in re.finditer(pattern, entry.value):
            yield entry.value[: match.start()] + match.expand(replacement) + entry.value[match.end() :]

    return change


def _each(*changes: Change) -> Change:
    def change(entry: Entry) -> Iterator[str]:
        for own in changes:
            yield from own(entry)

    return change


def _another_ending(entry: Entry) -> Iterator[str]:
    """Name a file by the ending that it had before, or has elsewhere."""
    endings = {".md": ".rst", ".rst": ".md", ".txt": "", "": ".txt"}
    for match in _STRING.finditer(entry.value):
        stem, dot, ending = match["text"].rpartition(".")
        known = dot + ending if dot + ending in endings else ""
        stem = stem if known else match["text"]
        if re.fullmatch(r"[\w./-]*(README|CHANGE|HISTORY|LICEN[CS]E|COPYING|requirements)[\w-]*", stem):
            text = f"{match['quote']}{stem}{endings[known]}{match['quote']}"
            yield entry.value[: match.start()] + text + entry.value[match.end() :]


def _people_as_text(entry: Entry) -> Iterator[str]:
    """Write people as other tools do: one text for each instead of a table."""
    table = re.compile(r"\{\s*name\s*=\s*\"([^\"\n]*)\"\s*,\s*email\s*=\s*\"([^\"\n]*)\"\s*,?\s*\}")
    if table.search(entry.value):
        yield table.sub(r'"\1 <\2>"', entry.value)


_POINT = r"([\"'])((?:[\w.-]+\s*=\s*)?)"
_POINTS = r"project\.(scripts|gui-scripts|entry-points.*)"
_INI_POINTS = r"options\.entry_points|"
_moved = _each(
    _with(_POINT + r"([\w.]+)\.\w+:(\w+)\1", r"\1\2\3:\4\1"),
    _with(_POINT + r"(\w+):(\w+)\1", r"\1\2\3.cli:\4\1"),
)
_another_root = _each(
    _with(r"([\"'])src/([\w./-]+)\1", r"\1\2\1"),
    _with(r"([\"'])src\1", r"\1.\1"),
    _with(r"([\"'])(\w+/[\w/]+\.py)\1", r"\1src/\2\1"),
)
_version_elsewhere = _each(
    _with(r"([\"'])([\w/.-]*/)(?!_version)\w+\.py\1", r"\1\2_version.py\1"),
    _with(r"([\"'])(\w+)\.__version__\1", r"\1\2._version.__version__\1"),
    _with(r"(attr:\s*)(\w+)\.__version__", r"\1\2._version.__version__"),
)
_TOOL = r"tool\..*|options(\..*)?|files|"
_PACKAGES = "packages|where|package-dir|package_dir|path|py-modules|include"
_FILES = "readme|license|license-files|license_files|long_description|file|.*file"
REAL_BREAKS = (
    Operator("moved_function", "configuration", _POINTS, ".*", _moved),
    Operator("moved_function", "configuration", _INI_POINTS, "console_scripts|entry_points", _moved),
    Operator("another_source_root", "configuration", _TOOL, _PACKAGES, _another_root),
    Operator("subpackages_left_out", "configuration", _TOOL, "include",
             _with(r"([\"'][\w.]+)(?:\.?\*)([\"'])", r"\1\2")),
    Operator("renamed_file", "configuration", "project|metadata|tool\\..*|", _FILES, _another_ending),
    Operator("version_elsewhere", "configuration", r"tool\..*(version|dynamic).*|metadata", "path|version|attr",
             _version_elsewhere),
    Operator("static_and_dynamic", "configuration", "project", "dynamic", _with(r"\]\s*$", ', "description"]')),
    Operator("old_build_cap", "dependency", "build-system", "requires",
             _with(r"([\"'][A-Za-z][\w.-]*?)\s*[<>=~!][^\"']*([\"'])", r"\1<1\2")),
    Operator("former_backend", "build_tool", "build-system", "build-backend", _each(
        _with(r"poetry\.core\.masonry", "poetry.masonry"), _with("flit_core", "flit"),
        _with(r"hatchling\.build", "hatch.build"), _with(r"setuptools\.build_meta", "setuptools.pep517"))),
    Operator("rejected_bound", "version", "project|options|", "requires-python|python_requires",
             _with(r">=\s*(\d+\.\d+)\b(?!\.)", r">=\1.*")),
    Operator("rejected_license", "configuration", "project", "license",
             _with(r"^([\"'])(MIT|BSD-3-Clause|BSD-2-Clause|Apache-2\.0|MPL-2\.0|ISC)\1", r"\1\2 License\1")),
    Operator("people_of_another_tool", "configuration", "project", "authors|maintainers", _people_as_text),
)  # fmt: skip
REAL_NAMES = frozenset(operator.name for operator in REAL_BREAKS)


def find_breaks(path: str, text: str) -> list[SettingsEdit]:
    """Return the edits of `find_edits` and of `REAL_BREAKS`; each text and each recipe once."""
    edits: dict[str, SettingsEdit] = {}
    for edit in (*find_edits(path, text), *find_edits(path, text, REAL_BREAKS)):
        if edit.text not in edits and all(edit.recipe != other.recipe for other in edits.values()):
            edits[edit.text] = edit
    return list(edits.values())
