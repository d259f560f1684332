"""Cache slots: their owners and tokens, their keys and values as one `Cache` of transformers, and admission to them.

`SlotTable` reads prompts; makes slot numbers and prefix lengths. `SlotCache` writes new keys and values at per-row
positions; returns the keys and values that those rows attend to. `Admission` plans *waves* of waiting requests: rows
that can be computed together because no two of them share a worthwhile prefix that is not computed yet; the others wait
for the next wave and copy the prefix, so each distinct prompt token is computed once. Guarantees: `tokens[s,
:lengths[s]]` are exactly the tokens whose keys and values slot s holds; a busy slot is never reassigned; a free slot
keeps its content for sharing until taken; cache index j of a slot belongs to the token at position j, so a plain ``key
position <= query position`` mask is causal, and nothing beyond a slot's length is attended to.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache

from repairgym.config.models import EngineConfig
from repairgym.inference.engine.requests import EngineStatistics, Request

_FORWARD_COST_TOKENS = 64
"""Padding that costs as much as one more forward pass of a small model."""


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
        """Length of the common prefix of ``prompt`` and the content of ``slot``."""
        length = min(int(self.lengths[slot]), len(prompt))
        return count_equal(self.tokens[slot, :length], prompt[:length])

    def best_donor(self, prompt: np.ndarray) -> tuple[int, int]:
        """Return (slot, shared tokens) of the slot that shares the longest prefix with ``prompt``."""
        differs = self.tokens[:, : len(prompt)] != prompt
        first_difference = np.where(differs.any(axis=1), differs.argmax(axis=1), len(prompt))
        shared = np.minimum(first_difference, self.lengths)
        slot = int(shared.argmax())
        return slot, int(shared[slot])

    def take(self, session_id: str, donor: int | None) -> int | None:
        """Give the session a free ``donor``, else a free slot, else the least recently used idle one; None: no slot."""
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
        """Mark the slot's request as finished, so that it may be evicted."""
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


@dataclass(frozen=True)
class ForwardPlan:
    """The places that one forward writes and reads."""

    rows: torch.Tensor
    """[rows] slot of each row."""
    positions: torch.Tensor
    """[rows, length] position of each token; padding goes to the scratch position."""
    num_keys: int
    """Keys [0, num_keys) are read."""
    span: tuple[int, int] | None
    """Slots [first, last) are read in place; None: the rows' slots are gathered."""


class SlotCache(Cache):
    """Static slots: one tensor [layers, 2, slots, kv_heads, max_len + 1, head_dim]; the last position is scratch."""

    def __init__(self, storage: torch.Tensor) -> None:
        super().__init__(layers=[])
        self.storage = storage
        self.scratch_position = storage.shape[4] - 1
        self._layers = [(keys, values) for keys, values in storage]
        self._plan: ForwardPlan | None = None

    def prepare(self, plan: ForwardPlan) -> None:
        """Set the plan of the next forward."""
        self._plan = plan

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [rows, kv_heads, length, head_dim] and return [rows or span, kv_heads, num_keys, head_dim] twice."""
        assert self._plan is not None
        keys, values = self._layers[layer_idx]
        return self._write_and_read(keys, key_states), self._write_and_read(values, value_states)

    def _write_and_read(self, stored: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        plan = self._plan
        assert plan is not None
        if new.shape[2] == 1:
            stored[plan.rows, :, plan.positions[:, 0]] = new[:, :, 0].to(stored.dtype)
        else:
            stored[plan.rows[:, None], :, plan.positions] = new.transpose(1, 2).to(stored.dtype)
        if plan.span is None:
            return stored[:, :, : plan.num_keys].index_select(0, plan.rows)
        return stored[plan.span[0] : plan.span[1], :, : plan.num_keys]

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` positions of slot ``source`` to slot ``target``."""
        self.storage[:, :, target, :, :num_tokens] = self.storage[:, :, source, :, :num_tokens]


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

    def __init__(self, slots: SlotTable, cache: SlotCache, statistics: EngineStatistics, config: EngineConfig) -> None:
        self._slots = slots
        self._cache = cache
        self._statistics = statistics
        self._min_share_tokens = config.min_share_tokens
        self._is_sharing = not config.is_batch_invariant

    def plan_wave(self, waiting: list[Request], complete: set[bytes]) -> tuple[list[PrefillRow], list[Request]]:
        """Choose the rows of the next wave; returns it and the requests that wait for a slot or for a row of it.

        ``waiting`` is in order of arrival; the last logits after the prompts ``complete`` (as bytes) are known.
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
        if own is not None and 0 < own_length == self._slots.lengths[own]:
            return self._start(request, own, own_length, num_shared=0)
        if own is None and not self._slots.has_room:
            return None
        # Without sharing, a slot's content comes from its own session only.
        donor, shared = self._slots.best_donor(prompt) if self._is_sharing else (-1, 0)
        planned = self._best_planned(prompt, wave) if self._is_sharing else 0
        if planned >= max(shared, own_length) + self._min_share_tokens:
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
