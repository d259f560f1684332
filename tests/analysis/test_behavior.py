from __future__ import annotations

import pytest

from repairgym.analysis.behavior import (
    END,
    START,
    behavior_metrics,
    by_step,
    exploit_findings,
    lengths_by_outcome,
    shares,
    stop_reasons,
    tool_counts,
    tool_shares_by_step,
    transitions,
)
from repairgym.analysis.episodes import UNPARSED, read_episodes
from repairgym.records import StopReason, VerdictKind

EDIT = ("edit", "@1 a => b", "@1 b", "")


TOOL_ERROR = ("edit", "@9 a => b", "error: no such line", "tool")


TEST = ("test", "", "failed 1 of 2", "")


SUBMIT = ("submit", "", "submitted", "")


GARBLED = ("", "", "error: one line", "format")


@pytest.fixture
def add(store, trajectory_maker):
    def add_episode(name, steps, step=1, **more):
        trajectory = trajectory_maker(name, name, steps=steps, group_id=name, **more)
        store.add_trajectory(trajectory, phase="rl", step=step, split="train")

    return add_episode


def test_tool_tables(store, add):
    add("a", [EDIT, TEST, SUBMIT], step=1)
    add("b", [GARBLED, EDIT, SUBMIT], step=2)
    episodes = list(read_episodes(store, phase="rl"))
    assert tool_counts(episodes) == {"edit": 2, "submit": 2, UNPARSED: 1, "test": 1}
    by = tool_shares_by_step(episodes)
    assert by[1] == pytest.approx({"edit": 1 / 3, "test": 1 / 3, "submit": 1 / 3})
    assert UNPARSED in by[2]
    table = transitions(episodes)
    assert table.counts["edit"] == {"submit": 1, "test": 1}
    assert table.counts[START] == {UNPARSED: 1, "edit": 1}
    assert table.counts["submit"] == {END: 2}
    assert all(sum(row.values()) == pytest.approx(1) for row in table.probabilities().values())
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
    assert exploit_findings(episodes) == {"test_files_edited": 1}
    assert stop_reasons(episodes) == {StopReason.SUBMITTED: 2, StopReason.TURN_LIMIT: 1}
    lengths = {one.verdict: one for one in lengths_by_outcome(episodes)}
    assert lengths[VerdictKind.INVALID].mean_turns == 5
    assert lengths[VerdictKind.PASSED].mean_tokens > lengths[VerdictKind.PASSED].mean_action_tokens > 0


def test_rates_over_nothing_are_none():
    found = behavior_metrics([])
    assert found.num_episodes == 0
    assert found.blind_submit_rate is None
    assert found.format_error_rate is None


def test_measures_by_step(store, add):
    add("a", [EDIT, TEST, SUBMIT], step=2)
    add("b", [EDIT, SUBMIT], step=1)
    add("c", [TEST], step=3, stop_reason=StopReason.TURN_LIMIT)
    episodes = list(read_episodes(store))
    assert by_step(episodes, lambda some: behavior_metrics(some).mean_turns) == [(1, 2.0), (2, 3.0), (3, 1.0)]
    assert by_step(episodes, lambda some: behavior_metrics(some).blind_submit_rate) == [(1, 1.0), (2, 0.0)]
