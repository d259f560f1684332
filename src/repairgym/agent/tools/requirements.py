"""Requirements where projects declare them: found, replaced and removed without another change.

Reads the text of a settings file; makes `Declared` places and the text after an edit. Guarantees: every character
outside of the requirement (comments, order, quotes) stays; a place is the [start, end) of the requirement in the text.
Known are ``pyproject.toml`` (build-system, project, dependency groups, poetry), ``setup.cfg``, ``setup.py`` and pip's
requirements files.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from repairgym.tasks.mutation.settings_operators import Entry, parse_entries

BUILD_REQUIREMENTS = "[build-system] requires"
_LISTS = {
    "pyproject.toml": (
        ("build-system", "requires"),
        ("project", "dependencies"),
        (r"project\.optional-dependencies|dependency-groups", ".*"),
    ),
    "setup.cfg": (("options", "install_requires|setup_requires|tests_require"), (r"options\.extras_require", ".*")),
    "setup.py": (("", "install_requires|setup_requires|tests_require"),),
}
_POETRY = re.compile(r"tool\.poetry\.(?:group\.[^.]+\.|dev-)?dependencies")
_STRING = re.compile(r"#[^\n]*|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'")
_LINE = re.compile(r"(?m)^[ \t]*(?P<text>[^\s#-][^\n#\\]*?)[ \t]*(?P<rest>\\|#.*)?$")


@dataclass(frozen=True)
class Declared:
    """One requirement of a settings file."""

    path: str
    place: str
    """Section and key, e.g. ``[build-system] requires``; empty in a requirements file."""
    name: str
    """Canonical name."""
    text: str
    """The requirement as written; of poetry only the constraint."""
    start: int
    end: int
    is_string: bool
    """It stands between quotes in a list, not on a line of its own."""
    is_poetry: bool = False
    is_hashed: bool = False
    """It is a line of a lock with hashes, which only a resolver can write."""


def is_settings_file(path: str) -> bool:
    """Return True when requirements can be declared in ``path``."""
    return PurePosixPath(path).name in _LISTS or _is_requirements_file(path)


def _is_requirements_file(path: str) -> bool:
    pure = PurePosixPath(path)
    is_named = re.match(r"(requirements|constraints)", pure.name) or pure.parent.name == "requirements"
    return pure.suffix in (".txt", ".in") and bool(is_named)


def find_declared(path: str, text: str) -> list[Declared]:
    """Return every requirement that ``text`` declares, in its order."""
    if _is_requirements_file(path):
        return list(_on_lines(path, "", text, 0))
    name = PurePosixPath(path).name
    declared: list[Declared] = []
    for entry in parse_entries(text) if name in _LISTS else ():
        place, start = f"[{entry.section}] {entry.key}", _value_start(text, entry)
        if name == "pyproject.toml" and _POETRY.fullmatch(entry.section):
            declared += _of_poetry(path, place, entry, start)
        elif any(re.fullmatch(s, entry.section) and re.fullmatch(k, entry.key) for s, k in _LISTS[name]):
            on_lines = name == "setup.cfg"
            declared += (_on_lines if on_lines else _in_strings)(path, place, entry.value, start)
    return declared


def _value_start(text: str, entry: Entry) -> int:
    lines = text.splitlines(keepends=True)
    return len("".join(lines[: entry.end])) - len(entry.value)


def _on_lines(path: str, place: str, value: str, offset: int) -> Iterator[Declared]:
    for match in _LINE.finditer(value):
        name = _name(match["text"])
        if name:
            start, end = offset + match.start("text"), offset + match.end("text")
            is_hashed = match["rest"] == "\\"
            yield Declared(path, place, name, match["text"], start, end, is_string=False, is_hashed=is_hashed)


def _in_strings(path: str, place: str, value: str, offset: int) -> Iterator[Declared]:
    for match in _STRING.finditer(value):
        inside = match.group()[1:-1]
        name = "" if match.group().startswith("#") else _name(inside)
        if name:
            start = offset + match.start() + 1
            yield Declared(path, place, name, inside, start, start + len(inside), is_string=True)


def _of_poetry(path: str, place: str, entry: Entry, offset: int) -> Iterator[Declared]:
    version = re.search(r"version\s*=\s*", entry.value)
    match = _STRING.search(entry.value, version.end() if version else 0)
    is_plain = match is not None and (version is not None or not entry.value.startswith("{"))
    if match and is_plain and entry.key != "python":
        start, inside = offset + match.start() + 1, match.group()[1:-1]
        name = canonicalize_name(entry.key)
        yield Declared(path, place, name, inside, start, start + len(inside), is_string=True, is_poetry=True)


def _name(text: str) -> str:
    try:
        return canonicalize_name(Requirement(text).name)
    except InvalidRequirement:
        return ""


# --- edits ---------------------------------------------------------------------------------------------------------


def with_specifier(text: str, declared: Declared, specifier: str) -> str:
    """Return ``text`` where ``declared`` asks for ``specifier``; extras, marker and address of the requirement stay."""
    return text[: declared.start] + _specified(declared, specifier) + text[declared.end :]


def _specified(declared: Declared, specifier: str) -> str:
    if declared.is_poetry:
        return specifier
    requirement = Requirement(declared.text)
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = f"; {requirement.marker}" if requirement.marker else ""
    if declared.is_string and marker:
        # Both kinds of quotes delimit strings in TOML and Python; the marker uses those that the string has not.
        marker = marker.replace('"', "'") if '"' not in declared.text else marker
    return f"{requirement.name}{extras}{specifier}{marker}"


def without(text: str, declared: Declared) -> str:
    """Return ``text`` where ``declared`` is gone, with its comma or line."""
    start, end = declared.start, declared.end
    if not declared.is_string or declared.is_poetry:
        return _without_line(text, start, end)
    start, end = start - 1, end + 1
    comma = re.compile(r"[ \t]*,[ \t]*").match(text, end)
    if comma:
        end = comma.end()
    elif before := re.search(r",\s*$", text[:start]):
        start = before.start()
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    is_alone = not text[line_start:start].strip() and not text[end : line_end if line_end >= 0 else None].strip()
    return _without_line(text, start, end) if is_alone and line_start else text[:start] + text[end:]


def _without_line(text: str, start: int, end: int) -> str:
    """Return ``text`` without the lines of [start, end); a key on the first of them stays."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end) + 1 or len(text)
    key = re.match(r"[\w.-]+[ \t]*=[ \t]*", text[line_start:start])
    is_setting = key is not None and "\n" not in text[start:end] and line_start + key.end() == start
    return text[:start] + text[line_end - 1 :] if is_setting else text[:line_start] + text[line_end:]


def with_added(text: str, section: str, key: str, requirement: str) -> str | None:
    """Return the ``pyproject.toml`` with ``requirement`` in list ``key`` of ``section``; None without that list."""
    for entry in parse_entries(text):
        if (entry.section, entry.key) == (section, key) and "[" in entry.value:
            place = _value_start(text, entry) + entry.value.index("[") + 1
            rest = entry.value[entry.value.index("[") + 1 :]
            comma = "" if rest.lstrip().startswith("]") else ", "
            return f'{text[:place]}"{requirement}"{comma}{text[place:].lstrip(" ")}'
    return None
