"""The policies of one process: scripted ones by name, a model's weights kept until others are asked for.

Reads `PolicyRef` records; makes policies. Invariant: one engine per process; asking for another folder or version swaps
its weights between generations.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from mendwright.agent.scripted import ScriptedPolicy
from mendwright.config.rollout import RolloutConfig
from mendwright.models.base import Policy
from mendwright.models.embedded import EmbeddedPolicy
from mendwright.models.loading import load_model
from mendwright.models.renderer import ChatMLRenderer
from mendwright.rollout.jobs import PolicyRef


class PolicyCache:
    """The policy of the last request; weights are loaded when folder or version change."""

    def __init__(self, config: RolloutConfig, renderer: ChatMLRenderer) -> None:
        """Nothing is loaded before it is asked for."""
        self._config = config
        self._renderer = renderer
        self._embedded: EmbeddedPolicy | None = None
        self._loaded: tuple[str, int] | None = None
        self._lock = asyncio.Lock()

    async def get(self, ref: PolicyRef) -> Policy:
        """The policy that ``ref`` names.

        Raises:
            ConfigError: no script has that name, or the engine cannot serve the model.
            ModelFolderError: the folder holds no model.
        """
        if not ref.folder:
            return ScriptedPolicy(ref.name, self._renderer)
        async with self._lock:
            return await self._load(ref)

    async def _load(self, ref: PolicyRef) -> EmbeddedPolicy:
        if self._embedded is None:
            self._embedded = EmbeddedPolicy.from_folder(Path(ref.folder), self._config.engine)
            self._loaded = None
        if self._loaded != (ref.folder, ref.version):
            # Through the model, not the file: tied weights are stored once.
            state = load_model(Path(ref.folder)).state_dict()
            await self._embedded.load_state(state, ref.version)
            self._loaded = (ref.folder, ref.version)
        self._embedded.id = ref.name
        return self._embedded

    def counters(self) -> dict[str, float]:
        """Counters of the engine; empty when none runs."""
        if self._embedded is None:
            return {}
        return {f"engine/{name}": float(value) for name, value in self._embedded.statistics.as_metrics().items()}

    async def close(self) -> None:
        """End the engine."""
        if self._embedded is not None:
            await self._embedded.close()
