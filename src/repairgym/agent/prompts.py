"""Prompts: Markdown templates of ``data/prompts``, or of a user's own files.

Guarantee: a template that names an unknown value is an error, never an empty place.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from repairgym.errors import ConfigError

PROMPTS_FOLDER = Path(__file__).parents[1] / "data" / "prompts"
_SUFFIX = ".md"


def render_prompt(name: str, **values: Any) -> str:
    """Return a prompt: ``name`` is below ``data/prompts``, or a path that ends in ``.md``.

    Raises:
        ConfigError: there is no such template, it is malformed, or it names something else.
    """
    template = _template(name)
    try:
        return template.render(**values)
    except jinja2.UndefinedError as error:
        raise ConfigError(f"prompt {name!r}: {error.message}; it can name {', '.join(sorted(values))}") from None


@lru_cache(maxsize=64)
def _template(name: str) -> jinja2.Template:
    path = Path(name) if name.endswith(_SUFFIX) else PROMPTS_FOLDER / f"{name}{_SUFFIX}"
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    try:
        return environment.from_string(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = sorted(str(file.relative_to(PROMPTS_FOLDER).with_suffix("")) for file in PROMPTS_FOLDER.rglob("*.md"))
        raise ConfigError(f"prompt {name!r} cannot be read ({error.strerror}); shipped prompts are {known}") from None
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"prompt {name!r}, line {error.lineno}: {error.message}") from None
