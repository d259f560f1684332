"""A policy behind one or several servers of token ids: exact, so RL may learn from it.

Guarantees: log-probabilities are those of the sampled distribution; with versions, no token comes from older weights
than requested; a session stays on its server while that is up, so that the server's prefix cache holds its earlier
turns; a new session goes to the server with the fewest sessions; the last server is never given up.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Generic, TypeVar

from repairgym.errors import ModelServerError, ServerDownError, StaleWeightsError
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.endpoint import Answer
from repairgym.inference.vllm.server import TokenServer
from repairgym.inference.vllm.weights import Lineage
from repairgym.ledger import UNKNOWN_VERSION

_PROBE_INTERVAL_S = 30.0
"""Between health checks of a lost server."""


class VllmPolicy:
    """A policy over servers of one model."""

    def __init__(self, servers: Sequence[TokenServer], version: int = 0, lineage: Lineage | None = None) -> None:
        """Sample from ``servers`` of one model.

        ``version`` is that of their weights, or the oldest allowed one if they report versions, which ``lineage``
        reads; without it they are ignored.
        """
        self.id = servers[0].config.model
        self._servers = list(servers)
        self._version = version
        self._lineage = lineage
        self.sessions = Sessions(self._servers)

    def expect(self, version: int) -> None:
        """Require weights of ``version`` or newer from now on; lost servers may have got them."""
        if version != self._version:
            self._version = version
            for server in self._servers:
                self.sessions.restore(server)

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Continue ``prompt_ids``.

        At a temperature other than 1 vLLM reports log-probabilities of temperature 1, so the version is unknown then.
        Raises as `TokenServer.sample`, and `StaleWeightsError` if no server has new enough weights.
        """
        # Later requests may require newer weights while this one runs.
        version = self._version
        lost_s = 0.0
        await self._probe_lost_servers()
        while True:
            asked_at_s, server = time.monotonic(), self.sessions.server_of(session_id)
            try:
                answer = await server.sample(prompt_ids, sampling)
                answer = replace(answer, queue_s=answer.queue_s + lost_s)
                return self._generation(server, answer, sampling, version)
            except (ServerDownError, StaleWeightsError):
                if not self.sessions.lose(server):
                    raise
                lost_s += time.monotonic() - asked_at_s

    async def end_session(self, session_id: str) -> None:
        """Forget the session's server; the servers keep their caches."""
        self.sessions.end(session_id)

    def _generation(self, server: TokenServer, answer: Answer, sampling: SamplingParams, version: int) -> Generation:
        reply = answer.reply
        versions = self._versions(server, reply.weight_versions, version)
        is_exact = sampling.temperature == 1.0
        return Generation(
            token_ids=reply.token_ids,
            log_probs=reply.log_probs,
            is_stopped=reply.token_ids[-1] in sampling.stop_token_ids,
            policy_version=min(versions, default=version) if is_exact else UNKNOWN_VERSION,
            token_versions=versions if is_exact and len(set(versions)) > 1 else (),
            cost_usd=answer.cost_usd,
            queue_s=answer.queue_s,
        )

    def _versions(self, server: TokenServer, names: Sequence[str], wanted: int) -> tuple[int, ...]:
        """Policy version of each token; empty if the server reports none."""
        versions = tuple(map(self._version_of, names))
        if versions and min(versions) < wanted:
            stale = names[versions.index(min(versions))]
            raise StaleWeightsError(
                f"{server.url} samples with weights {stale!r}; expected version {wanted} "
                "of this run or a newer one: the server was restarted, or another run loads weights into it; resume "
                "the run, which loads them again"
            )
        return versions

    def _version_of(self, name: str) -> int:
        return self._lineage.version_of(name) if self._lineage is not None else UNKNOWN_VERSION

    async def _probe_lost_servers(self) -> None:
        for server in self.sessions.lost_for(_PROBE_INTERVAL_S):
            if await server.client.is_healthy() and await self._has_weights(server):
                self.sessions.restore(server)

    async def _has_weights(self, server: TokenServer) -> bool:
        if not server.is_versioned:
            return True
        with suppress(ModelServerError):
            return self._version_of(await server.weight_version()) >= self._version
        return False


ServerT = TypeVar("ServerT")


class Sessions(Generic[ServerT]):
    """The servers of the sessions of one process, all up at first."""

    def __init__(self, servers: Sequence[ServerT], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._servers = list(servers)
        self._clock = clock
        self._places: dict[str, int] = {}
        self._lost_at_s: dict[int, float] = {}
        self.num_moves = 0
        """Sessions that had to leave a server."""

    def server_of(self, session_id: str) -> ServerT:
        """Return the session's server; a new session gets one."""
        place = self._places.get(session_id)
        if place is None or place in self._lost_at_s:
            self.num_moves += place is not None
            load = Counter(self._places.values())
            up = [number for number in range(len(self._servers)) if number not in self._lost_at_s]
            place = min(up, key=lambda number: load[number])
            self._places[session_id] = place
        return self._servers[place]

    def end(self, session_id: str) -> None:
        """Forget the session."""
        self._places.pop(session_id, None)

    def lose(self, server: ServerT) -> bool:
        """Stop using ``server``; False if it is the last one, which stays."""
        number = self._servers.index(server)
        if len(self._lost_at_s.keys() | {number}) == len(self._servers):
            return False
        self._lost_at_s[number] = self._clock()
        return True

    def lost_for(self, seconds: float) -> list[ServerT]:
        """Return the servers lost, or last returned here, at least ``seconds`` ago, and restart their clocks."""
        now = self._clock()
        old = [number for number, lost_at_s in self._lost_at_s.items() if now - lost_at_s >= seconds]
        self._lost_at_s |= dict.fromkeys(old, now)
        return [self._servers[number] for number in old]

    def restore(self, server: ServerT) -> None:
        """Use ``server`` again for new sessions."""
        self._lost_at_s.pop(self._servers.index(server), None)
