from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from repairgym.analysis.behavior import (
    END,
    START,
    behavior_metrics,
    jensen_shannon,
    ngrams,
    policy_shift,
    shares,
    summarize_behavior,
    tool_counts,
    tool_shares_by_step,
    transitions,
)
from repairgym.analysis.episodes import OPENING, UNPARSED, read_episodes
from repairgym.records import StopReason, VerdictKind

EDIT = ("edit", "@1 a => b", "@1 b", "")
TOOL_ERROR = ("edit", "@9 a => b", "error: no such line", "tool")
TEST = ("test", "", "failed 1 of 2", "")
SUBMIT = ("submit", "", "submitted", "")
GARBLED = ("", "", "error: one line", "format")


def test_tool_tables(store, add):
    add("a", [EDIT, TEST, SUBMIT], step=1)
    add("b", [GARBLED, EDIT, SUBMIT], step=2)
    episodes = list(read_episodes(store, phase="rl"))
    assert tool_counts(episodes) == {"edit": 2, "submit": 2, UNPARSED: 1, "test": 1}
    by = tool_shares_by_step(episodes)
    assert by[1] == pytest.approx({"edit": 1 / 3, "test": 1 / 3, "submit": 1 / 3})
    assert UNPARSED in by[2]
    table = transitions(episodes)
    assert table["edit"] == {"submit": 1, "test": 1}
    assert table[START] == {UNPARSED: 1, "edit": 1}
    assert table["submit"] == {END: 2}
    assert all(sum(row.values()) == pytest.approx(1) for row in summarize_behavior("x", episodes).next_tools().values())
    assert shares({}) == {}


def test_behavior_metrics(store, add):
    add("a", [EDIT, TEST, SUBMIT])
    add("b", [GARBLED, TOOL_ERROR, EDIT, SUBMIT], kind=VerdictKind.EXPLOITED)
    add("c", [TEST] * 5, stop_reason=StopReason.TURN_LIMIT, kind=VerdictKind.INVALID)
    episodes = list(read_episodes(store))
    found = behavior_metrics(episodes)
    assert (found.num_episodes, found.mean_turns, found.test_runs_per_episode) == (3, 4.0, 2.0)
    assert found.submit_rate == pytest.approx(2 / 3)
    assert found.blind_submit_rate == 0.5
    assert found.format_error_rate == pytest.approx(1 / 12)
    assert found.tool_error_rate == pytest.approx(1 / 12)
    assert found.loop_rate == found.exploit_rate == found.invalid_rate == pytest.approx(1 / 3)
    summary = summarize_behavior("x", episodes)
    assert summary.exploits == {"test_files_edited": 1}
    assert summary.stop_reasons == {"submitted": 2, "turn_limit": 1}
    lengths = {one.verdict: one for one in summary.lengths}
    assert lengths[VerdictKind.INVALID].mean_turns == 5
    assert lengths[VerdictKind.PASSED].mean_tokens > lengths[VerdictKind.PASSED].mean_action_tokens > 0


def test_every_token_has_a_part_and_shares_are_by_outcome(store, add):
    add("a", [EDIT, TEST, SUBMIT])
    add("b", [TEST, TEST, GARBLED], kind=VerdictKind.FAILED)
    episodes = {episode.id: episode for episode in read_episodes(store)}
    for episode in episodes.values():
        assert sum(episode.part_tokens.values()) == episode.num_tokens
        actions = sum(episode.part_tokens[tool] for tool in dict.fromkeys(episode.tools))
        assert actions == episode.num_action_tokens
    shared = summarize_behavior("x", list(episodes.values())).token_shares
    assert shared.keys() == {VerdictKind.PASSED, VerdictKind.FAILED}
    assert shared[VerdictKind.FAILED].keys() == {OPENING, "test", "test response", UNPARSED, f"{UNPARSED} response"}
    assert all(sum(parts.values()) == pytest.approx(1) for parts in shared.values())


def test_rates_over_nothing_are_none():
    found = behavior_metrics([])
    assert found.num_episodes == 0
    assert found.blind_submit_rate is None
    assert found.format_error_rate is None


@pytest.fixture
def episode(episode_maker):
    return lambda name, tools, task="t": episode_maker(name, task_id=task, tools=tools)


@pytest.fixture
def sample(episode):
    def draw(chance: float, seed: int, num: int = 30):
        generator = random.Random(seed)
        chosen = [tuple("edit" if generator.random() < chance else "test" for _ in range(4)) for _ in range(num)]
        return [episode(f"{seed}-{i}", tools, f"t{i % 5}") for i, tools in enumerate(chosen)]

    return draw


def test_the_divergence_is_scipys():
    generator = np.random.default_rng(0)
    left, right = generator.dirichlet(np.ones(6)), generator.dirichlet(np.ones(6))
    left[2] = 0.0
    left /= left.sum()
    assert jensen_shannon(left, right) == pytest.approx(jensenshannon(left, right, base=2) ** 2)


def test_bounds(sample, episode):
    same = sample(0.5, 1)
    assert policy_shift(same, same, num_permutations=9).divergence == 0.0
    apart = policy_shift([episode("a", ("edit",))], [episode("b", ("test",))], n=1, num_permutations=9)
    assert apart.divergence == pytest.approx(1.0)
    assert apart.changes[0].before - apart.changes[0].after in (1.0, -1.0)
    assert policy_shift([], same) is None
    assert policy_shift([episode("a", ())], same, n=1) is None


def test_a_true_shift_is_found_and_a_chance_one_is_not(sample):
    found = policy_shift(sample(0.2, 1), sample(0.8, 2), num_permutations=199)
    assert found.is_within_tasks
    assert found.p_value == pytest.approx(1 / 200)
    # under no difference p is uniform: about one in ten lies below 0.1
    shifts = [policy_shift(sample(0.5, s), sample(0.5, 1000 + s), num_permutations=49) for s in range(1, 41)]
    assert 1 <= sum(shift.p_value <= 0.1 for shift in shifts) <= 10


def test_other_tasks_are_not_other_behavior(episode):
    """Every task has its own habit, which both policies share, and has been tried more often by one of them."""
    before, after = (
        [
            episode(f"{side}{i}-{k}", ("edit",) * 4 if i % 2 else ("test",) * 4, f"t{i}")
            for i in range(12)
            for k in range(odd if i % 2 else 4 - odd)
        ]
        for side, odd in (("a", 3), ("b", 1))
    )
    found = policy_shift(before, after, num_permutations=99)
    assert found.is_within_tasks
    assert found.divergence > 0.1
    assert found.p_value == 1.0


def habits(episode, side: str, tasks: Iterable[int], num: int = 8, seed: int = 0):
    """Episodes of one policy: of each task it edits with another chance."""
    chances = {task: random.Random(task).random() for task in range(500)}
    generator = random.Random(f"{side}{seed}")
    return [
        episode(
            f"{side}{task}-{k}",
            tuple("edit" if generator.random() < chances[task] else "test" for _ in range(4)),
            f"t{task}",
        )
        for task in tasks
        for k in range(num)
    ]


def test_one_policy_on_other_tasks_is_seldom_called_another(episode):
    """Six other tasks a side x 8 episodes: p at most 0.1 in about one of ten, not in half."""
    shifts = [
        policy_shift(
            habits(episode, "a", range(12 * s, 12 * s + 6), seed=s),
            habits(episode, "b", range(12 * s + 6, 12 * s + 12), seed=s),
            num_permutations=99,
        )
        for s in range(30)
    ]
    assert not any(shift.is_within_tasks for shift in shifts)
    assert 1 <= sum(shift.p_value <= 0.1 for shift in shifts) <= 8


def test_tasks_of_both_sides_are_compared_alone_where_they_hold_half(episode):
    before, after = habits(episode, "a", range(6)), habits(episode, "b", range(2, 8))
    found = policy_shift(before, after, num_permutations=19)
    assert found.is_within_tasks
    assert (found.num_before, found.num_after) == (32, 32)
    few = policy_shift(habits(episode, "a", range(6)), habits(episode, "b", range(4, 10)), num_permutations=19)
    assert not few.is_within_tasks
    assert (few.num_before, few.num_after) == (48, 48)
    assert few.p_value is not None


def test_a_single_task_of_a_side_has_no_p(episode):
    found = policy_shift(habits(episode, "a", [0]), habits(episode, "b", range(1, 9)), num_permutations=19)
    assert found.p_value is None
    assert found.divergence > 0.0
    # A true shift is found over other tasks, too: one policy never tests.
    edits = [episode(f"c{i}", ("edit",) * 4, f"c{i}") for i in range(8)]
    tests = [episode(f"d{i}", ("test",) * 4, f"d{i}") for i in range(8)]
    apart = policy_shift(edits, tests, num_permutations=199)
    assert apart.p_value == pytest.approx(1 / 200)


def test_ngrams_have_start_and_end():
    assert ngrams(("a", "b"), 2) == [("(start)", "a"), ("a", "b"), ("b", "(end)")]
    assert ngrams(("a",), 1) == [("a",)]
    with pytest.raises(ValueError, match="at least 1"):
        ngrams(("a",), 0)
