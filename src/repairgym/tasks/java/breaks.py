"""Edits that break the build of a Java library: in its settings, and in its sources as half-done changes leave them.

Reads a file of a tree. Makes `SettingsEdit` objects with the whole new text. Guarantees: the same tree gives the same
edits in the same order, each recipe once. The build decides whether an edit breaks anything.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from repairgym.records import ErrorClass
from repairgym.tasks.java.gradle_breaks import GRADLE_BREAKS
from repairgym.tasks.java.project import GRADLE, GRADLE_ROOT, POM
from repairgym.tasks.mutation.settings_operators import SettingsEdit, distinct, edit_at

_BLOCK = re.compile(r" *<(dependency|plugin)>\n(?:.*\n)*? *</\1>\n")
_ELEMENT = r"<{0}>([^<]+)</{0}>"
_POM_VALUES: tuple[tuple[str, ErrorClass, str, str, str], ...] = (
    # operator, class of the error, element, pattern of its value, replacement
    ("wrong_version", "version", "version", r"^(\d+\.\d+)\.(\d)$", r"\1.\g<2>7"),
    ("wrong_version", "version", "version", r"^(\d+)\.(\d+).*$", r"\1.\g<2>9.0"),
    ("wrong_artifact", "dependency", "artifactId", r"^(junit|commons-\w+)$", r"\1-api"),
    ("wrong_artifact", "dependency", "artifactId", r"^maven-(\w+)-plugin$", r"maven-\1s-plugin"),
    ("wrong_group", "dependency", "groupId", r"^junit$", "org.junit"),
    ("wrong_group", "dependency", "groupId", r"^org\.apache\.maven\.plugins$", "org.apache.maven.plugin"),
    ("wrong_scope", "dependency", "scope", r"^compile$", "test"),
    ("wrong_scope", "dependency", "scope", r"^compile$", "runtime"),
    ("wrong_scope", "configuration", "scope", r"^test$", "import"),
    ("old_level", "build_tool", "maven.compiler.source", r"^\d+$", "6"),
    ("old_level", "build_tool", "maven.compiler.target", r"^\d+$", "7"),
    ("new_level", "build_tool", "maven.compiler.source", r"^\d+$", "21"),
    ("wrong_encoding", "configuration", "project.build.sourceEncoding", r"^(.*)$", r"\1-BOM"),
    ("wrong_folder", "configuration", "sourceDirectory", r"^src/main/java$", "src/java"),
    ("wrong_folder", "configuration", "testSourceDirectory", r"^src/test/java$", "src/test/java/../.."),
    ("wrong_packaging", "configuration", "packaging", r"^jar$", "bundle"),
    ("wrong_model", "configuration", "modelVersion", r"^4\.0\.0$", "4.1.0"),
)
_IMPORT = re.compile(r"^import (?:static )?[\w.]+\.(\w+);\n", re.MULTILINE)
_METHOD = re.compile(
    r"^    (?:public|protected) (?:static |final )*[\w<>\[\], ]+? (\w+)\([^;{]*\)[^;{]*\{", re.MULTILINE
)
_THROWS = re.compile(r"^ {4}\S[^;{}\n]*\)( throws \w*(?:IO|Execute|Decoder|Encoder|Parse)Exception) \{", re.MULTILINE)
_RETURN = re.compile(r"^ {8}return [^;\n]+;\n(?=    \}\n)", re.MULTILINE)
_LOCAL = re.compile(r"^ {8,12}(?:final )?(String|StringBuilder|StringBuffer|boolean)( \w+ = )", re.MULTILINE)
_OTHER_TYPE = {"String": "int", "StringBuilder": "String", "StringBuffer": "String", "boolean": "String"}
_OVERRIDE = re.compile(r"@Override\s*$")


def find_java_breaks(tree: Path, path: str) -> list[SettingsEdit]:
    """Return the edits of the file ``path`` of ``tree``; none of one that is not UTF-8, as files of tasks are."""
    try:
        text = (tree / path).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return []
    finders = {POM: _pom_edits, GRADLE: _gradle_edits, GRADLE_ROOT: _gradle_edits}
    return distinct(finders[path](path, text) if path in finders else _source_edits(tree, path, text), text)


# --- settings ------------------------------------------------------------------------------------------------------


def _pom_edits(path: str, text: str) -> Iterator[SettingsEdit]:
    for operator, error_class, element, pattern, new in _POM_VALUES:
        for match in re.finditer(_ELEMENT.format(re.escape(element)), text):
            value = re.sub(pattern, new, match[1])
            if value != match[1]:
                yield edit_at(operator, error_class, path, text, match.span(1), value)
    for match in _BLOCK.finditer(text):
        if match[1] == "dependency":
            yield edit_at("missing_dependency", "dependency", path, text, match.span(), "")
        for part in re.finditer(r" *<version>.*\n", match[0]):
            if match[1] == "dependency":
                span = match.start() + part.start(), match.start() + part.end()
                yield edit_at("missing_version", "configuration", path, text, span, "")
    for closing in re.finditer(r" *</(?:dependencies|plugins|properties)>\n", text):
        yield edit_at("unclosed_element", "configuration", path, text, closing.span(), "")


def _gradle_edits(path: str, text: str) -> Iterator[SettingsEdit]:
    for operator, error_class, pattern, new in GRADLE_BREAKS:
        for match in re.finditer(pattern, text, re.MULTILINE):
            yield edit_at(operator, error_class, path, text, match.span(), match.expand(new))


# --- sources -------------------------------------------------------------------------------------------------------


def _source_edits(tree: Path, path: str, text: str) -> Iterator[SettingsEdit]:
    code = without_comments(text)
    for match in _IMPORT.finditer(code):
        if len(re.findall(rf"\b{match[1]}\b", code)) > 1:
            yield edit_at("missing_import", "build_tool", path, text, match.span(), "")
    for match in _METHOD.finditer(code):
        name, before = match[1], code[: match.start()].rstrip()
        is_once = len(re.findall(rf"\b{name}\b", code)) == 1
        if is_once and not _OVERRIDE.search(before) and _is_called(tree, path, name):
            yield edit_at("renamed_method", "build_tool", path, text, match.span(1), f"{name}Impl")
    for match in _THROWS.finditer(code):
        yield edit_at("missing_throws", "build_tool", path, text, match.span(1), "")
    for match in _RETURN.finditer(code):
        yield edit_at("missing_return", "build_tool", path, text, match.span(), "")
    for match in _LOCAL.finditer(code):
        yield edit_at("wrong_type", "build_tool", path, text, match.span(1), _OTHER_TYPE[match[1]])


def without_comments(text: str) -> str:
    """Return ``text`` with blanks in the place of comments: places stay."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.DOTALL)


def _is_called(tree: Path, path: str, name: str) -> bool:
    """Return True when another file of the same source folder calls a method ``name``."""
    root = tree / "src/main/java"
    others = (file for file in sorted(root.rglob("*.java")) if file != tree / path)
    return any(f".{name}(" in file.read_text("utf-8", errors="replace") for file in others)
