"""Configurations that ship with the package: settings of the papers, of the demo and of small runs."""

import difflib
import re
import textwrap
from itertools import takewhile
from pathlib import Path

from repairgym.errors import ConfigError

FOLDER = Path(__file__).parents[1] / "data" / "presets"


def preset_names() -> list[str]:
    """Return the names of all presets, e.g. ``paper_b/rft``."""
    return sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.toml"))


def preset_file(name: str) -> Path:
    """Return the TOML file of the preset ``name``.

    Raises:
        ConfigError: there is no such preset.
    """
    names = preset_names()
    if name.removesuffix(".toml") not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise ConfigError(f"got the preset {name!r}{hint} presets: {', '.join(names)}")
    return FOLDER / f"{name.removesuffix('.toml')}.toml"


def preset_title(name: str) -> str:
    """Return the first sentence of the comment at the head of a preset."""
    lines = preset_file(name).read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines))
    return textwrap.shorten(re.split(r"\.( |$)", comment)[0], 110, placeholder=" ...")


def file_or_preset(name: Path | None) -> Path | None:
    """Return ``name`` where it is a file; else the preset of that name.

    Raises:
        ConfigError: neither exists.
    """
    return name if name is None or name.is_file() or name.suffix == ".toml" else preset_file(str(name))
