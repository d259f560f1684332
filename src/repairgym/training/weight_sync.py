"""The sampler of an RL stage's episodes, and its new weights.

Reads the configuration, the stage's checkpoint and the learner's view of a probe; changes servers, if there are any.
Guarantees: engines that cannot sample exactly are rejected before the first episode; episodes of iteration k begin with
weights that the servers got after k updates, or at least k - `max_staleness`, and that a probe has compared with the
learner's.
"""

import asyncio
import secrets
import time
from pathlib import Path
from typing import Literal

import torch

from repairgym.config.learning import LoraConfig
from repairgym.config.models import VllmSamplerConfig
from repairgym.config.recipes import RlConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.vllm.preflight import FOLDER_ROUTES, LORA_ROUTES, Needs, preflight
from repairgym.inference.vllm.server import TokenServer, ask_servers
from repairgym.inference.vllm.weights import Lineage, Probe, Transfer, WeightUpdater, compare
from repairgym.rollout.jobs import PolicyRef


class Sampler:
    """The engines that sample; here those of the workers, which load model folders by themselves."""

    def load(self, folder: Path, version: int, seen: Probe | None) -> dict[str, float]:
        """Sample with the weights of model folder ``folder`` from now on; returns metrics.

        Raises:
            StaleWeightsError: what samples sees the probe otherwise than the learner does.
            ModelServerError: the weights did not get there.
        """
        return {}

    def policy(self, name: str, folder: Path, version: int, temperature: float) -> PolicyRef:
        """The weights that were loaded last."""
        return PolicyRef(name, str(folder), version, temperature)


class VllmSampler(Sampler):
    """Servers of vLLM."""

    def __init__(self, config: VllmSamplerConfig, rollout: RolloutConfig, start: Path) -> None:
        """Check that the servers can sample episodes of ``rollout`` with the tokenizer of ``start``.

        Raises:
            ServerRejectedError: a server would spoil the run; the message says how to fix it.
            ServerDownError: one does not answer.
        """
        config.endpoint.require_server()
        self._config = config
        self._lineage = Lineage(secrets.token_hex(4))
        self._endpoint = config.endpoint
        if config.transfer == "lora":
            # Before the first update the adapter is not there; afterwards requests name it instead of the model.
            self._endpoint = config.endpoint.model_copy(update={"model": config.adapter_name})
        routes = LORA_ROUTES if config.transfer == "lora" else FOLDER_ROUTES
        needs = Needs(rollout.pipeline.max_len_tokens, rollout.pipeline.max_action_tokens, routes)
        preflight(config.endpoint, ChatRenderer(load_tokenizer(start)), needs)

    def load(self, folder: Path, version: int, seen: Probe | None) -> dict[str, float]:
        """Push the weights into all servers and compare."""
        started = time.monotonic()
        num_loaded, gap = asyncio.run(
            ask_servers(self._endpoint, lambda servers: self._load(servers, folder, version, seen), is_versioned=True)
        )
        return {
            "sync/num_servers": float(num_loaded),
            "sync/log_prob_gap": gap,
            "time/sync_s": time.monotonic() - started,
        }

    def policy(self, name: str, folder: Path, version: int, temperature: float) -> PolicyRef:
        """The servers, whose tokens must be of ``version`` or newer."""
        return PolicyRef(name, "", version, temperature, "vllm", self._endpoint, self._lineage.name)

    async def _load(
        self, servers: list[TokenServer], folder: Path, version: int, seen: Probe | None
    ) -> tuple[int, float]:
        kind: Literal["folder", "lora"] = "lora" if self._config.transfer == "lora" else "folder"
        transfer = Transfer(kind, self._config.pause, self._config.adapter_name)
        updater = WeightUpdater(servers, transfer, self._lineage)
        loaded = await updater.load(folder.resolve(), version)
        assert seen is not None, "every update of a stage that samples with servers measures the probe"
        return len(loaded), await compare(loaded, seen, self._config.max_log_prob_gap)


def open_sampler(config: RlConfig, rollout: RolloutConfig, start: Path) -> Sampler:
    """The sampler that ``config`` asks for.

    Raises:
        ConfigError: it cannot work as it is asked to.
        ServerRejectedError: a server would spoil the run.
    """
    if not isinstance(config.sampler, VllmSamplerConfig):
        return Sampler()
    _require_transfer(config.sampler, is_lora=isinstance(config.algorithm.trained, LoraConfig))
    return VllmSampler(config.sampler, rollout, start)


def _require_transfer(config: VllmSamplerConfig, *, is_lora: bool) -> None:
    if config.transfer in ("nccl", "ipc"):
        has_gpu = torch.cuda.is_available()
        reason = "is not built yet" if has_gpu else "moves weights from GPU to GPU, and this process has no GPU"
        raise ConfigError(f"rl.sampler.transfer={config.transfer!r} {reason}; use folder, or lora with an adapter")
    if config.transfer == "lora" and not is_lora:
        raise ConfigError(
            "rl.sampler.transfer='lora' pushes an adapter, and all weights are trained; set "
            "rl.algorithm.trained.type=lora, or rl.sampler.transfer=folder"
        )
