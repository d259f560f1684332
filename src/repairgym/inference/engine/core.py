"""The embedded inference engine: continuous batching over sessions whose keys and values stay between turns.

Reads requests (whole prompts as token ids); makes sampled token ids with exact log-probabilities. Guarantees: each
distinct prompt token is computed once while a slot holds it; a session's result does not depend on the rest of the
batch, up to float noise, and bit for bit with `is_batch_invariant`; new weights never see keys and values of old ones.
"""

import time
from collections.abc import Mapping

import numpy as np
import torch
from transformers import PreTrainedModel

from repairgym.config.models import EngineConfig
from repairgym.errors import ConfigError
from repairgym.inference.engine.forward import SlotModel
from repairgym.inference.engine.requests import EngineStatistics, Request, draw_uniforms, sample_tokens
from repairgym.inference.engine.shaping import Shaping, shape_logits, top_tokens
from repairgym.inference.engine.slots import Admission, PrefillRow, SlotTable, split_batches


class Engine:
    """Synchronous engine: `submit` requests, call `step` until they are done. Not thread-safe; it owns the model."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig | None = None, *, version: int = 0) -> None:
        """Allocate the slots; `ConfigError` if the model cannot be served exactly (see `check_supported`)."""
        self.config = config or EngineConfig()
        self.version = version
        self.statistics = EngineStatistics()
        self._model = SlotModel(model, self.config.num_slots, self.config.max_len_tokens)
        self._slots = SlotTable(self.config.num_slots, self.config.max_len_tokens)
        self._admission = Admission(self._slots, self._model.cache, self.statistics, self.config)
        self._waiting: list[Request] = []
        self._running: list[Request] = []

    @property
    def has_work(self) -> bool:
        """True when requests wait or run."""
        return bool(self._waiting or self._running)

    def submit(
        self,
        session_id: str,
        prompt_ids: list[int],
        *,
        max_tokens: int,
        stop_token_ids: tuple[int, ...],
        temperature: float = 1.0,
        seed: int = 0,
        shaping: Shaping | None = None,
        forced_ids: tuple[int, ...] = (),
    ) -> Request:
        """Queue a generation, whose fields the next steps fill; `ConfigError` without room or for a busy session."""
        room = self.config.max_len_tokens - len(prompt_ids)
        if not prompt_ids or room < 1 or max_tokens < 1:
            raise ConfigError(
                f"prompt of {len(prompt_ids)} tokens and max_tokens={max_tokens}; expected at least one token each and "
                f"less than max_len_tokens={self.config.max_len_tokens} in all; raise it or end the episode earlier"
            )
        count = min(max_tokens, room)
        others = [other for other in self._waiting + self._running if not other.is_cancelled]
        if any(other.session_id == session_id for other in others):
            raise ConfigError(f"session {session_id!r} already generates; wait for its end or use another session")
        request = Request(
            session_id=session_id,
            prompt=np.asarray(prompt_ids, dtype=np.int32),
            max_tokens=count,
            stop_token_ids=frozenset(stop_token_ids),
            temperature=temperature,
            uniforms=draw_uniforms(seed, len(prompt_ids), count),
            shaping=shaping,
            forced_ids=forced_ids,
        )
        self._waiting.append(request)
        return request

    def end_session(self, session_id: str) -> None:
        """Free the session's slot and cancel its request; the content stays for sharing until the slot is taken."""
        for request in self._waiting + self._running:
            if request.session_id == session_id:
                request.is_cancelled = True
        self._drop_cancelled()
        self._slots.release(session_id)

    def cancel_all(self) -> None:
        """Cancel every request."""
        for request in self._waiting + self._running:
            request.is_cancelled = True
        self._drop_cancelled()

    def step(self) -> list[Request]:
        """Admit waiting requests, then feed one token to each running row; returns the finished requests."""
        self._drop_cancelled()
        self.statistics.num_steps += 1
        finished = self._admit() if self._should_admit() else []
        if self._running:
            finished += self._decode()
        return finished

    def load_state(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        """Swap the weights and drop all keys and values; `ConfigError` if they do not fit or a request is running."""
        if self.has_work:
            raise ConfigError(f"{len(self._running)} requests are running; let them end before swapping weights")
        try:
            self._model.model.load_state_dict(state)
        except RuntimeError as error:
            raise ConfigError(f"weights that do not fit the model: {str(error).splitlines()[-1].strip()}") from error
        self._slots.clear()
        self.version = version

    def _drop_cancelled(self) -> None:
        for request in self._running:
            if request.is_cancelled:
                self._slots.rest(request.slot)
        self._running = [request for request in self._running if not request.is_cancelled]
        self._waiting = [request for request in self._waiting if not request.is_cancelled]

    def _should_admit(self) -> bool:
        """Collect a few requests before a prefill: a forward for one short row costs as much as for many."""
        if not self._waiting:
            return False
        for request in self._waiting:
            request.num_waited_steps += 1
        is_enough = len(self._waiting) >= self.config.admit_fraction * len(self._running)
        return is_enough or self._waiting[0].num_waited_steps > self.config.admit_wait_steps

    def _admit(self) -> list[Request]:
        begin = time.perf_counter()
        logits_of: dict[bytes, torch.Tensor] = {}
        admitted: list[Request] = []
        while self._waiting:
            wave, self._waiting = self._admission.plan_wave(self._waiting, set(logits_of))
            if not wave:
                break
            self._run_wave(wave, logits_of)
            admitted += [row.request for row in wave]
        self._running += [request for request in admitted if not request.is_done]
        self._running.sort(key=lambda request: request.slot)
        self.statistics.prefill_s += time.perf_counter() - begin
        return self._finish([request for request in admitted if request.is_done])

    def _run_wave(self, wave: list[PrefillRow], logits_of: dict[bytes, torch.Tensor]) -> None:
        held = [row.request for row in wave if row.num_new == 0]
        if held:
            self._sample(held, torch.stack([logits_of[request.prompt.tobytes()] for request in held]))
        new_rows = [row for row in wave if row.num_new]
        is_batch_invariant = self.config.is_batch_invariant
        for batch in split_batches(new_rows, self.config.prefill_tokens, is_batch_invariant=is_batch_invariant):
            logits = self._prefill(batch)
            requests = [row.request for row in batch]
            for request, row_logits in zip(requests, logits, strict=True):
                logits_of[request.prompt.tobytes()] = row_logits
            self._sample(requests, logits)

    def _prefill(self, batch: list[PrefillRow]) -> torch.Tensor:
        """Logits [rows, vocab] after each prompt; a row longer than the budget runs alone, in chunks."""
        longest = max(row.num_new for row in batch)
        self.statistics.num_padded_tokens += sum(longest - row.num_new for row in batch)
        slots = [row.request.slot for row in batch]
        for offset in range(0, longest, self.config.prefill_tokens):
            end = offset + self.config.prefill_tokens
            starts = [row.start + offset for row in batch]
            new_tokens = [row.request.prompt[row.start + offset : row.start + end] for row in batch]
            logits = self._model.prefill(slots, starts, new_tokens)
            self.statistics.num_prefill_forwards += 1
        for row in batch:
            self._slots.hold(row.request.slot, row.start, row.request.prompt[row.start :])
        return logits

    def _decode(self) -> list[Request]:
        begin = time.perf_counter()
        running = self._running
        for rows in [[request] for request in running] if self.config.is_batch_invariant else [running]:
            self._decode_rows(rows)
        self._running = [request for request in running if not request.is_done]
        self.statistics.decode_s += time.perf_counter() - begin
        return self._finish([request for request in running if request.is_done])

    def _decode_rows(self, requests: list[Request]) -> None:
        slots = np.array([request.slot for request in requests])
        fed = np.array([request.token_ids[-1] for request in requests])
        positions = self._slots.lengths[slots]
        logits = self._model.decode(slots, positions, fed)
        self._slots.tokens[slots, positions] = fed
        self._slots.lengths[slots] = positions + 1
        self._sample(requests, logits)

    def _sample(self, requests: list[Request], logits: torch.Tensor) -> None:
        begin = time.perf_counter()
        device = logits.device
        shaped = [(row, request, request.shaping) for row, request in enumerate(requests) if request.shaping]
        if shaped:
            # The same tensor may serve another request with this prompt.
            logits = logits.float().clone()
            for row, request, shaping in shaped:
                logits[row] = shape_logits(logits[row], request.temperature, request.token_ids, shaping)
        temperatures = torch.tensor([request.temperature for request in requests], device=device)
        uniforms = torch.tensor(
            [request.uniforms[len(request.token_ids)] for request in requests], dtype=torch.float64, device=device
        )
        token_ids, log_probs = sample_tokens(logits, temperatures, uniforms)
        for request, token_id, log_prob in zip(requests, token_ids.tolist(), log_probs.tolist(), strict=True):
            forced = request.forced_ids
            request.append(forced[len(request.token_ids)] if forced else token_id, log_prob)
        for row, request, shaping in shaped:
            if shaping.num_top:
                request.top_tokens.append(top_tokens(logits[row], request.temperature, shaping.num_top))
        self.statistics.num_decode_tokens += len(requests)
        self.statistics.sample_s += time.perf_counter() - begin

    def _finish(self, requests: list[Request]) -> list[Request]:
        for request in requests:
            self._slots.rest(request.slot)
        return requests
