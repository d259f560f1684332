"""Records of the changes to a tree: one `FileChange` per path, and the `Diff` that carries them as a patch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ChangeKind = Literal["added", "deleted", "modified"]
Omission = Literal["", "binary", "large", "special"]
"""Why a change is not in a patch: nothing, no text, too many bytes, no file or link."""


@dataclass(frozen=True)
class FileChange:
    """One path that is not what it was at the start."""

    path: str
    kind: ChangeKind
    before_mode: int | None
    """0o100644, 0o100755 or 0o120000 (link); None when there was none."""
    after_mode: int | None
    num_bytes: int
    """Size now; 0 when deleted."""
    omission: Omission = ""
    """Why the patch does not carry it; empty when it does."""


@dataclass(frozen=True)
class Diff:
    """What differs from the sandbox's start. Empty folders, byte-code, caches and ``.git`` are not looked at."""

    patch: bytes
    """For ``git apply``: additions, deletions, modes, links; a rename is a deletion and an addition."""
    changes: tuple[FileChange, ...] = ()
    """Sorted by path; also those that the patch does not carry."""

    @property
    def is_complete(self) -> bool:
        """Whether the patch carries every change."""
        return not any(change.omission for change in self.changes)

    @property
    def text(self) -> str:
        """The patch as text; bytes that are no UTF-8 become surrogate escapes."""
        return self.patch.decode("utf-8", "surrogateescape")
