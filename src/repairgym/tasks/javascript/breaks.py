"""Edits that break a package of npm: in its ``package.json``, and in the ``tsconfig.json`` of its types.

Reads a settings file of a tree, one member per line as npm writes it. Makes `SettingsEdit` objects with the whole new
text. Guarantees: the same text gives the same edits in the same order, each recipe once. The check of the package
decides whether an edit breaks anything.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from repairgym.records import ErrorClass
from repairgym.tasks.javascript.package_check import SETTINGS
from repairgym.tasks.mutation.settings_operators import SettingsEdit, distinct, edit_at

_LINE = re.compile(r'^[ \t]*(?:"((?:[^"\\\n]|\\.)*)"[ \t]*:[ \t]*)?([^\n]*?)(,?)[ \t]*$', re.MULTILINE)
_DEPENDENCIES = ("dependencies", "peerDependencies", "devDependencies")
_RANGE = re.compile(r"[\^~]?(\d+)\.(\d+)\.\d+")
_MOVED = ("main", "module", "types", "typings", "bin", "exports")
"""Members whose values are paths of the package."""
_OTHER_TYPE = {"commonjs": "module", "module": "commonjs"}
_UNKNOWN_TARGET, _OTHER_FLAG = '"es2035"', {"true": "false", "false": "true"}


@dataclass(frozen=True)
class _Member:
    """A member of an object, or an element of a list (without a key)."""

    section: tuple[str, ...]
    """Keys of the objects around it."""
    key: str
    key_span: tuple[int, int]
    value: str
    value_span: tuple[int, int]
    end: int
    """End of its line, with the comma."""

    @property
    def text(self) -> str:
        """The value between its quotes."""
        return self.value.strip('"')

    @property
    def inner_span(self) -> tuple[int, int]:
        """Place of `text`."""
        return self.value_span[0] + 1, self.value_span[1] - 1


def find_npm_breaks(path: str, text: str) -> list[SettingsEdit]:
    """Return the edits of the settings file ``path`` with this text: those of the package, or those of its types."""
    members = list(_members(text))
    own = (_package_edits if path == SETTINGS else _type_edits)(path, text, members)
    return distinct((*own, *_syntax_edits(path, text, members)), text)


def with_range(text: str, name: str, range_: str) -> str:
    """Return the ``package.json`` with ``range_`` for each dependency ``name`` that it declares."""
    for member in reversed(list(_members(text))):
        if member.key == name and member.section[1:] and member.section[1] in _DEPENDENCIES:
            start, end = member.inner_span
            text = text[:start] + range_ + text[end:]
    return text


def declared_range(text: str, name: str) -> str:
    """Return the range of the dependency ``name``, that of the package before that of its tests; empty for none."""
    ranges = {member.section[1]: member.text for member in _members(text) if member.key == name and member.section[1:]}
    return next((ranges[section] for section in _DEPENDENCIES if section in ranges), "")


def range_recipe(name: str, broken: str, gold: str) -> str:
    """Describe the repair of a range; `read_range_recipe` reads it."""
    return f"{SETTINGS} {name}: {broken} -> {gold}"


def read_range_recipe(recipe: str) -> tuple[str, str, str]:
    """Return name, broken range and repaired range of the text of `range_recipe`; ValueError for another text."""
    told = recipe.removeprefix(f"{SETTINGS} ").split(": ", 1)
    broken, gold = told[1].split(" -> ", 1)
    return told[0], broken, gold


def _members(text: str) -> Iterator[_Member]:
    """Yield the members whose line holds all of them, or their key and an opening bracket."""
    section: list[str] = []
    for line in _LINE.finditer(text):
        value = line[2]
        if value[:1] in ("}", "]"):
            section = section[:-1]
        elif line[1] is not None or section:
            yield _Member(tuple(section), line[1] or "", line.span(1), value, line.span(2), line.end())
        if value in ("{", "["):
            section.append(line[1] or "")


def _package_edits(path: str, text: str, members: list[_Member]) -> Iterator[SettingsEdit]:
    for member in members:
        if member.section[1:] and member.section[1] in _DEPENDENCIES:
            yield from _dependency_edits(path, text, member)
        elif member.value.startswith('"'):
            yield from _field_edits(path, text, member)
    yield from _added_fields(path, text, members)


def _dependency_edits(path: str, text: str, member: _Member) -> Iterator[SettingsEdit]:
    name, scope = member.key.rpartition("/")[2], member.key.rpartition("/")[0]
    wrong = name.replace("-", "", 1) if "-" in name else f"{name}s"
    key = f"{scope}/{wrong}" if scope else wrong
    yield edit_at("missing_dependency", "dependency", path, text, _whole(text, member), "")
    yield edit_at("misspelled_dependency", "dependency", path, text, member.key_span, key)
    yield edit_at("unpublished_protocol", "dependency", path, text, member.inner_span, "workspace:^")
    if numbers := _RANGE.fullmatch(member.text):
        major, minor = int(numbers[1]), int(numbers[2])
        older = f"^{major - 1}.0.0" if major else f"~0.{minor - 1}.0" if minor else ""
        ranges = {"newer_range": f"^{major + 1}.0.0", "older_range": older, "missing_release": f"{major}.{minor}.99"}
        for operator, value in ranges.items():
            if value:
                yield edit_at(operator, "version", path, text, member.inner_span, value)
    place = text.find('"devDependencies": {\n')
    if member.section[1] == "dependencies" and place > member.end:
        inserted = place + len('"devDependencies": {\n')
        start, end = _whole(text, member)
        line = f"    {text[member.key_span[0] - 1 : member.value_span[1]]},\n"
        changed = text[:start] + text[end:inserted] + line + text[inserted:]
        number = text.count("\n", 0, start) + 1
        yield SettingsEdit("wrong_section", "dependency", path, f"{number}: wrong_section {member.key}", changed)


def _field_edits(path: str, text: str, member: _Member) -> Iterator[SettingsEdit]:
    top = (*member.section[1:], member.key)[0]
    if top in _MOVED and not member.text.endswith(SETTINGS):
        folder, _, name = member.text.rpartition("/")
        moved = f"./{name}" if folder.strip("./") else f"./dist/{name}"
        yield edit_at("wrong_path", "configuration", path, text, member.inner_span, moved)
        if top == "exports" and member.text.startswith("./"):
            yield edit_at("bare_target", "configuration", path, text, member.inner_span, member.text[2:])
        if member.section[1:] and member.key != ".":
            yield edit_at("missing_entry", "configuration", path, text, _whole(text, member), "")
    elif top == "type" and member.text in _OTHER_TYPE:
        yield edit_at("wrong_type", "build_tool", path, text, member.inner_span, _OTHER_TYPE[member.text])
    elif top == "name":
        yield edit_at("wrong_name", "configuration", path, text, member.inner_span, member.text.lstrip("@").title())
    elif top == "version":
        short = member.text.rpartition(".")[0]
        yield edit_at("wrong_version", "configuration", path, text, member.inner_span, short)
    elif top == "engines" and member.key == "node":
        for value in ("<16", ">=26"):
            yield edit_at("wrong_engine", "environment", path, text, member.inner_span, value)
    elif top == "files" and member.section[1:]:
        yield edit_at("missing_file", "configuration", path, text, _whole(text, member), "")


def _added_fields(path: str, text: str, members: list[_Member]) -> Iterator[SettingsEdit]:
    """Yield the edits that add a field behind ``main`` or ``version``."""
    top = {member.key: member for member in members if len(member.section) == 1}
    after = top.get("main") or top.get("version")
    if after is None or text[after.end - 1] != ",":
        return
    span, indent = (after.end + 1, after.end + 1), text[text.rfind("\n", 0, after.end) + 1 : after.key_span[0] - 1]
    lines: list[tuple[str, ErrorClass, str]] = []
    if "type" not in top:
        lines += [("added_type", "build_tool", '"type": "module",')]
    if "files" not in top:
        lines += [("added_files", "configuration", f'"files": ["{name}"],') for name in ("dist", "src", "*.mjs")]
    if "exports" not in top and after.key == "main":
        targets = f"./dist/{after.text.rpartition('/')[2]}", after.text.removeprefix("./")
        lines += [("added_exports", "configuration", f'"exports": "{target}",') for target in targets]
    for operator, error_class, line in lines:
        yield edit_at(operator, error_class, path, text, span, f"{indent}{line}\n")


def _type_edits(path: str, text: str, members: list[_Member]) -> Iterator[SettingsEdit]:
    for member in members:
        if not member.key:
            yield edit_at("missing_element", "configuration", path, text, _whole(text, member), "")
        elif member.key == "extends":
            yield edit_at("wrong_base", "dependency", path, text, member.inner_span, f"{member.text}s")
            yield edit_at("missing_base", "configuration", path, text, _whole(text, member), "")
        elif member.section[1:2] == ("compilerOptions",):
            yield edit_at("misspelled_option", "build_tool", path, text, member.key_span, f"{member.key}s")
            if member.value in _OTHER_FLAG:
                yield edit_at("other_flag", "build_tool", path, text, member.value_span, _OTHER_FLAG[member.value])
            elif member.value.startswith('"'):
                yield edit_at("unknown_value", "build_tool", path, text, member.value_span, _UNKNOWN_TARGET)
            if member.value not in ("{", "["):
                yield edit_at("missing_option", "build_tool", path, text, _whole(text, member), "")


def _syntax_edits(path: str, text: str, members: list[_Member]) -> Iterator[SettingsEdit]:
    for member in members:
        if member.value in ("{", "["):
            continue
        if text[member.end - 1] == ",":
            yield edit_at("missing_comma", "configuration", path, text, (member.end - 1, member.end), "")
        else:
            yield edit_at("trailing_comma", "configuration", path, text, (member.end, member.end), ",")
        if member.value.startswith('"'):
            span = member.value_span[1] - 1, member.value_span[1]
            yield edit_at("unclosed_text", "configuration", path, text, span, "")


def _whole(text: str, member: _Member) -> tuple[int, int]:
    """Return the span of the line of ``member``; of the last one with the comma before it."""
    start = text.rfind("\n", 0, member.value_span[0])
    is_last = text[member.end - 1] != ","
    return start - (is_last and text[start - 1] == ","), member.end
