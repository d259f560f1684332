"""Roles of turns, for the tools of every scaffold."""

import pytest

from repairgym.agent.tools.roles import final_test_state, is_blind_submit
from repairgym.records import StopReason


@pytest.mark.parametrize(
    ("tools", "is_blind"),
    [
        (["edit", "submit"], True),
        (["edit", "test", "submit"], False),
        (["edit", "test", "edit", "submit"], True),
        (["edit", "test", "undo", "submit"], True),
        (["submit"], True),
        (["replace", "shell python -m pytest -q", "submit"], False),
        (["replace", "shell ls", "submit"], True),
        (["shell pytest", "create", "submit"], True),
        (["write_file", "validate_and_build", "submit"], False),
    ],
)
def test_blind_submits(trajectory_maker, tools, is_blind):
    calls = [call.partition(" ") for call in tools]
    turns = trajectory_maker(steps=[(tool, argument, "", "") for tool, _, argument in calls]).turns
    assert is_blind_submit(StopReason.SUBMITTED, turns) is is_blind
    assert not is_blind_submit(StopReason.TURN_LIMIT, turns)


def test_a_rejected_edit_changes_nothing(trajectory_maker):
    steps = [("edit", "", "", ""), ("test", "", "", ""), ("edit", "", "", "tool"), ("submit", "", "", "")]
    assert not is_blind_submit(StopReason.SUBMITTED, trajectory_maker(steps=steps).turns)


EDIT = ("edit", "@1 a => b", "@1 b", "")
PASSED, FAILED = ("test", "", "passed 2", ""), ("test", "", "failed 1 of 2: no", "")


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ([EDIT, PASSED], "passed"),
        ([EDIT, FAILED], "failed"),
        ([PASSED, EDIT], "untested"),
        ([], "untested"),
        ([EDIT, ("build", "", "build passed (3 steps), tests passed 4", "")], "passed"),
        ([EDIT, ("build", "", "build passed (3 steps), tests failed 1 of 4", "")], "failed"),
    ],
)
def test_final_state_of_the_tests(trajectory_maker, steps, state):
    assert final_test_state(trajectory_maker(steps=steps).turns) == state


@pytest.mark.parametrize(
    ("judgement", "state"), [("", "passed"), ("judgement=right", "passed"), ("judgement=wrong", "untested")]
)
def test_an_answered_submission_ran_the_tests(trajectory_maker, judgement, state):
    answered = [EDIT, ("submit", "", "passed 2", "")]
    review = [("review", judgement, "passed 2", "")] if judgement else []
    turns = trajectory_maker(steps=[*answered, *review, ("submit", "", "submitted", "")]).turns
    turns = [
        turn.model_copy(update={"arguments": dict([judgement.split("=")])}) if turn.tool == "review" else turn
        for turn in turns
    ]
    assert final_test_state(turns) == state
    assert final_test_state(trajectory_maker(steps=[EDIT, ("submit", "", "submitted", "")]).turns) == "untested"


def test_a_shell_run_counts_as_the_tests_it_ran(trajectory_maker):
    for output, state in (("== 3 passed in 0.1s ==", "passed"), ("1 failed, 2 passed in 1s", "failed")):
        turns = trajectory_maker(steps=[EDIT, ("shell", "python -m pytest -q", output, "")]).turns
        assert final_test_state(turns) == state
