"""Dependencies of ``Cargo.toml`` and of Gradle's version catalogs, through tomlkit, which keeps comments and order."""

import re
from collections.abc import Iterator, MutableMapping
from pathlib import PurePosixPath
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from repairgym.agent.tools.manifests.entry import ManifestEntry, ManifestError, keeping_prefix

Table = MutableMapping[str, Any]
_KINDS = ("dependencies", "dev-dependencies", "build-dependencies")


def _parse(path: str, text: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise ManifestError(f"{path} is no TOML ({error}); correct that first") from None


class CargoEditor:
    """Editor of ``Cargo.toml``."""

    ecosystem = "cargo"
    version_form = re.compile(r"[\^~<>=*\w.,\s+-]+")
    example = "1.2 (keeps ^ or ~), =1.2.3 (a pin) or '>=1, <2'"

    def is_manifest(self, path: str) -> bool:
        """Return True for ``Cargo.toml``."""
        return PurePosixPath(path).name == "Cargo.toml"

    def find(self, path: str, text: str) -> list[ManifestEntry]:
        """Return the dependencies of the package, its targets and the workspace."""
        document = _parse(path, text)
        return [
            _crate(path, document, place, name, value)
            for place, table in _cargo_tables(document)
            for name, value in table.items()
        ]

    def with_version(self, text: str, entry: ManifestEntry, version: str) -> str:
        """Return ``text`` with another requirement; a version alone keeps the caret or tilde."""
        document = _parse(entry.path, text)
        table = dict(_cargo_tables(document))[entry.place]
        new = keeping_prefix(entry.version, version)
        if isinstance(table[entry.name], str):
            table[entry.name] = new
        else:
            table[entry.name]["version"] = new
        return tomlkit.dumps(document)

    def without(self, text: str, entry: ManifestEntry) -> str:
        """Return ``text`` without the dependency."""
        document = _parse(entry.path, text)
        del dict(_cargo_tables(document))[entry.place][entry.name]
        return tomlkit.dumps(document)


def _cargo_tables(document: Table) -> Iterator[tuple[str, Table]]:
    """Yield the sections with dependencies, by name."""
    owners: list[tuple[str, Table]] = [("", document), ("workspace.", document.get("workspace", {}))]
    owners += [(f"target.{name}.", table) for name, table in document.get("target", {}).items()]
    for prefix, owner in owners:
        yield from ((f"{prefix}{kind}", owner[kind]) for kind in _KINDS if kind in owner)


def _crate(path: str, document: Table, place: str, name: str, value: Any) -> ManifestEntry:
    version = value if isinstance(value, str) else value.get("version", "")
    problem = ""
    if not version:
        origin = next((key for key in ("workspace", "path", "git") if key in value), "")
        problem = f"has no version here: it comes from `{origin}`" if origin else "has no version here"
    users = [
        feature
        for feature, names in document.get("features", {}).items()
        if any(re.fullmatch(rf"(?:dep:)?{re.escape(name)}\??(?:/.*)?", item) for item in names)
    ]
    note = f"[features] {', '.join(users)} name it" if users else ""
    aliases = (name.replace("_", "-"), name.replace("-", "_"))
    return ManifestEntry(path, place, name, str(version), aliases, problem=problem, note=note)


class CatalogEditor:
    """Editor of version catalogs (``libs.versions.toml``)."""

    ecosystem = "jvm"
    version_form = re.compile(r"[\w.+-]+|[\[\](][\w.,\s-]*[\[\])]")
    example = "2.1.3"

    def is_manifest(self, path: str) -> bool:
        """Return True for ``*.versions.toml``."""
        return path.endswith(".versions.toml")

    def find(self, path: str, text: str) -> list[ManifestEntry]:
        """Return the libraries and plugins."""
        document = _parse(path, text)
        return [
            _library(path, document, section, alias, value)
            for section in ("libraries", "plugins")
            for alias, value in document.get(section, {}).items()
        ]

    def with_version(self, text: str, entry: ManifestEntry, version: str) -> str:
        """Return ``text`` with another version, of the key of [versions] where the entry refers to one."""
        document = _parse(entry.path, text)
        section, alias = entry.place.split(" ")
        table: Table = document[section.strip("[]")]
        value = table[alias]
        if isinstance(value, str):
            table[alias] = f"{value.rpartition(':')[0]}:{version}"
        elif isinstance(value["version"], str):
            value["version"] = version
        else:
            document["versions"][value["version"]["ref"]] = version
        return tomlkit.dumps(document)

    def without(self, text: str, entry: ManifestEntry) -> str:
        """Return ``text`` without the alias, in bundles, too."""
        document = _parse(entry.path, text)
        section, alias = entry.place.split(" ")
        del document[section.strip("[]")][alias]
        for names in document.get("bundles", {}).values() if section == "[libraries]" else ():
            if alias in names:
                names.remove(alias)
        return tomlkit.dumps(document)


def _library(path: str, document: Table, section: str, alias: str, value: Any) -> ManifestEntry:
    if isinstance(value, str):
        name, _, version = value.rpartition(":")
        return ManifestEntry(path, f"[{section}] {alias}", name, version, (alias, name.rpartition(":")[2]))
    name = value.get("module") or value.get("id") or f"{value.get('group', '')}:{value.get('name', '')}"
    written, problem, note = value.get("version", ""), "", ""
    version = written if isinstance(written, str) else ""
    if not written:
        problem = "has no version here: a platform decides it"
    elif not version and "ref" in written and isinstance(document.get("versions", {}).get(written["ref"]), str):
        version, note = document["versions"][written["ref"]], f"[versions] {written['ref']}, and all that refer to it"
    elif not version:
        problem = "has a rich version (strictly, prefer, reject) or an unknown reference; change it with an edit"
    aliases = (alias, str(name).rpartition(":")[2])
    return ManifestEntry(path, f"[{section}] {alias}", str(name), str(version), aliases, problem=problem, note=note)
