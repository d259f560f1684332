"""Requirements of a project, pins of a lock, and settings with another bound on a requirement.

Reads locks, ``pyproject.toml``, ``setup.cfg``, ``setup.py`` and the metadata of an unpacked sdist as text: no project
code runs. Makes requirement lines, versions and `SettingsEdit` objects. Guarantees: names are canonical (PEP 503); a
lock line whose marker is false on this machine names nothing; an edit changes one list of requirements of one file, and
existing bounds stay.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from repairgym.tasks.layers.metadata import read_settings
from repairgym.tasks.mutation.settings_operators import Entry, parse_entries, replace_value

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)\s*(?:;(?P<marker>[^\\]+))?")


def pinned_versions(lock: str) -> dict[str, Version]:
    """Return canonical name -> version of every distribution that ``lock`` installs here."""
    versions: dict[str, Version] = {}
    for line in lock.splitlines():
        match = _PIN.match(line)
        if match and (not match["marker"] or Marker(match["marker"].strip()).evaluate({"extra": ""})):
            versions[canonicalize_name(match["name"])] = Version(match["version"])
    return versions


DEFAULT_BUILD_REQUIREMENTS = ("setuptools", "wheel")
"""Build requirements of a project that names no build back end (PEP 518)."""
Place = Literal["build", "runtime"]
_KEYS: Mapping[Place, tuple[tuple[str, str, str], ...]] = {
    "build": (("pyproject.toml", "build-system", "requires"),),
    "runtime": (
        ("pyproject.toml", "project", "dependencies"),
        ("setup.cfg", "options", "install_requires"),
        ("setup.py", "", "install_requires"),
    ),
}
_SETUP_REQUIRES = (("setup.cfg", "options"), ("setup.py", ""))
_STRING = re.compile(r"(?P<quote>[\"'])(?P<text>[^\"'\n]+)(?P=quote)")


def build_requirements(tree: Path) -> tuple[str, ...]:
    """Return ``[build-system] requires`` of ``tree``, or its default."""
    return tuple(read_settings(tree).get("build-system", {}).get("requires", DEFAULT_BUILD_REQUIREMENTS))


def setup_requirements(tree: Path) -> tuple[str, ...]:
    """Return ``setup_requires`` of ``tree``: what its setup asks for in addition to `build_requirements`."""
    listed = (_listed(tree / path, section, "setup_requires") for path, section in _SETUP_REQUIRES)
    return tuple(str(requirement) for requirements in listed for requirement in requirements)


def runtime_requirements(tree: Path) -> tuple[str, ...]:
    """Return the requirements of ``tree`` without extras, from the metadata of its sdist or else from its settings."""
    for path in sorted(tree.glob("*.egg-info/requires.txt")) + sorted(tree.glob("*/*.egg-info/requires.txt")):
        plain = path.read_text(encoding="utf-8", errors="replace").partition("\n[")[0]
        return tuple(line.strip() for line in plain.splitlines() if line.strip() and not line.startswith("["))
    head = _read(tree / "PKG-INFO").partition("\n\n")[0]
    declared = re.findall(r"^Requires-Dist: (.+)$", head, flags=re.MULTILINE)
    if declared:
        return tuple(text for text in declared if "extra ==" not in text)
    # A value's quoted texts are its items in settings without markers only.
    if listed_here := read_settings(tree).get("project", {}).get("dependencies"):
        return tuple(str(requirement) for requirement in map(_parse, map(str, listed_here)) if requirement)
    listed = (_listed(tree / name, section, key) for name, section, key in _KEYS["runtime"])
    return tuple(str(requirement) for requirements in listed for requirement in requirements)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _listed(path: Path, section: str, key: str) -> Iterator[Requirement]:
    for entry in parse_entries(_read(path)):
        if (entry.section, entry.key) == (section, key):
            yield from filter(None, map(_parse, _items(entry, path.name)))


def _items(entry: Entry, file_name: str) -> list[str]:
    if file_name == "setup.cfg":
        return [line.strip() for line in entry.value.splitlines() if line.strip()]
    return [match.group("text") for match in _STRING.finditer(entry.value)]


def _parse(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


# --- bounds --------------------------------------------------------------------------------------------------------


def bound_edit(
    tree: Path, files: Mapping[str, str | None], place: Place, name: str, bound: str
) -> tuple[str, str] | None:
    """Return (path, new text) of the settings file with an additional ``bound`` on requirement ``name``.

    ``files`` lie over ``tree``. A missing requirement is added to the list. A project without a list of build
    requirements gets one; return None without a list of runtime requirements.
    """
    for path, section, key in _KEYS[place]:
        text = files.get(path) or _read(tree / path)
        entries = parse_entries(text)
        for entry in entries:
            is_meant = (entry.section, entry.key) == (section, key)
            if is_meant and (listed := _with_items(entry, entries, path)):
                return path, replace_value(text, listed, _bounded(listed, path, name, bound))
    if place == "build":
        return "pyproject.toml", _with_build_system(
            files.get("pyproject.toml") or _read(tree / "pyproject.toml"), name, bound
        )
    return None


def _with_items(entry: Entry, entries: Sequence[Entry], path: str) -> Entry | None:
    """Return ``entry`` if its value is a list; in ``setup.py`` else the list whose name is the value."""
    if _items(entry, path):
        return entry
    name = entry.value.strip().rstrip(",").rstrip()
    is_named = path == "setup.py" and name.isidentifier()
    return next((other for other in entries if is_named and other.key == name and _items(other, path)), None)


def _bounded(entry: Entry, path: str, name: str, bound: str) -> str:
    """Return the value of ``entry`` with ``bound`` on ``name``."""
    items = _items(entry, path)
    for item in items:
        requirement = _parse(item)
        if requirement and canonicalize_name(requirement.name) == canonicalize_name(name):
            return entry.value.replace(item, _with_bound(item, bound), 1)
    last = items[-1]
    if path == "setup.cfg":
        indent = re.search(rf"^(\s*){re.escape(last)}", entry.value, flags=re.MULTILINE)
        return entry.value.replace(last, f"{last}\n{indent.group(1) if indent else '    '}{name}{bound}", 1)
    match = list(_STRING.finditer(entry.value))[-1]
    quote = match.group("quote")
    return f"{entry.value[: match.end()]}, {quote}{name}{bound}{quote}{entry.value[match.end() :]}"


def _with_bound(item: str, bound: str) -> str:
    """Add one bound to ``item`` before its marker."""
    plain, semicolon, marker = item.partition(";")
    plain = plain.rstrip()
    comma = "," if re.search(r"[<>=!~]", plain) else ""
    bounded = f"{plain[:-1]}{comma}{bound})" if plain.endswith(")") else f"{plain}{comma}{bound}"
    return bounded + (f" {semicolon}{marker}" if semicolon else "")


def _with_build_system(text: str, name: str, bound: str) -> str:
    others = [other for other in DEFAULT_BUILD_REQUIREMENTS if other != canonicalize_name(name)]
    listed = ", ".join(f'"{line}"' for line in (f"{name}{bound}", *others))
    return f"[build-system]\nrequires = [{listed}]\n" + (f"\n{text}" if text else "")
