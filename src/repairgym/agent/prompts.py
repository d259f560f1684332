"""Prompts: Markdown templates of ``data/prompts``, or of a user's own files.

Reads a template's name or path and values; makes text. Invariant: a template that names a value nobody gives is an
error, never an empty place.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from repairgym.errors import ConfigError

FOLDER = Path(__file__).parents[1] / "data" / "prompts"
_SUFFIX = ".md"


def render_prompt(name: str, **values: Any) -> str:
    """The text of a prompt.

    Args:
        name: Of a template below ``data/prompts`` without its suffix, or a path that ends in ``.md``.
        values: What the template may name.

    Raises:
        ConfigError: there is no such template, or it is none, or it names something else.
    """
    template = _template(name)
    try:
        return template.render(**values)
    except jinja2.UndefinedError as error:
        raise ConfigError(f"prompt {name!r}: {error.message}; it can name {', '.join(sorted(values))}") from None


@lru_cache(maxsize=64)
def _template(name: str) -> jinja2.Template:
    path = Path(name) if name.endswith(_SUFFIX) else FOLDER / f"{name}{_SUFFIX}"
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    try:
        return environment.from_string(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = sorted(str(one.relative_to(FOLDER).with_suffix("")) for one in FOLDER.rglob(f"*{_SUFFIX}"))
        raise ConfigError(f"prompt {name!r} cannot be read ({error.strerror}); shipped prompts are {known}") from None
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"prompt {name!r}, line {error.lineno}: {error.message}") from None
