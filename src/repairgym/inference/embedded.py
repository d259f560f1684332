"""The embedded engine as a policy: one engine answers many coroutines in batches.

Guarantees: one step of the engine runs at a time; weights change only between generations, so every generation has one
policy version.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import torch

from repairgym.config.models import DtypeName, EngineConfig
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.engine.core import Engine
from repairgym.inference.engine.requests import Request
from repairgym.inference.engine.shaping import Shaping
from repairgym.inference.loading import load_model

Watch = Callable[[Request], bool]
"""Sees a running request after each of its tokens; True ends it."""


class EmbeddedPolicy:
    """A policy over an :class:`~repairgym.inference.engine.core.Engine` of this process, used by it only."""

    def __init__(self, engine: Engine, policy_id: str = "embedded", *, is_threaded: bool = True) -> None:
        """``is_threaded``: steps run in a separate thread, so that the event loop can serve sandboxes meanwhile."""
        self.id = policy_id
        self._engine = engine
        self.statistics = engine.statistics
        self.max_len_tokens = engine.config.max_len_tokens
        """Longest prompt plus completion."""
        self._futures: dict[int, tuple[Request, asyncio.Future[None], Watch | None]] = {}
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="engine") if is_threaded else None
        self._driver: asyncio.Task[None] | None = None
        # Held during a step and while the engine's state changes.
        self._lock = asyncio.Lock()
        self._is_open = asyncio.Event()
        self._is_open.set()

    @classmethod
    def from_folder(
        cls, folder: Path, config: EngineConfig | None = None, *, dtype: DtypeName = "float32", device: str = "cpu"
    ) -> Self:
        """Serve the model of ``folder``; raises as `load_model` and `Engine`."""
        return cls(Engine(load_model(folder, dtype, device), config), policy_id=folder.name)

    @property
    def version(self) -> int:
        """Version of the served weights."""
        return self._engine.version

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Continue ``prompt_ids`` by at most ``max_len_tokens - len(prompt_ids)`` tokens; raises as `Engine.submit`."""
        return await self.generate_shaped(session_id, prompt_ids, sampling, None, None)

    async def recall(
        self, session_id: str, prompt_ids: list[int], sampling: SamplingParams, generation: Generation
    ) -> None:
        """Compute keys and values in the steps in which an earlier process did, where their last bits count.

        Otherwise the next prompt brings everything that is missing, in one step.
        """
        if not self._engine.config.is_batch_invariant or not generation.token_ids:
            return
        await self._is_open.wait()
        async with self._lock:
            request = self._engine.submit(
                session_id,
                prompt_ids,
                max_tokens=len(generation.token_ids),
                stop_token_ids=sampling.stop_token_ids,
                forced_ids=generation.token_ids,
            )
        await self._wait(request, None)

    async def generate_shaped(
        self,
        session_id: str,
        prompt_ids: list[int],
        sampling: SamplingParams,
        shaping: Shaping | None,
        watch: Watch | None,
    ) -> Generation:
        """Continue ``prompt_ids`` from a distribution changed by ``shaping``, while ``watch`` sees each token."""
        called_at_s = time.monotonic()
        await self._is_open.wait()
        async with self._lock:
            request = self._engine.submit(
                session_id,
                prompt_ids,
                max_tokens=sampling.max_tokens,
                stop_token_ids=sampling.stop_token_ids,
                temperature=sampling.temperature,
                seed=sampling.seed,
                shaping=shaping,
            )
            # Weights cannot change while the request is in the engine.
            version = self._engine.version
        await self._wait(request, watch)
        return Generation(
            token_ids=tuple(request.token_ids),
            log_probs=tuple(request.log_probs),
            is_stopped=request.is_stopped,
            policy_version=version,
            queue_s=request.admitted_at_s - called_at_s,
            prefill_s=request.first_token_at_s - request.admitted_at_s,
            decode_s=request.last_token_at_s - request.first_token_at_s,
        )

    async def end_session(self, session_id: str) -> None:
        """Free the session's slot and cancel its running request."""
        async with self._lock:
            self._engine.end_session(session_id)

    async def load_state(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        """Swap the weights between generations: running ones finish first, new ones wait; raises as the engine's."""
        self._is_open.clear()
        try:
            while not await self._load_if_idle(state, version):
                if self._driver is not None:
                    await asyncio.wait([self._driver])
        finally:
            self._is_open.set()

    async def close(self) -> None:
        """End the engine's thread; waiting generations are cancelled."""
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.wait([self._driver])
        if self._executor is not None:
            self._executor.shutdown()

    async def _load_if_idle(self, state: Mapping[str, torch.Tensor], version: int) -> bool:
        async with self._lock:
            if self._engine.has_work:
                return False
            self._engine.load_state(state, version)
            return True

    async def _wait(self, request: Request, watch: Watch | None) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures[id(request)] = (request, future, watch)
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        try:
            await future
        finally:
            request.is_cancelled = not request.is_done
            self._futures.pop(id(request), None)

    async def _drive(self) -> None:
        """Step while the engine has work; an error of the engine reaches every waiting caller."""
        loop = asyncio.get_running_loop()
        try:
            while self._engine.has_work:
                async with self._lock:
                    if self._executor is None:
                        finished = self._engine.step()
                    else:
                        finished = await loop.run_in_executor(self._executor, self._engine.step)
                self._show_progress()
                for request in finished:
                    self._resolve(request, None)
                await asyncio.sleep(0)
        except Exception as error:
            # No step would drop them, and `load_state` waits until there are none.
            self._engine.cancel_all()
            for request, _, _ in list(self._futures.values()):
                self._resolve(request, error)
        finally:
            for _, future, _ in list(self._futures.values()):
                future.cancel()

    def _show_progress(self) -> None:
        for request, future, watch in list(self._futures.values()):
            if watch is not None and request.token_ids and not future.done() and watch(request):
                # The engine drops it before its next step; what was sampled so far is the result.
                request.is_cancelled = not request.is_done
                self._resolve(request, None)

    def _resolve(self, request: Request, error: Exception | None) -> None:
        future = self._futures.get(id(request), (request, None, None))[1]
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
