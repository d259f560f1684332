"""Putting new weights into servers while episodes run, and proving that they arrived.

Reads a model folder (or the adapter in it) that the servers see, too; changes the servers. Invariants: while weights
change nothing is sampled; a server that failed in the middle has no version, so what it samples is refused; after
`load` no key or value of older weights is used again; `compare` believes the learner, not what a server says of itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from repairgym.errors import ModelServerError, ServerDownError, ServerRefusedError, StaleWeightsError
from repairgym.inference.vllm.server import TokenServer
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


_LOADING = "loading"
"""Name of weights that are neither the old ones nor the new ones yet."""


@dataclass(frozen=True)
class Transfer:
    """How weights get into servers."""

    kind: Literal["folder", "lora"] = "folder"
    pause: Literal["keep", "wait"] = "keep"
    adapter_name: str = ""
    """With ``lora``: the name under which requests ask for the adapter."""


@dataclass(frozen=True)
class Probe:
    """A sequence and what the learner thinks of it."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Natural, of each token after the first."""


class WeightUpdater:
    """Updates all servers of a run."""

    def __init__(self, servers: Sequence[TokenServer], transfer: Transfer, lineage: Lineage) -> None:
        """Update ``servers`` by ``transfer``; ``lineage`` names what they get."""
        self._servers = list(servers)
        self._transfer = transfer
        self._lineage = lineage

    async def load(self, folder: Path, version: int) -> list[TokenServer]:
        """Put the weights of ``folder`` into all servers as ``version``; requests in flight go on with them.

        Returns:
            The servers that have them. One that does not answer is left out: its version is older or another run's, so
            the policy believes nothing that it samples.

        Raises:
            ServerDownError: no server answers.
            ServerRefusedError: a server could not load them.
        """
        orders = (self._load_one(server, folder, version) for server in self._servers)
        results = await asyncio.gather(*orders, return_exceptions=True)
        loaded: list[TokenServer] = []
        down: ServerDownError | None = None
        for server, error in zip(self._servers, results, strict=True):
            if error is None:
                loaded.append(server)
            elif isinstance(error, ServerDownError):
                down = error
            else:
                raise error
        if not loaded and down is not None:
            raise down
        return loaded

    async def _load_one(self, server: TokenServer, folder: Path, version: int) -> None:
        client = server.client
        is_down = False
        try:
            await client.command(f"/pause?mode={self._transfer.pause}&clear_cache=false")
            await _name(server, _LOADING)
            await self._transfer_to(server, folder)
            # Running requests lose their keys and values, too: they are computed again with the new weights.
            reset = await client.command("/reset_prefix_cache?reset_running_requests=true")
            if reset.get("success") is False:
                raise ServerRefusedError(f"{server.url} did not reset its prefix cache; start it again and resume")
            await _name(server, self._lineage.named(version))
        except ServerDownError:
            is_down = True
            raise
        except ModelServerError as error:
            raise ServerRefusedError(
                f"{server.url} could not load {folder} ({error}); it must see this folder under this path and serve a "
                "model of the same shape"
            ) from error
        finally:
            # An order whose answer is lost may have been obeyed; what is dead is not waited for once more.
            if not is_down or await client.is_healthy():
                await client.command("/resume")

    async def _transfer_to(self, server: TokenServer, folder: Path) -> None:
        if self._transfer.kind == "lora":
            adapter = {"lora_name": self._transfer.adapter_name, "lora_path": str(folder / "adapter")}
            await server.client.command("/v1/load_lora_adapter", adapter | {"load_inplace": True})
            return
        order = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await server.client.command("/collective_rpc", order)


async def compare(servers: Sequence[TokenServer], seen: Probe, max_gap: float) -> float:
    """Ask all servers what they think of the probe; returns the largest mean distance in nats per token.

    Raises:
        StaleWeightsError: it is larger than ``max_gap``.
        ModelServerError: no usable reply.
    """
    found = await asyncio.gather(*(server.prompt_log_probs(seen.token_ids) for server in servers))
    gaps = [_mean_distance(one, seen.log_probs) for one in found]
    worst = max(gaps)
    if not worst <= max_gap:
        raise StaleWeightsError(
            f"{servers[gaps.index(worst)].url} sees the probe {worst:.2g} nats per token away from the learner "
            f"(allowed: {max_gap:.2g}), so it samples with other weights than it was given. Causes: it serves another "
            "model; it runs in lower precision (set rl.sampler.max_log_prob_gap, or start it with --dtype float32); it "
            "keeps a stale output head, as vLLM's CPU build does with tied embeddings (train a model with "
            "tie_word_embeddings=false, or rl.sampler.transfer=lora)"
        )
    return worst


async def _name(server: TokenServer, version: str) -> None:
    await server.client.command("/update_weight_version", {"new_version": version})


def _mean_distance(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)
