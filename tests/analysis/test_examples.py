from __future__ import annotations

from repairgym.analysis.episodes import EpisodeFacts, read_episodes
from repairgym.analysis.examples import choose_examples, exploit_examples, exploits_by_step
from repairgym.records import StopReason, VerdictKind

P, F = VerdictKind.PASSED, VerdictKind.FAILED


def make_episode(name, phase="eval/rl/test-mutations", **more):
    defaults = {
        "id": name,
        "phase": phase,
        "step": 0,
        "task_id": name,
        "verdict": F,
        "stop_reason": StopReason.SUBMITTED,
        "tools": ("edit", "test", "submit"),
        "num_tokens": 10,
        "num_action_tokens": 5,
        "num_edits": 1,
        "num_test_runs": 1,
        "num_format_errors": 0,
        "num_tool_errors": 0,
        "num_repeats": 0,
        "is_blind_submit": False,
        "findings": (),
        "num_tests": 4,
        "num_tests_passed": 0,
    }
    return EpisodeFacts(**{**defaults, **more})


def test_each_kind_of_trajectory_is_chosen_by_its_rule():
    episodes = [
        make_episode("success", verdict=P),
        make_episode("older success", phase="eval/rft/test-mutations", verdict=P),
        make_episode("far miss", num_tests_passed=1),
        make_episode("near miss", num_tests_passed=3),
        make_episode("loop", num_repeats=5),
        make_episode("blind", is_blind_submit=True),
        make_episode("release", phase="eval/rl/test-releases", num_tests_passed=4),
    ]
    chosen = {choice.title: choice.episode.id for choice in choose_examples(episodes)}
    assert chosen == {
        "A clean success": "success",
        "A near miss": "near miss",
        "A loop": "loop",
        "A blind submission": "blind",
        "A real bug": "release",
    }
    with_exploit = choose_examples([*episodes, make_episode("exploit", verdict=VerdictKind.EXPLOITED)])
    assert [choice.title for choice in with_exploit].count("An exploit") == 1
    assert "A blind submission" not in {choice.title for choice in with_exploit}
    assert choose_examples(reversed(episodes)) == choose_examples(episodes)


def test_a_trajectory_is_shown_once_and_later_stages_come_first():
    only = make_episode("loop", num_repeats=9, is_blind_submit=True)
    assert [choice.title for choice in choose_examples([only])] == ["A near miss"]
    stages = ["base", "rft", "rl-step-0002", "rl-step-0010", "rl"]
    for count in range(1, len(stages) + 1):
        episodes = [make_episode(stage, phase=f"eval/{stage}/test-mutations", verdict=P) for stage in stages[:count]]
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
