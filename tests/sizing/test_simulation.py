"""Simulated rollouts whose durations can be told by hand, and bounds that no schedule can break."""

import pytest

from repairgym.config.cluster import EpisodeConfig
from repairgym.sizing.simulation import (
    Simulation,
    Site,
    StoredEpisode,
    Work,
    draw_episodes,
    makespan,
    measured_episode,
    simulated_s,
)


def site(replicas=1, sequences=100, cores=100, sandboxes=100, step_s=lambda number: 0.1):
    return Site(replicas, sequences, step_s, cores, sandboxes)


def test_one_episode_takes_what_it_needs():
    results = Simulation([Work(((10, 2.0), (20, 3.0)), 4.0)], site()).run()
    assert results.duration_s == pytest.approx(10 * 0.1 + 2 + 20 * 0.1 + 3 + 4)
    assert results.engine_share == pytest.approx(3.0 / 12.0)
    assert results.core_share == pytest.approx(9.0 / 12.0 / 100)


def test_sequences_share_an_engine_evenly():
    """10 and 30 tokens at 0.1 s per token and sequence: both until 2 s, then the longer one alone for 20 more."""
    results = Simulation(
        [Work(((10, 0.0),), 0.0), Work(((30, 0.0),), 0.0)], site(step_s=lambda number: 0.1 * number)
    ).run()
    assert results.end_s == pytest.approx((2.0, 4.0))


def test_a_full_cache_a_full_core_and_a_full_sandbox_make_wait():
    work = [Work(((10, 1.0),), 0.0)] * 2
    assert Simulation(work, site()).run().duration_s == pytest.approx(2.0)
    assert Simulation(work, site(sequences=1)).run().duration_s == pytest.approx(3.0)
    assert Simulation(work, site(cores=1)).run().duration_s == pytest.approx(3.0)
    assert Simulation(work, site(sandboxes=1)).run().duration_s == pytest.approx(4.0)


def test_replicas_halve_the_time():
    work = [Work(((10, 0.0),), 0.0)] * 8
    item, two = (Simulation(work, site(replicas=n, step_s=lambda n: 0.1 * n)).run() for n in (1, 2))
    assert item.duration_s == pytest.approx(2 * two.duration_s)


def test_no_schedule_beats_the_work():
    episodes = draw_episodes(EpisodeConfig(num_turns=5), 200, seed=1)
    results = Simulation(episodes, site(replicas=2, sequences=16, cores=8, sandboxes=64, step_s=lambda n: 0.02)).run()
    core_s = sum(seconds for item in episodes for _, seconds in item.turns) + sum(item.grade_s for item in episodes)
    assert results.duration_s >= core_s / 8
    assert len(results.end_s) == 200
    assert results.core_share == pytest.approx(core_s / (8 * results.duration_s))
    assert results == Simulation(episodes, site(2, 16, 8, 64, lambda n: 0.02)).run()


def test_drawn_episodes_keep_their_means():
    config = EpisodeConfig(num_turns=20, action_tokens=100, spread=0.5)
    episodes = draw_episodes(config, 2000, seed=0)
    turns = [len(item.turns) for item in episodes]
    assert sum(turns) / len(turns) == pytest.approx(20, rel=0.05)
    tokens = [number for item in episodes for number, _ in item.turns]
    assert sum(tokens) / len(tokens) == pytest.approx(100, rel=0.05)


def test_the_last_of_known_episodes():
    assert makespan([3.0, 1.0, 1.0, 1.0], 2) == 3.0
    assert makespan([1.0, 1.0, 3.0], 2) == 4.0
    assert makespan([], 2) == 0.0


def test_episodes_are_measured_and_iterations_checked():
    stored = [
        StoredEpisode(4, 500, 40, 2.0, 1.0, 3.0),
        StoredEpisode(1, 200, 10, 1.0, 0.5, 2.5),
        StoredEpisode(0, 0, 0, 0.0, 0.0, 0.0),
    ]
    episode = measured_episode(stored)
    assert (episode.num_turns, episode.action_tokens, episode.opening_tokens) == (2.5, 10.0, 190)
    assert episode.grade_s == 2.75
    assert simulated_s([stored[:2], stored[:1]], 2) == 12.0
