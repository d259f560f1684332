"""Discrete-event simulation of one iteration's rollouts: shared engines, sandboxes, cores; and its check against a run.

Guarantees: an engine divides its speed evenly among its sequences (exactly, by virtual time); cores and sandboxes serve
in the order of requests; equal inputs give equal results.
"""

import heapq
import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from repairgym.config.cluster import EpisodeConfig
from repairgym.errors import InputError


@dataclass(frozen=True)
class Work:
    """Amounts of work of one episode."""

    turns: tuple[tuple[float, float], ...]
    """(sampled tokens, seconds of a core) of each turn."""
    grade_s: float
    """Seconds of a core at the end."""


@dataclass(frozen=True)
class Site:
    """The machines that serve the episodes."""

    num_replicas: int
    max_sequences: int
    """Of one replica at one time."""
    step_s: Callable[[int], float]
    """(number of sequences) -> seconds for one token of each."""
    num_cores: int
    num_sandboxes: int


@dataclass(frozen=True)
class Rollouts:
    """Duration and utilization of an iteration's rollouts."""

    duration_s: float
    end_s: tuple[float, ...]
    """End of each episode, ascending."""
    engine_share: float
    """Share of the time in which an engine was busy, mean of the replicas."""
    core_share: float

    @property
    def tail_s(self) -> float:
        """Seconds of the last tenth of the episodes alone: the wait of a synchronous update."""
        return self.duration_s - self.end_s[int(0.9 * (len(self.end_s) - 1))]


@dataclass(eq=False)
class _Replica:
    """An engine with equal shares: every sequence has had ``virtual`` tokens since time 0."""

    number: int
    running: list[tuple[float, int]] = field(default_factory=list)
    """Heap of (virtual tokens at its end, episode)."""
    waiting: deque[tuple[float, int]] = field(default_factory=deque)
    virtual: float = 0.0
    changed_at: float = 0.0
    busy_s: float = 0.0
    version: int = 0

    @property
    def load(self) -> int:
        return len(self.running) + len(self.waiting)


class Simulation:
    """One iteration."""

    def __init__(self, episodes: Sequence[Work], site: Site) -> None:
        self._episodes = episodes
        self._site = site
        self._replicas = [_Replica(number) for number in range(site.num_replicas)]
        self._home: dict[int, _Replica] = {}
        self._turn = [0] * len(episodes)
        self._ends: list[float] = []
        self._events: list[tuple[float, int, str, int, int]] = []
        self._num_events = 0
        self._queue: deque[tuple[int, float]] = deque()
        self._num_free_cores = site.num_cores
        self._core_s = 0.0
        self._next = 0

    def run(self) -> Rollouts:
        """Run all episodes to their end."""
        for _ in range(min(self._site.num_sandboxes, len(self._episodes))):
            self._begin(0.0)
        now = 0.0
        while self._events:
            now, _, kind, index, version = heapq.heappop(self._events)
            if kind == "core":
                self._core_done(now, index)
            elif version == self._replicas[index].version:
                self._engine_done(now, index)
        engine_s = sum(replica.busy_s for replica in self._replicas) / self._site.num_replicas
        duration_s = max(now, 1e-9)
        core_share = self._core_s / (duration_s * self._site.num_cores)
        return Rollouts(duration_s, tuple(self._ends), engine_s / duration_s, core_share)

    def _push(self, time_s: float, kind: str, index: int, version: int = 0) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (time_s, self._num_events, kind, index, version))

    def _begin(self, now: float) -> None:
        if self._next == len(self._episodes):
            return
        index, self._next = self._next, self._next + 1
        replica = min(self._replicas, key=lambda candidate: candidate.load)
        self._home[index] = replica
        self._decode(now, index)

    # --- engines ---

    def _decode(self, now: float, index: int) -> None:
        replica = self._home[index]
        tokens = self._episodes[index].turns[self._turn[index]][0]
        if len(replica.running) >= self._site.max_sequences:
            replica.waiting.append((tokens, index))
            return
        self._advance(replica, now)
        heapq.heappush(replica.running, (replica.virtual + tokens, index))
        self._schedule(replica, now)

    def _engine_done(self, now: float, number: int) -> None:
        replica = self._replicas[number]
        self._advance(replica, now)
        _, index = heapq.heappop(replica.running)
        if replica.waiting:
            tokens, other = replica.waiting.popleft()
            heapq.heappush(replica.running, (replica.virtual + tokens, other))
        self._schedule(replica, now)
        self._ask_core(now, index, self._episodes[index].turns[self._turn[index]][1])

    def _advance(self, replica: _Replica, now: float) -> None:
        if replica.running:
            replica.virtual += (now - replica.changed_at) / self._site.step_s(len(replica.running))
            replica.busy_s += now - replica.changed_at
        replica.changed_at = now

    def _schedule(self, replica: _Replica, now: float) -> None:
        replica.version += 1
        if replica.running:
            tokens = max(0.0, replica.running[0][0] - replica.virtual)
            end = now + tokens * self._site.step_s(len(replica.running))
            self._push(end, "engine", replica.number, replica.version)

    # --- cores ---

    def _ask_core(self, now: float, index: int, seconds: float) -> None:
        if not self._num_free_cores:
            self._queue.append((index, seconds))
            return
        self._num_free_cores -= 1
        self._core_s += seconds
        self._push(now + seconds, "core", index)

    def _core_done(self, now: float, index: int) -> None:
        self._num_free_cores += 1
        if self._queue:
            self._ask_core(now, *self._queue.popleft())
        work = self._episodes[index]
        self._turn[index] += 1
        if self._turn[index] < len(work.turns):
            self._decode(now, index)
        elif self._turn[index] == len(work.turns):
            self._ask_core(now, index, work.grade_s)
        else:
            self._ends.append(now)
            self._begin(now)


def draw_episodes(config: EpisodeConfig, num: int, seed: int) -> list[Work]:
    """Draw ``num`` episodes with log-normal turns, tokens and seconds around the configured means."""
    generator = random.Random(seed)
    sigma = config.spread

    def draw(mean: float) -> float:
        return mean * generator.lognormvariate(-0.5 * sigma * sigma, sigma)

    return [
        Work(
            tuple(
                (max(1.0, draw(config.action_tokens)), draw(config.tool_s))
                for _ in range(max(1, round(draw(config.num_turns))))
            ),
            draw(config.grade_s),
        )
        for _ in range(num)
    ]


def makespan(durations_s: Sequence[float], num_in_flight: int) -> float:
    """End of the last of episodes of known length, started in order, at most ``num_in_flight`` at one time."""
    ends: list[float] = []
    for duration_s in durations_s:
        start = heapq.heappop(ends) if len(ends) >= num_in_flight else 0.0
        heapq.heappush(ends, start + duration_s)
    return max(ends, default=0.0)


SIMULATED_SHARES = (0.65, 0.84)
"""Lowest and highest ratio of `simulated_s` to measured rollouts in eight iterations of a demo (`repairgym plan
--check`). The rest is not stored per episode: the start of sandboxes, the wait for another worker."""


@dataclass(frozen=True)
class StoredEpisode:
    """Sizes and seconds of one stored episode."""

    num_turns: int
    num_tokens: int
    num_action_tokens: int
    generate_s: float
    tool_s: float
    grade_s: float

    @property
    def total_s(self) -> float:
        """Seconds from its sandbox to its verdict."""
        return self.generate_s + self.tool_s + self.grade_s


def measured_episode(episodes: Sequence[StoredEpisode]) -> EpisodeConfig:
    """Average stored episodes; `InputError` if none has a turn.

    Seconds of tools and grading are wall-clock: on a full machine they include waiting.
    """
    acted = [episode for episode in episodes if episode.num_turns]
    if not acted:
        raise InputError("no stored episode has a turn; name a run with rollouts")
    contexts = [episode.num_tokens - episode.num_action_tokens for episode in acted]
    turns = statistics.fmean(episode.num_turns for episode in acted)
    # The opening is not stored separately: the shortest context replaces it.
    opening = min(contexts)
    return EpisodeConfig(
        num_turns=turns,
        opening_tokens=max(1, opening),
        action_tokens=max(1.0, statistics.fmean(episode.num_action_tokens for episode in acted) / turns),
        observation_tokens=max(1.0, (statistics.fmean(contexts) - opening) / turns),
        tool_s=statistics.fmean(episode.tool_s for episode in acted) / turns,
        grade_s=statistics.fmean(episode.grade_s for episode in acted),
        spread=statistics.pstdev(math.log(episode.num_turns) for episode in acted),
    )


def simulated_s(batches: Sequence[Sequence[StoredEpisode]], num_in_flight: int) -> float:
    """Simulate the rollouts of stored episodes, batch by batch (a refill waits for the batch before it)."""
    return sum(makespan([episode.total_s for episode in batch], num_in_flight) for batch in batches)
