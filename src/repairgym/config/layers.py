"""Configuration of the layer store: how large it may get, and whether building may use a network.

Reads nothing, makes :class:`LayersConfig`. Invariant: this is the only network that a build, an agent or a test can be
given, and no setting gives one to an agent or a test.
"""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveInt

from repairgym.records import Record


class LayersConfig(Record):
    """Bounds and the network policy of the store of sdists, trees and environments."""

    max_bytes: PositiveInt = 20 << 30
    """Bytes of all layers together; above it the longest unused ones go, when a layer was built and when told
    (`repairgym doctor --collect-layers`)."""
    min_idle_s: NonNegativeFloat = 86_400.0
    """Layers used within this time stay, whatever the store holds; those in use by a live process always do."""
    is_index_allowed: bool = True
    """Building a layer may use the configured package index. False: only what this machine has already."""
