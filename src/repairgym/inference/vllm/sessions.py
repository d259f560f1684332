"""Which session lives on which server.

Reads session ids and what becomes of requests; makes places. Invariants: a session stays where it is, so that the
prefix cache of its server holds all its earlier turns, until that server is lost; a new session goes where the fewest
are; the last server that is left is never given up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

ServerT = TypeVar("ServerT")


class Sessions(Generic[ServerT]):
    """Places of the sessions of one process."""

    def __init__(self, servers: Sequence[ServerT], *, clock: Callable[[], float] = time.monotonic) -> None:
        """``servers`` are all up at first."""
        self._servers = list(servers)
        self._clock = clock
        self._places: dict[str, int] = {}
        self._lost_at_s: dict[int, float] = {}
        self.num_moves = 0
        """Sessions that had to leave a server."""

    def server_of(self, session_id: str) -> ServerT:
        """Where the session is; a new one is placed."""
        place = self._places.get(session_id)
        if place is None or place in self._lost_at_s:
            self.num_moves += place is not None
            load = Counter(self._places.values())
            up = [number for number in range(len(self._servers)) if number not in self._lost_at_s]
            place = min(up, key=lambda number: load[number])
            self._places[session_id] = place
        return self._servers[place]

    def end(self, session_id: str) -> None:
        """The session is over."""
        self._places.pop(session_id, None)

    def lose(self, server: ServerT) -> bool:
        """Send nothing more to ``server``; False when it is the last one, which stays."""
        number = self._servers.index(server)
        if len(self._lost_at_s.keys() | {number}) == len(self._servers):
            return False
        self._lost_at_s[number] = self._clock()
        return True

    def lost_for(self, seconds: float) -> list[ServerT]:
        """Servers that were lost, or last looked at, at least ``seconds`` ago; their time begins anew."""
        now = self._clock()
        old = [number for number, lost_at_s in self._lost_at_s.items() if now - lost_at_s >= seconds]
        self._lost_at_s |= dict.fromkeys(old, now)
        return [self._servers[number] for number in old]

    def find_again(self, server: ServerT) -> None:
        """``server`` is up: new sessions may go there."""
        self._lost_at_s.pop(self._servers.index(server), None)
