"""Updates of server weights from a shared file system while episodes run, and the check that they arrived.

Guarantees: nothing is sampled while weights change; a server that failed during an update has no version, so its
samples are rejected; after `load` no key or value of older weights is used again; `compare` measures against the
learner.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from repairgym.errors import ModelServerError, ServerDownError, ServerRejectedError, StaleWeightsError
from repairgym.inference.vllm.server import TokenServer
from repairgym.ledger import UNKNOWN_VERSION


@dataclass(frozen=True)
class Lineage:
    """Names of the weights that one process loads into servers, e.g. ``3f9a12c4:7``.

    Versions are compared within one lineage only, so the weights of another run, or of the same run before it was
    resumed, never count as newer ones of this run.
    """

    name: str

    def named(self, version: int) -> str:
        """Name the weights ``version``."""
        return f"{self.name}:{version}"

    def version_of(self, name: str) -> int:
        """Read the version in ``name``; `UNKNOWN_VERSION` for weights of another lineage."""
        lineage, _, number = name.rpartition(":")
        return int(number) if lineage == self.name and number.isdecimal() else UNKNOWN_VERSION


_LOADING = "loading"
"""Name of the weights during an update."""


@dataclass(frozen=True)
class Transfer:
    """The way weights are transferred to servers."""

    kind: Literal["folder", "lora"] = "folder"
    pause: Literal["keep", "wait"] = "keep"
    adapter_name: str = ""
    """With ``lora``: the name of the adapter in requests."""


@dataclass(frozen=True)
class Probe:
    """A sequence and its log-probabilities under the learner."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Natural, of each token after the first."""


class WeightUpdater:
    """Updates all ``servers`` of a run by ``transfer``; ``lineage`` names the weights."""

    def __init__(self, servers: Sequence[TokenServer], transfer: Transfer, lineage: Lineage) -> None:
        self._servers = list(servers)
        self._transfer = transfer
        self._lineage = lineage

    async def load(self, folder: Path, version: int) -> list[TokenServer]:
        """Load the weights of ``folder`` into all servers as ``version``; requests in flight continue with them.

        Returns the updated servers. A server that does not answer is left out: its version is older or another run's,
        so the policy rejects its samples.

        Raises:
            ServerDownError: no server answers.
            ServerRejectedError: a server could not load them.
        """
        updates = (self._load_one(server, folder, version) for server in self._servers)
        results = await asyncio.gather(*updates, return_exceptions=True)
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
            # Keys and values of running requests are dropped, too, and computed again with the new weights.
            reset = await client.command("/reset_prefix_cache?reset_running_requests=true")
            if reset.get("success") is False:
                raise ServerRejectedError(f"{server.url} did not reset its prefix cache; restart it and resume the run")
            await _name(server, self._lineage.named(version))
        except ServerDownError:
            is_down = True
            raise
        except ModelServerError as error:
            raise ServerRejectedError(
                f"{server.url} could not load {folder} ({error}); it must see this folder under this path and serve a "
                "model of the same shape"
            ) from error
        finally:
            # A command whose reply is lost may have been executed; a dead server is not waited for again.
            if not is_down or await client.is_healthy():
                await client.command("/resume")

    async def _transfer_to(self, server: TokenServer, folder: Path) -> None:
        if self._transfer.kind == "lora":
            adapter = {"lora_name": self._transfer.adapter_name, "lora_path": str(folder / "adapter")}
            await server.client.command("/v1/load_lora_adapter", adapter | {"load_inplace": True})
            return
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await server.client.command("/collective_rpc", call)


async def compare(servers: Sequence[TokenServer], probe: Probe, max_gap: float) -> float:
    """Return the largest mean distance of servers from learner in nats per token; `StaleWeightsError` above the gap."""
    served = await asyncio.gather(*(server.prompt_log_probs(probe.token_ids) for server in servers))
    gaps = [_mean_distance(log_probs, probe.log_probs) for log_probs in served]
    worst = max(gaps)
    if not worst <= max_gap:
        raise StaleWeightsError(
            f"{servers[gaps.index(worst)].url} is {worst:.2g} nats per token away from the learner on the probe "
            f"(allowed: {max_gap:.2g}), so it samples with other weights than it was given. Causes: it serves another "
            "model; it runs in lower precision (set rl.sampler.max_log_prob_gap, or start it with --dtype float32); it "
            "keeps a stale output head, as vLLM's CPU build does with tied embeddings (train a model with "
            "tie_word_embeddings=false, or rl.sampler.transfer=lora)"
        )
    return worst


async def _name(server: TokenServer, version: str) -> None:
    await server.client.command("/update_weight_version", {"new_version": version})


def _mean_distance(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(left, right, strict=True)) / len(left)
