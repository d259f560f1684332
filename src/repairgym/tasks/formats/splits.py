"""Names of splits: which of ours a name in a data set, a file or a folder means."""

from __future__ import annotations

import re

from repairgym.records import Split

_SPLITS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
_WORD = re.compile(r"[a-z]+")


def split_of(name: str) -> Split | None:
    """The split that ``name`` means by its first word; None when it means none (``train-00000-of-00002`` is train)."""
    word = _WORD.match(name.lower())
    return _SPLITS.get(word[0]) if word else None
