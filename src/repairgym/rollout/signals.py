"""Signals of an update at the sampled tokens of a trajectory, as ``run.db`` keeps them.

Reads and makes blobs. Invariants: `unpack_signals(pack_signals(x))` equals x bit for bit; the table is made by the
first update that has something to store, so that a store without it is whole.
"""

import zlib
from dataclasses import dataclass, fields

import numpy as np

SIGNALS_TABLE = """CREATE TABLE IF NOT EXISTS signals (
    number INTEGER PRIMARY KEY REFERENCES trajectories (number) ON DELETE CASCADE, signals BLOB NOT NULL)"""


@dataclass(frozen=True)
class TokenSignals:
    """Values of the learned tokens of one trajectory; arrays are [learned], in the order of ``place``."""

    place: np.ndarray
    """int32 index in the ledger. Sampled tokens that are not listed were masked."""
    weight: np.ndarray
    """float32 weight in the loss before the normalizer of the batch."""
    advantage: np.ndarray
    """float32."""
    old_log_prob: np.ndarray
    """float32, the denominator of the ratio: the sampler's, or with a correction the learner's before the update."""
    log_prob: np.ndarray
    """float32 under the learner when it learned the token."""
    entropy: np.ndarray
    """float32 of the learner's distribution there, in nats."""
    num_steps: np.ndarray
    """int32 optimizer steps of the same update before."""

    @property
    def ratio(self) -> np.ndarray:
        """[learned] float64 ratio of the loss, before any clipping."""
        ratio: np.ndarray = np.exp(self.log_prob.astype(np.float64) - self.old_log_prob)
        return ratio


_NAMES = tuple(field.name for field in fields(TokenSignals))
_INTEGERS = ("place", "num_steps")


def pack_signals(signals: TokenSignals) -> bytes:
    """The arrays, little-endian, one after the other; zlib-compressed."""
    arrays = ((name, getattr(signals, name)) for name in _NAMES)
    parts = [array.astype("<i4" if name in _INTEGERS else "<f4").tobytes() for name, array in arrays]
    return len(signals.place).to_bytes(4, "little") + zlib.compress(b"".join(parts), level=1)


def unpack_signals(blob: bytes) -> TokenSignals:
    """Inverse of :func:`pack_signals`."""
    length, raw = int.from_bytes(blob[:4], "little"), zlib.decompress(blob[4:])
    arrays = {}
    for index, name in enumerate(_NAMES):
        stored, native = ("<i4", np.int32) if name in _INTEGERS else ("<f4", np.float32)
        arrays[name] = np.frombuffer(raw, stored, length, offset=4 * length * index).astype(native)
    return TokenSignals(**arrays)
