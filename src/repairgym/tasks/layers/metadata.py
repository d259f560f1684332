"""Statements of a source tree about itself: settings, distribution metadata, license.

Reads ``pyproject.toml``, ``package.json``, metadata and license files as text; makes the metadata of a pinned tree.
Guarantees: no project code runs; nothing is guessed: a tree without a statement has empty settings and no license.
"""

import email
import json
import re
import tomllib
from pathlib import Path
from typing import Any

METADATA_FOLDER = ".dist"
"""Folder of a tree with the metadata for ``importlib.metadata``; a source path of every task."""
MAX_CHARS = 80
_CLASSIFIER = "License :: OSI Approved :: "


def read_settings(tree: Path) -> dict[str, Any]:
    """Return the content of ``pyproject.toml``; empty for a missing or broken file."""
    try:
        return tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return {}


def parse_package_json(text: str) -> dict[str, Any]:
    """Return the content of a ``package.json``; empty for a missing or broken one."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def write_metadata(tree: Path, name: str, version: str, text: str = "") -> None:
    """Write the metadata of a distribution for ``importlib.metadata``: ``text``, or name and version."""
    folder = tree / METADATA_FOLDER / f"{re.sub('[-/]', '_', name)}-{version}.dist-info"
    folder.mkdir(parents=True)
    text = text or f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / "METADATA").write_text(text, encoding="utf-8")


def license_of(tree: Path) -> str:
    """Return the license in the metadata, else in the project's settings, else the first line of the license file."""
    for text in (_from_metadata(tree), _from_pyproject(tree), _from_package_json(tree), _from_file(tree)):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines:
            return lines[0][:MAX_CHARS]
    return ""


def _from_metadata(tree: Path) -> str:
    for path in sorted((tree / METADATA_FOLDER).glob("*.dist-info/METADATA")):
        head = email.message_from_string(path.read_text(encoding="utf-8", errors="replace"))
        classified = [value for value in head.get_all("Classifier") or [] if value.startswith(_CLASSIFIER)]
        named = (head["License-Expression"], head["License"], "".join(classified[:1]).removeprefix(_CLASSIFIER))
        if names := [name for name in named if name and name != "UNKNOWN"]:
            return str(names[0])
    return ""


def _from_pyproject(tree: Path) -> str:
    named = read_settings(tree).get("project", {}).get("license", "")
    return named if isinstance(named, str) else str(named.get("text", ""))


def _from_package_json(tree: Path) -> str:
    path = tree / "package.json"
    named = parse_package_json(path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "").get(
        "license"
    )
    return named if isinstance(named, str) and not named.upper().startswith("SEE LICENSE") else ""


def _from_file(tree: Path) -> str:
    files = sorted(path for path in tree.glob("LICEN[CS]E*") if path.is_file())
    return files[0].read_text(encoding="utf-8", errors="replace") if files else ""
