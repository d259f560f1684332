from __future__ import annotations

import pytest

from repairgym.analysis.behavior import (
    is_loop,
)
from repairgym.analysis.episodes import read_episodes
from repairgym.records import StopReason

EDIT = ("edit", "@1 a => b", "@1 b", "")


OTHER_EDIT = ("line", "@2 x", "@2 x", "")


TOOL_ERROR = ("edit", "@9 a => b", "error: no such line", "tool")


TEST = ("test", "", "failed 1 of 2", "")


SUBMIT = ("submit", "", "submitted", "")


@pytest.fixture
def add(store, trajectory_maker):
    def add_episode(name, steps, step=1, **more):
        trajectory = trajectory_maker(name, name, steps=steps, group_id=name, **more)
        store.add_trajectory(trajectory, phase="rl", step=step, split="train")

    return add_episode


def episode_of(store):
    (episode,) = read_episodes(store)
    return episode


@pytest.mark.parametrize(
    ("steps", "is_blind"),
    [
        ([EDIT, TEST, SUBMIT], False),
        ([EDIT, SUBMIT], True),
        ([EDIT, TEST, OTHER_EDIT, SUBMIT], True),
        ([EDIT, TEST, TOOL_ERROR, SUBMIT], False),
        ([EDIT, TEST, ("undo", "", "undone", ""), SUBMIT], True),
        ([SUBMIT], True),
        ([TEST, SUBMIT], False),
        ([EDIT, ("shell", "python -m pytest -q", "1 passed", ""), SUBMIT], False),
        ([EDIT, ("shell", "ls tests", "a", ""), SUBMIT], True),
    ],
)
def test_blind_submit(store, add, steps, is_blind):
    add("a", steps)
    assert episode_of(store).is_blind_submit is is_blind


def test_an_episode_that_was_not_submitted_is_no_blind_submit(store, add):
    add("a", [EDIT], stop_reason=StopReason.TURN_LIMIT)
    assert not episode_of(store).is_blind_submit


@pytest.mark.parametrize(
    ("steps", "num_repeats"),
    [
        ([TEST, TEST, TEST, TEST], 3),
        ([EDIT, TEST, OTHER_EDIT, TEST, SUBMIT], 0),
        ([EDIT, EDIT, EDIT], 2),
        ([TOOL_ERROR, TOOL_ERROR, TEST], 1),
        ([EDIT, TEST, EDIT, TEST], 2),
    ],
)
def test_repeats(store, add, steps, num_repeats):
    add("a", steps)
    assert episode_of(store).num_repeats == num_repeats
    assert is_loop(episode_of(store)) is (num_repeats >= 3)


def test_repeated_builds_and_thinking(store, trajectory_maker):
    run = ("test", "", "failed 1 of 1", "")
    steps = [run, run, ("edit", "<think>why</think> a => b", "@1", ""), run, run, run]
    store.add_trajectory(trajectory_maker(steps=steps), phase="rl", step=0, split="train")
    (episode,) = read_episodes(store)
    assert episode.num_repeated_builds == 3
    assert episode.num_thought_chars == len("<think>why</think>")
