from __future__ import annotations

import pytest

from repairgym.analysis.episodes import choose_examples, exploit_examples, exploits_by_step, read_episodes
from repairgym.records import StopReason, VerdictKind

EDIT = ("edit", "@1 a => b", "@1 b", "")
OTHER_EDIT = ("line", "@2 x", "@2 x", "")
TOOL_ERROR = ("edit", "@9 a => b", "error: no such line", "tool")
TEST = ("test", "", "failed 1 of 2", "")
SUBMIT = ("submit", "", "submitted", "")


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
    assert episode_of(store).is_loop is (num_repeats >= 3)


def test_repeated_builds_and_thinking(store, trajectory_maker):
    run = ("test", "", "failed 1 of 1", "")
    steps = [run, run, ("edit", "<think>why</think> a => b", "@1", ""), run, run, run]
    store.add_trajectory(trajectory_maker(steps=steps), phase="rl", step=0, split="train")
    (episode,) = read_episodes(store)
    assert episode.num_repeated_builds == 3
    assert episode.num_thought_chars == len("<think>why</think>")


def test_each_kind_of_trajectory_is_chosen_by_its_rule(episode_maker):
    episodes = [
        episode_maker("success", verdict=VerdictKind.PASSED),
        episode_maker("older success", phase="eval/rft/test-mutations", verdict=VerdictKind.PASSED),
        episode_maker("far miss", num_tests_passed=1),
        episode_maker("near miss", num_tests_passed=3),
        episode_maker("loop", num_repeats=5),
        episode_maker("blind", is_blind_submit=True),
        episode_maker("release", phase="eval/rl/test-releases", num_tests_passed=4),
    ]
    chosen = {choice.title: choice.episode.id for choice in choose_examples(episodes)}
    assert chosen == {
        "A clean success": "success",
        "A near miss": "near miss",
        "A loop": "loop",
        "A blind submission": "blind",
        "A real bug": "release",
    }
    with_exploit = choose_examples([*episodes, episode_maker("exploit", verdict=VerdictKind.EXPLOITED)])
    assert [choice.title for choice in with_exploit].count("An exploit") == 1
    assert "A blind submission" not in {choice.title for choice in with_exploit}
    assert choose_examples(reversed(episodes)) == choose_examples(episodes)


def test_a_trajectory_is_shown_once_and_later_stages_come_first(episode_maker):
    only = episode_maker("loop", num_repeats=9, is_blind_submit=True)
    assert [choice.title for choice in choose_examples([only])] == ["A near miss"]
    stages = ["base", "rft", "rl-step-0002", "rl-step-0010", "rl"]
    for count in range(1, len(stages) + 1):
        episodes = [
            episode_maker(stage, phase=f"eval/{stage}/test-mutations", verdict=VerdictKind.PASSED)
            for stage in stages[:count]
        ]
        assert choose_examples(episodes)[0].episode.id == stages[count - 1]
    assert choose_examples([]) == []


def test_findings_by_step_and_examples(store, trajectory_maker):
    for step in range(3):
        one = trajectory_maker(f"x{step}", "t", kind=VerdictKind.EXPLOITED, group_id="t")
        store.add_trajectory(one, phase="rl", step=step, split="train")
        store.add_trajectory(trajectory_maker(f"y{step}", "t", group_id="t"), phase="rl", step=step, split="train")
    episodes = list(read_episodes(store))
    counts = exploits_by_step(episodes)
    assert [(one.step, one.num_episodes, one.share) for one in counts] == [(0, 1, 0.5), (1, 1, 0.5), (2, 1, 0.5)]
    assert [one.trajectory_id for one in exploit_examples(episodes, 2)] == ["x2", "x1"]
