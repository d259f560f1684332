"""Which session owns which cache slot, and which tokens each slot holds.

Reads prompts; makes slot numbers and prefix lengths. Invariants: `tokens[s, :lengths[s]]` are exactly the tokens whose
keys and values slot s holds; a busy slot is never given away; a free slot keeps its content for sharing until taken.
"""

from __future__ import annotations

import numpy as np


class SlotTable:
    """Bookkeeping of ``num_slots`` slots of ``max_len_tokens`` tokens."""

    def __init__(self, num_slots: int, max_len_tokens: int) -> None:
        self.tokens = np.zeros((num_slots, max_len_tokens), dtype=np.int32)
        self.lengths = np.zeros(num_slots, dtype=np.int64)
        self.is_busy = np.zeros(num_slots, dtype=bool)
        self._last_used = np.zeros(num_slots, dtype=np.int64)
        self._owner: list[str | None] = [None] * num_slots
        self._slot_of: dict[str, int] = {}
        self._clock = 0
        self.num_evictions = 0

    @property
    def has_room(self) -> bool:
        """True when `take` would succeed."""
        return not bool(self.is_busy.all())

    def find(self, session_id: str) -> int | None:
        """The session's slot, None when it has none."""
        return self._slot_of.get(session_id)

    def common_prefix(self, slot: int, prompt: np.ndarray) -> int:
        """Tokens that ``prompt`` and the content of ``slot`` share from the start."""
        length = min(int(self.lengths[slot]), len(prompt))
        return count_equal(self.tokens[slot, :length], prompt[:length])

    def best_donor(self, prompt: np.ndarray) -> tuple[int, int]:
        """(slot, shared tokens) of the slot whose content shares the longest prefix with ``prompt``."""
        differs = self.tokens[:, : len(prompt)] != prompt
        first_difference = np.where(differs.any(axis=1), differs.argmax(axis=1), len(prompt))
        shared = np.minimum(first_difference, self.lengths)
        slot = int(shared.argmax())
        return slot, int(shared[slot])

    def take(self, session_id: str, donor: int | None) -> int | None:
        """Give the session a slot: a free donor itself, else the first free one, else the least recently used idle one.

        Args:
            session_id: The new owner.
            donor: Slot that holds a worthwhile prefix, None when there is none.

        Returns:
            The slot, or None when every slot is busy.
        """
        slot = donor if donor is not None and self._owner[donor] is None else self._first_available()
        if slot is None:
            return None
        owner = self._owner[slot]
        if owner is not None:
            del self._slot_of[owner]
            self.num_evictions += 1
        self._owner[slot] = session_id
        self._slot_of[session_id] = slot
        return slot

    def _first_available(self) -> int | None:
        free = next((slot for slot, owner in enumerate(self._owner) if owner is None), None)
        if free is not None:
            return free
        idle = np.flatnonzero(~self.is_busy)
        return int(idle[self._last_used[idle].argmin()]) if len(idle) else None

    def hold(self, slot: int, start: int, token_ids: np.ndarray) -> None:
        """Record that ``slot`` now holds ``token_ids`` from position ``start`` and nothing after them."""
        end = start + len(token_ids)
        self.tokens[slot, start:end] = token_ids
        self.lengths[slot] = end

    def rest(self, slot: int) -> None:
        """The slot's request is over: it may be evicted from now on."""
        self._clock += 1
        self._last_used[slot] = self._clock
        self.is_busy[slot] = False

    def release(self, session_id: str) -> None:
        """Free the session's slot; unknown sessions are ignored."""
        slot = self._slot_of.pop(session_id, None)
        if slot is not None:
            self._owner[slot] = None
            self.is_busy[slot] = False

    def clear(self) -> None:
        """Forget all contents (the weights changed); owners keep their slots."""
        self.lengths[:] = 0


def count_equal(left: np.ndarray, right: np.ndarray) -> int:
    """Length of the common prefix of two equally long arrays."""
    differs = left != right
    return int(differs.argmax()) if differs.any() else len(left)
