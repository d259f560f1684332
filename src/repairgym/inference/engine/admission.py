"""Admission: from waiting requests to prefill batches, so that each distinct prompt token is computed once.

Reads the slot table and the waiting requests; makes *waves*: rows that can be computed together because no two of them
share a worthwhile prefix that is not computed yet. The others wait for the next wave and copy the prefix.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from repairgym.inference.engine.requests import EngineStatistics, Request
from repairgym.inference.engine.slots import SlotCache, SlotTable, count_equal

_FORWARD_COST_TOKENS = 64
"""Padding that costs as much as one more forward pass of a small model."""


@dataclass(frozen=True)
class PrefillRow:
    """A request in its slot; positions [start, len(prompt)) are to be computed."""

    request: Request
    start: int

    @property
    def num_new(self) -> int:
        """Tokens to compute; 0 when another session's slot held the whole prompt."""
        return len(self.request.prompt) - self.start


class Admission:
    """Plans waves. Copies shared prefixes at planning time, so a later row of a wave can overwrite the source."""

    def __init__(
        self,
        slots: SlotTable,
        cache: SlotCache,
        statistics: EngineStatistics,
        min_share_tokens: int,
        *,
        is_sharing: bool = True,
    ) -> None:
        self._slots = slots
        self._cache = cache
        self._statistics = statistics
        self._min_share_tokens = min_share_tokens
        self._is_sharing = is_sharing

    def plan_wave(self, waiting: list[Request], complete: set[bytes]) -> tuple[list[PrefillRow], list[Request]]:
        """Choose the rows of the next wave.

        Args:
            waiting: Requests in order of arrival.
            complete: Prompts (as bytes) with known last logits, which need no computation.

        Returns:
            The wave and the requests that still wait (for a slot, or for a row of this wave).
        """
        wave: list[PrefillRow] = []
        still_waiting: list[Request] = []
        for request in waiting:
            row = self._place(request, wave, complete)
            if row is None:
                still_waiting.append(request)
            else:
                wave.append(row)
        return wave, still_waiting

    def _place(self, request: Request, wave: list[PrefillRow], complete: set[bytes]) -> PrefillRow | None:
        prompt = request.prompt
        own = self._slots.find(request.session_id)
        own_length = 0 if own is None else self._slots.common_prefix(own, prompt)
        if own is not None and self._is_continued(own, own_length):
            return self._start(request, own, own_length, num_shared=0)
        if own is None and not self._slots.has_room:
            return None
        if not self._is_sharing:
            return self._place_alone(request, own, own_length)
        donor, shared = self._slots.best_donor(prompt)
        if self._best_planned(prompt, wave) >= max(shared, own_length) + self._min_share_tokens:
            return None
        if own is not None and self._slots.lengths[own] > own_length:
            self._statistics.num_resets += 1
        slot = own
        if slot is None:
            slot = self._slots.take(request.session_id, donor if shared >= self._min_share_tokens else None)
        if slot is None:
            return None
        usable = shared if prompt.tobytes() in complete else min(shared, len(prompt) - 1)
        if slot == donor or usable < own_length + self._min_share_tokens:
            held = usable if slot == donor else own_length
            return self._start(request, slot, held, num_shared=held if own is None else 0)
        self._cache.copy_prefix(donor, slot, usable)
        return self._start(request, slot, usable, num_shared=usable)

    def _place_alone(self, request: Request, own: int | None, own_length: int) -> PrefillRow | None:
        """Place a request in a slot whose content comes from this session only."""
        if own is not None and self._slots.lengths[own] > own_length:
            self._statistics.num_resets += 1
        slot = own if own is not None else self._slots.take(request.session_id, None)
        return None if slot is None else self._start(request, slot, own_length, num_shared=0)

    def _is_continued(self, slot: int, own_length: int) -> bool:
        return 0 < own_length == int(self._slots.lengths[slot])

    def _best_planned(self, prompt: np.ndarray, wave: list[PrefillRow]) -> int:
        def shared(other: np.ndarray) -> int:
            length = min(len(other), len(prompt))
            return count_equal(other[:length], prompt[:length])

        return max((shared(row.request.prompt) for row in wave), default=0)

    def _start(self, request: Request, slot: int, held: int, *, num_shared: int) -> PrefillRow:
        """Cut the slot to ``held`` tokens and mark it busy."""
        request.slot = slot
        request.admitted_at_s = time.monotonic()
        # Without the logits of the last token it is computed again: sampling needs them.
        start = held if num_shared == len(request.prompt) else min(held, len(request.prompt) - 1)
        self._slots.hold(slot, 0, request.prompt[:start])
        self._slots.is_busy[slot] = True
        self._statistics.num_shared_tokens += min(num_shared, start)
        self._statistics.num_reused_tokens += start - min(num_shared, start)
        self._statistics.num_prefill_tokens += len(request.prompt) - start
        self._statistics.num_evictions = self._slots.num_evictions
        return PrefillRow(request, start)


def split_batches(
    rows: list[PrefillRow], max_tokens: int, *, is_batch_invariant: bool = False
) -> Iterator[list[PrefillRow]]:
    """Group rows of similar length: a row joins while its padding costs less than a forward of its own."""
    if is_batch_invariant:
        yield from ([row] for row in rows)
        return
    batch: list[PrefillRow] = []
    for row in sorted(rows, key=lambda row: row.num_new):
        if batch:
            padding = len(batch) * (row.num_new - batch[-1].num_new)
            if padding > _FORWARD_COST_TOKENS or (len(batch) + 1) * row.num_new > max_tokens:
                yield batch
                batch = []
        batch.append(row)
    if batch:
        yield batch
