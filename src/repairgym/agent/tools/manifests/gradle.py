"""Dependencies and plugins of ``build.gradle``, ``build.gradle.kts`` and ``settings.gradle``, changed in place.

The forms of Gradle's documentation are known: ``implementation 'g:a:v'``, maps of group, name and version, ``id 'p'
version 'v'``, and a version that one variable of the same file holds. Scripts are programs: what is put together in
another way is a problem that the entry names, and is never changed.
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from repairgym.agent.tools.manifests.entry import ManifestEntry, masked, without_lines

_COMMENTS = r"(?s)\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|(?P<comment>/\*.*?\*/|//[^\n]*)"
_CONFIGURATION = (
    r"(?P<conf>\b(?:\w*(?:[iI]mplementation|[aA]pi|[cC]ompile(?:Only|ClassPath)?|[rR]untime(?:Only)?|[cC]lasspath)"
    r"|annotationProcessor|\w*AnnotationProcessor|k[as]pt?\w*|provided\w*|developmentOnly))"
)
_OPEN = r"[ \t]*\(?[ \t]*(?:(?:enforcedPlatform|platform|testFixtures)[ \t]*\([ \t]*)?"
_NOTATION = re.compile(
    _CONFIGURATION + _OPEN + r"(?P<quote>['\"])(?P<group>[\w.-]+):(?P<name>[\w.-]+)"
    r"(?::(?P<version>[^'\":@\n]*))?(?::[\w-]+)?(?:@\w+)?(?P=quote)"
)
_MAP = re.compile(
    _CONFIGURATION + _OPEN + r"group\s*[:=]\s*['\"](?P<group>[\w.-]+)['\"],\s*name\s*[:=]\s*['\"](?P<name>[\w.-]+)['\"]"
    r"(?:,\s*version\s*[:=]\s*(?P<quote>['\"])?(?P<version>[^'\",)\s]+)['\"]?)?"
)
_PLUGIN = re.compile(
    r"\b(?:(?P<conf>id|alias)[ \t(]+['\"](?P<name>[\w.-]+)['\"]|kotlin\(['\"](?P<kotlin>[\w.-]+)['\"])\)?"
    r"[ \t]+version[ \t(]+(?P<quote>['\"])(?P<version>[^'\"]+)['\"]"
)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")


class GradleEditor:
    """Editor of Gradle's scripts in Groovy and Kotlin."""

    ecosystem = "jvm"
    version_form = re.compile(r"[\w.+-]+|[\[\](][\w.,\s-]*[\[\])]")
    example = "2.1.3 or '[2,3)'"

    def is_manifest(self, path: str) -> bool:
        """Return True for a build or settings script."""
        return bool(re.fullmatch(r".*\.gradle(\.kts)?", PurePosixPath(path).name))

    def find(self, path: str, text: str) -> list[ManifestEntry]:
        """Return the dependencies and plugins that are declared with their names."""
        code = masked(text, _COMMENTS)
        matches = [(match, form) for form in (_NOTATION, _MAP, _PLUGIN) for match in form.finditer(code)]
        matches.sort(key=lambda pair: pair[0].start())
        return [_entry(path, code, match) for match, _ in matches]

    def with_version(self, text: str, entry: ManifestEntry, version: str) -> str:
        """Return ``text`` with another version."""
        return text[: entry.span[0]] + version + text[entry.span[1] :]

    def without(self, text: str, entry: ManifestEntry) -> str:
        """Return ``text`` without the statement."""
        return without_lines(text, *entry.extent)


def _entry(path: str, code: str, match: re.Match[str]) -> ManifestEntry:
    groups = match.groupdict()
    aliases: tuple[str, ...]
    if groups.get("kotlin"):
        name, aliases = (
            f"org.jetbrains.kotlin.{groups['kotlin']}",
            (f"kotlin-{groups['kotlin']}", str(groups["kotlin"])),
        )
    elif "group" in groups:
        name, aliases = f"{groups['group']}:{groups['name']}", (str(groups["name"]),)
    else:
        name, aliases = str(groups["name"]), ()
    version, span, problem, note = str(groups["version"] or ""), match.span("version"), "", ""
    if not version:
        span, problem = (0, 0), "has no version here: a platform, a catalog or a plugin decides it"
    elif groups["quote"] is None or "$" in version:
        variable = _VARIABLE.fullmatch(version)[1] if _VARIABLE.fullmatch(version) else version  # type: ignore[index]
        places = list(_definitions(code, variable)) if re.fullmatch(r"\w+", variable) else []
        if len(places) == 1:
            span, note = places[0], f"variable {variable}"
            version = code[span[0] : span[1]]
        else:
            span, problem = (0, 0), f"has the version {version}, which this file does not define exactly once"
    place = groups.get("conf") or "plugin"
    place = "plugins" if place in ("id", "alias", "plugin") else place
    return ManifestEntry(path, place, name, version, aliases, span, _statement(code, match), problem, note)


def _definitions(code: str, variable: str) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of the text that is assigned to ``variable``."""
    pattern = rf"(?<![\w$]){variable}\b(?:[\"']\])?\s*(?::\s*String\s*)?(?:by\s+extra\(|=)\s*['\"]([^'\"$\n]*)['\"]"
    yield from (match.span(1) for match in re.finditer(pattern, code))


def _statement(code: str, match: re.Match[str]) -> tuple[int, int]:
    """Return [start, end) of the statement of ``match``: closing brackets and a block that follows included."""
    end = match.end()
    depth = match.group().count("(") - match.group().count(")")
    while depth > 0 and end < len(code):
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        end += 1
    block = re.compile(r"[ \t]*\{").match(code, end)
    if block:
        end, depth = block.end(), 1
        while depth and end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
    rest = re.compile(r"[ \t]*(?=\n|$)").match(code, end)  # a comment is white space here
    return match.start(), rest.end() if rest else end
