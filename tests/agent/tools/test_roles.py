"""Roles of turns, for the tools of every scaffold."""

import pytest

from repairgym.agent.tools.roles import is_blind_submit
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
