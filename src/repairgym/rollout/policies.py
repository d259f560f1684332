"""The policies of one process: scripted ones by name, servers, a model's weights kept until others are asked for.

Reads `PolicyRef` records; makes policies. Invariants: one engine per process, and one per member of a router; asking
for another folder or version swaps its weights between generations; one client per server, with this process's share
of the limits.
"""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

from repairgym.agent.expert import MixedPolicy
from repairgym.agent.routing import Router, RouterPolicy, Team
from repairgym.agent.scripted import ScriptedPolicy
from repairgym.config.agent import SHELL_SCRIPTS, ExternalAgentConfig
from repairgym.config.models import EndpointConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError
from repairgym.inference.base import Policy
from repairgym.inference.embedded import EmbeddedPolicy
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.loading import load_model
from repairgym.inference.openai import OpenAIPolicy
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.vllm.policy import VllmPolicy
from repairgym.inference.vllm.server import TokenServer
from repairgym.inference.vllm.weights import Lineage
from repairgym.rollout.jobs import PolicyRef, ServerProtocol
from repairgym.serving.scripts import ShellPolicy


class PolicyCache:
    """The policy of the last request; weights are loaded when folder or version change."""

    def __init__(self, config: RolloutConfig, renderer: ChatRenderer) -> None:
        """Nothing is loaded before it is asked for."""
        self._config = config
        self._renderer = renderer
        self._embedded: EmbeddedPolicy | None = None
        self._loaded: tuple[str, int] | None = None
        self._members: dict[str, EmbeddedPolicy] = {}
        """Folder -> its engine, of routers."""
        self._served: dict[tuple[ServerProtocol, str, str], Policy] = {}
        self._clients: list[EndpointClient] = []
        self._lock = asyncio.Lock()

    async def get(self, ref: PolicyRef) -> Policy:
        """Return the policy that ``ref`` names.

        Raises:
            ConfigError: no script has that name, the engine cannot serve the model, or a server is not described.
            ModelFolderError: the folder holds no model.
        """
        if ref.expert_share:
            return MixedPolicy(await self.get(replace(ref, expert_share=0.0)), ref.expert_share, self._renderer)
        if ref.endpoint is not None:
            return self._connect(ref, ref.endpoint)
        if ref.router is not None:
            async with self._lock:
                return self._route(ref.name, ref.router)
        if not ref.folder and ref.name in SHELL_SCRIPTS:
            return self._shell_script(ref.name)
        if not ref.folder:
            return ScriptedPolicy(ref.name, self._renderer)
        async with self._lock:
            return await self._load(ref)

    def _shell_script(self, name: str) -> ShellPolicy:
        if not isinstance(self._config.agent, ExternalAgentConfig):
            raise ConfigError(f"{name} plays the model for agents of others; set rollout.agent.type=external")
        return ShellPolicy(name, self._renderer, self._config.agent.shell)

    def _connect(self, ref: PolicyRef, endpoint: EndpointConfig) -> Policy:
        key = (ref.protocol, endpoint.model_dump_json(), ref.lineage)
        if key not in self._served:
            if self._config.pipeline.max_cost_usd is not None and endpoint.model not in endpoint.prices:
                raise ConfigError(
                    f"pipeline.max_cost_usd is set, but endpoint.prices has no {endpoint.model!r}; add its price"
                )
            self._served[key] = self._open(ref, endpoint.share_of(self._config.num_workers))
        policy = self._served[key]
        if isinstance(policy, VllmPolicy):
            policy.expect(ref.version)
        return policy

    def _open(self, ref: PolicyRef, endpoint: EndpointConfig) -> Policy:
        if ref.protocol == "openai":
            endpoint.require_one_server()
        clients = [EndpointClient(server) for server in endpoint.servers()]
        self._clients += clients
        if ref.protocol == "openai":
            return OpenAIPolicy(clients[0], self._renderer)
        servers = [TokenServer(client, is_versioned=bool(ref.lineage)) for client in clients]
        return VllmPolicy(servers, ref.version, Lineage(ref.lineage) if ref.lineage else None)

    def _route(self, name: str, router: Router | Team) -> RouterPolicy:
        for member in router.members:
            if member.folder not in self._members:
                self._config.require_engine_room()
                self._members[member.folder] = EmbeddedPolicy.from_folder(Path(member.folder), self._config.engine)
        return RouterPolicy(router, {it.name: self._members[it.folder] for it in router.members}, name)

    async def _load(self, ref: PolicyRef) -> EmbeddedPolicy:
        if self._embedded is None:
            self._config.require_engine_room()
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
        """Counters of the engine and of the servers' clients; empty when there is neither."""
        counts = Counter[str]()
        for engine in self._engines():
            counts.update(engine.statistics.as_metrics())
        for client in self._clients:
            counts.update(client.statistics.as_metrics())
        return dict(counts)

    async def close(self) -> None:
        """End the engines and close all connections."""
        for client in self._clients:
            await client.close()
        for engine in self._engines():
            await engine.close()

    def _engines(self) -> list[EmbeddedPolicy]:
        return [*filter(None, (self._embedded,)), *self._members.values()]
