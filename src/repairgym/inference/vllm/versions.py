"""What weights are called in a server.

Reads and makes names such as ``3f9a12c4:7``. Invariant: numbers are compared within one lineage only, so the weights of
another run, or of the same run before it was resumed, are never taken for newer ones of this run.
"""

from __future__ import annotations

from dataclasses import dataclass

from repairgym.ledger import UNKNOWN_VERSION


@dataclass(frozen=True)
class Lineage:
    """The weights that one process puts into servers, one after the other."""

    name: str

    def named(self, version: int) -> str:
        """The name of weights ``version``."""
        return f"{self.name}:{version}"

    def version_of(self, name: str) -> int:
        """The version that ``name`` says; `UNKNOWN_VERSION` for weights that are none of these."""
        lineage, _, number = name.rpartition(":")
        return int(number) if lineage == self.name and number.isdecimal() else UNKNOWN_VERSION
