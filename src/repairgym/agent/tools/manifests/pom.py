"""Dependencies and plugins of ``pom.xml``, located by the standard library's expat and changed in place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from xml.parsers import expat

from repairgym.agent.tools.manifests.entry import ManifestEntry, ManifestError, without_lines

_PROPERTY = re.compile(r"\$\{([^}]+)\}")


@dataclass
class _Node:
    """An element; places are bytes of the text in UTF-8."""

    tag: str
    parent: _Node | None
    start: int
    inner: int
    close: int = 0
    end: int = 0
    text: str = ""
    children: list[_Node] = field(default_factory=list)

    def child(self, tag: str) -> _Node | None:
        return next((node for node in self.children if node.tag == tag), None)

    def value(self, tag: str) -> str:
        node = self.child(tag)
        return node.text.strip() if node else ""

    def below(self) -> Iterator[_Node]:
        for node in self.children:
            yield node
            yield from node.below()


class PomEditor:
    """Editor of ``pom.xml``; the version of a property is changed where the property is."""

    ecosystem = "jvm"
    version_form = re.compile(r"[\w.-]+|[\[(][\w.,\s-]*[\])]")
    example = "2.1.3 or '[2,3)'"

    def is_manifest(self, path: str) -> bool:
        """Return True for ``pom.xml``."""
        return PurePosixPath(path).name == "pom.xml"

    def find(self, path: str, text: str) -> list[ManifestEntry]:
        """Return the parent, dependencies, managed dependencies, plugins and extensions."""
        data = text.encode()
        root = _parse(path, data)
        properties = {
            node.tag: node
            for section in root.below()
            if section.tag == "properties" and section.parent is root
            for node in section.children
        }
        entries = []
        for node in root.below():
            if node.tag in ("dependency", "plugin", "parent", "extension") and node.child("artifactId"):
                entries.append(_entry(path, data, node, properties))
        return entries

    def with_version(self, text: str, entry: ManifestEntry, version: str) -> str:
        """Return ``text`` with another version, or with another value of the property that gives it."""
        data = text.encode()
        return (data[: entry.span[0]] + version.encode() + data[entry.span[1] :]).decode()

    def without(self, text: str, entry: ManifestEntry) -> str:
        """Return ``text`` without the element."""
        data = text.encode()
        start, end = (len(data[:place].decode()) for place in entry.extent)
        return without_lines(text, start, end)


def _entry(path: str, data: bytes, node: _Node, properties: dict[str, _Node]) -> ManifestEntry:
    group, artifact, version = node.value("groupId"), node.value("artifactId"), node.child("version")
    group = group or ("org.apache.maven.plugins" if node.tag == "plugin" else "")
    section = (
        f"{node.parent.parent.tag}/" if node.parent and node.parent.tag == "dependencies" and node.parent.parent else ""
    )
    problem = note = ""
    target = version
    if version is None:
        problem = "has no version here: its parent, a dependencyManagement section or an imported BOM decides it"
    elif match := _PROPERTY.fullmatch(version.text.strip()):
        target = properties.get(match[1])
        problem = "" if target else f"has the version {match.group()}, which this file does not define"
        users = data.count(match.group().encode())
        note = f"property {match[1]} is used in {users} places" if users > 1 else f"property {match[1]}"
    elif _PROPERTY.search(version.text):
        problem = f"has the version {version.text.strip()}, which is put together from properties"
    span = _inner(data, target) if target is not None else (0, 0)
    place = f"{section if section != 'project/' else ''}{node.tag}"
    return ManifestEntry(
        path,
        place,
        f"{group}:{artifact}",
        data[span[0] : span[1]].decode(),
        aliases=(artifact,),
        span=span,
        extent=(node.start, node.end),
        problem=problem,
        note=note,
    )


def _inner(data: bytes, node: _Node) -> tuple[int, int]:
    """Return [start, end) of the text of ``node`` without white space around it."""
    raw = data[node.inner : node.close]
    start = node.inner + len(raw) - len(raw.lstrip())
    return start, start + len(raw.strip())


def _parse(path: str, data: bytes) -> _Node:
    root = _Node("", None, 0, 0)
    stack = [root]
    parser = expat.ParserCreate()

    def start(tag: str, _: dict[str, str]) -> None:
        place = parser.CurrentByteIndex
        node = _Node(tag.rpartition(":")[2], stack[-1], place, data.index(b">", place) + 1)
        stack[-1].children.append(node)
        stack.append(node)

    def end(_: str) -> None:
        node = stack.pop()
        node.close = max(parser.CurrentByteIndex, node.inner)
        node.end = data.index(b">", parser.CurrentByteIndex) + 1

    def text(value: str) -> None:
        stack[-1].text += value

    def refuse(*_: object) -> None:
        raise ManifestError(f"{path} has a document type; change it with an edit")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ManifestError(f"{path} is no XML ({error}); correct that first") from None
    if len(root.children) != 1 or root.children[0].tag != "project":
        raise ManifestError(f"{path} has no <project>")
    return root.children[0]
