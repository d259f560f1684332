"""Built copies: files of a JavaScript tree that a build made from its sources, or its sources from, and that show them.

Reads a tree and the paths of its sources. Makes relative paths. Guarantees: no source, no file that `package.json`
names as an entry point, and none that other code of the tree names by a relative path is a copy.
"""

import json
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from repairgym.tasks.javascript.syntax import is_javascript

_FOLDERS = frozenset({"artifacts", "bundle", "bundles", "cjs", "dist", "esm", "out", "umd"})
"""Folders into which builds write."""
_SCRIPT_FOLDER = "build"
"""Holds what builds write, or the scripts that build: a file there is a copy where a source has its name."""
_ORIGINALS = (".coffee", ".ls")
"""Suffixes of files that compile to a source next to them."""
_NAME = re.compile(r"\.(min|bundle|umd)\.[cm]?js$|\.([cm]?[jt]s|min)\.map$")
_TEXT = re.compile(r"""['"`](\.{1,2}/[^'"`\n]*|\.{1,2})['"`]""")
_ENTRY_FIELDS = ("main", "module", "exports", "imports", "bin")
"""Not ``browser`` and its like: no test of node loads them."""
_ENDS = ("", ".js", ".cjs", ".mjs", ".json", "/index.js")


def built_copies(tree: Path, sources: Collection[str]) -> tuple[str, ...]:
    """Return the relative paths of the built copies in ``tree``, sorted; ``sources`` are relative paths, too."""
    paths = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())
    paths = [path for path in paths if "node_modules" not in path.split("/")]
    names = {PurePosixPath(path).stem for path in sources}
    originals = {path.removesuffix(".js") + suffix for path in sources for suffix in _ORIGINALS}
    copies = {path for path in paths if path not in sources and (path in originals or _is_output(path, names))}
    if not copies:
        return ()
    loaders = [path for path in paths if path not in copies and is_javascript(path)]
    needed = copies & set(_entry_points(tree))
    while loaders or needed:
        copies -= needed
        # What a needed file loads is needed, too.
        loaders += needed
        needed = copies & {name for path in loaders for name in _loaded_by(tree, path)}
        loaders = []
    return tuple(sorted(copies))


def _is_output(path: str, names: Collection[str]) -> bool:
    """Return whether ``path`` looks like the output of a build of sources whose files have ``names``."""
    place = PurePosixPath(path)
    if _NAME.search(path):
        return True
    folders = {*_FOLDERS, _SCRIPT_FOLDER} if place.stem in names else _FOLDERS
    return is_javascript(path) and not folders.isdisjoint(place.parts[:-1])


def _entry_points(tree: Path) -> Iterator[str]:
    """Yield the paths that `package.json` names for node."""
    try:
        settings = json.loads((tree / "package.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    for text in (text for field in _ENTRY_FIELDS for text in _texts(settings.get(field))):
        yield from _with_ends(text)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)


def _loaded_by(tree: Path, path: str) -> Iterator[str]:
    """Yield what the relative paths in the texts of the file ``path`` may name."""
    for match in _TEXT.finditer((tree / path).read_text(encoding="utf-8", errors="replace")):
        yield from _with_ends(os.path.join(os.path.dirname(path), match[1]))


def _with_ends(name: str) -> Iterator[str]:
    plain = os.path.normpath(name)
    yield from (plain + end for end in _ENDS)
