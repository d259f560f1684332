"""Settings of pytest that a task keeps of its repository: data that decides which tests exist and how they end.

Reads the configuration file that pytest would choose in a pinned tree. Makes settings for a `TestRunner`, folders for
``sys.path``, and names of plugins. Guarantees: nothing is executed; options that load code, choose tests or change
reports are left out; the tree is that of the record's base, so that no submission has a say in them.
"""

import configparser
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

_FILES = {
    "pytest.ini": "pytest",
    ".pytest.ini": "pytest",
    "pyproject.toml": "",
    "tox.ini": "pytest",
    "setup.cfg": "tool:pytest",
}
"""Files in pytest's order, each with its section."""
_OWN = ("consider_namespace_packages", "filterwarnings", "markers", "pytester_example_dir", "python_classes",
        "python_functions", "usefixtures", "xfail_strict")  # fmt: skip
_OF_PLUGINS = {"asyncio_": "asyncio", "DJANGO_SETTINGS_MODULE": "django", "env": "env"}
"""Beginnings of the names of settings -> part of the name of the plugin that reads them."""
_LISTS_OF_LINES = ("env", "filterwarnings", "markers")
_IMPORT_MODE = re.compile(r"--import-mode[= ](\w+)")
_PLUGIN = re.compile(r"-p[ =]?([\w.:]+)")

Settings = tuple[tuple[str, str], ...]


def kept_settings(tree: Path, plugins: Sequence[str], is_neighbour: bool) -> Settings:
    """Return the settings of ``tree`` for a run with ``plugins``, in the form of pytest's option ``-o``.

    Filters of warnings are left out on a neighbour of the declared Python, which warns of other things.
    """
    kept: dict[str, str] = {}
    for name, value in _read(tree).items():
        reader = next((part for start, part in _OF_PLUGINS.items() if name.startswith(start)), None)
        is_read = name in _OWN if reader is None else any(reader in plugin for plugin in plugins)
        if is_read and not (is_neighbour and name == "filterwarnings"):
            kept[name] = _text(name, value)
        elif name == "addopts" and (mode := _IMPORT_MODE.search(_text(name, value))):
            kept[name] = mode[0]
    return tuple(sorted(kept.items()))


def search_paths(tree: Path) -> tuple[str, ...]:
    """Return the folders of ``tree`` that its setting ``pythonpath`` names."""
    names = shlex.split(_text("pythonpath", _read(tree).get("pythonpath", "")))
    paths = [PurePosixPath(name) for name in names]
    inside = [path for path in paths if not path.is_absolute() and ".." not in path.parts]
    return tuple("" if str(path) == "." else str(path) for path in inside if (tree / path).is_dir())


def asked_plugins(tree: Path) -> tuple[str, ...]:
    """Return the plugins (``-p NAME``) that the settings of ``tree`` ask for."""
    asked = _PLUGIN.findall(_text("addopts", _read(tree).get("addopts", "")))
    return tuple(dict.fromkeys(name for name in asked if not name.startswith("no:")))


def _read(tree: Path) -> Mapping[str, Any]:
    """Return the settings of the file that pytest would choose; none where it cannot be read."""
    for name, section in _FILES.items():
        path = tree / name
        if path.is_symlink() or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
            settings = _in_ini(text, section) if section else _in_toml(text)
        except (ValueError, configparser.Error):
            continue
        if settings is not None or name.endswith("pytest.ini"):  # these two count even when they say nothing
            return settings or {}
    return {}


def _in_ini(text: str, section: str) -> Mapping[str, Any] | None:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return dict(parser[section]) if parser.has_section(section) else None


def _in_toml(text: str) -> Mapping[str, Any] | None:
    table = tomllib.loads(text).get("tool", {}).get("pytest")
    settings = table.get("ini_options", table) if isinstance(table, dict) else None
    return settings if isinstance(settings, dict) else None


def _text(name: str, value: object) -> str:
    """Return ``value`` as an INI file would have it."""
    if isinstance(value, list):
        texts = [str(item) for item in value]
        return "\n".join(texts) if name in _LISTS_OF_LINES else shlex.join(texts)
    return str(value).lower() if isinstance(value, bool) else str(value).strip()
