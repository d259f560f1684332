"""The license of a source tree, as the tree states it.

Reads metadata, settings and license files of a pinned tree. Makes one line. Guarantees: nothing is guessed; a tree
without a statement has the empty license.
"""

import email
import tomllib
from pathlib import Path

from repairgym.tasks.layers.store import METADATA_FOLDER

MAX_CHARS = 80
_CLASSIFIER = "License :: OSI Approved :: "


def license_of(tree: Path) -> str:
    """Return the license in the metadata, else in ``pyproject.toml``, else the first line of the license file."""
    for text in (_from_metadata(tree), _from_pyproject(tree), _from_file(tree)):
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
    try:
        project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return ""
    named = project.get("license", "")
    return named if isinstance(named, str) else str(named.get("text", ""))


def _from_file(tree: Path) -> str:
    files = sorted(path for path in tree.glob("LICEN[CS]E*") if path.is_file())
    return files[0].read_text(encoding="utf-8", errors="replace") if files else ""
