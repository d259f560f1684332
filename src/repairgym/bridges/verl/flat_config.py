"""The single values of a configuration, taken one by one, so that none is overlooked.

Reads Records; makes dotted names and values. Invariant: `FlatConfig.left` names every value that nobody has taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from repairgym.records import Record


class FlatConfig:
    """The values of a Record by dotted name; sequences and mappings of plain values are one value."""

    def __init__(self, config: Mapping[str, Record]) -> None:
        """Nothing is taken yet; ``config`` has a name for each Record."""
        self._values: dict[str, Any] = {}
        for name, record in config.items():
            self._values |= dict(_flatten(name, record))
        self.left = set(self._values)

    def take(self, name: str) -> Any:
        """The value of ``name``, which counts as taken from now on."""
        self.left.discard(name)
        return self._values[name]

    def peek(self, name: str) -> Any:
        """The value of ``name``, which somebody else takes."""
        return self._values[name]

    def take_section(self, prefix: str, *, keep: str = "") -> None:
        """Count everything below ``prefix`` as taken, but for ``keep``."""
        below = {name for name in self.left if name == prefix or name.startswith(f"{prefix}.")}
        self.left -= below - {keep}

    def __contains__(self, name: str) -> bool:
        return name in self._values


def _flatten(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Record):
        yield prefix, value
        return
    for name in type(value).model_fields:
        yield from _flatten(f"{prefix}.{name}", getattr(value, name))
