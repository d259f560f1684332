"""Tables of routers: values by hand, common tasks, and two policies of which each does better in one situation."""

from __future__ import annotations

import pytest

from repairgym.agent.routing import Member
from repairgym.analysis.routing import PRIOR_EPISODES, fit_router
from repairgym.errors import InputError
from repairgym.records import StopReason, VerdictKind

EDIT, PASSED, FAILED = ("edit", "a", "b", ""), ("test", "", "passed 2", ""), ("test", "", "failed 1 of 2: no", "")
MEMBERS = [Member(name=name, folder=f"/{name}", weights_digest=name) for name in ("starter", "finisher")]


def episodes(make, name, counts, tasks=("a", "b")):
    """``counts``: (steps, passed, failed)."""
    made = []
    for steps, num_passed, num_failed in counts:
        kinds = [VerdictKind.PASSED] * num_passed + [VerdictKind.FAILED] * num_failed
        for kind in kinds:
            id_ = f"{name}/{len(made)}"
            made.append(make(id_, tasks[len(made) % len(tasks)], steps=list(steps), kind=kind))
    return made


def test_values_by_hand_and_the_member_of_each_situation(trajectory_maker):
    straight, second_try = (EDIT, PASSED), (EDIT, FAILED, EDIT)
    known = {
        "starter": episodes(trajectory_maker, "starter", [(straight, 30, 2), (second_try, 1, 11)]),
        "finisher": episodes(trajectory_maker, "finisher", [(straight, 6, 18), (second_try, 9, 3)]),
    }
    router = fit_router(MEMBERS, known)
    assert router.best == "starter"
    share = 31 / 44
    assert router.table["tests failed"]["starter"].value == pytest.approx(
        (1 + PRIOR_EPISODES * share) / (12 + PRIOR_EPISODES)
    )
    assert router.choices == {"unchanged": "starter", "changed, not tested": "starter", "tests failed": "finisher"}


def test_only_tasks_count_that_all_members_tried(trajectory_maker):
    known = {
        "starter": episodes(trajectory_maker, "starter", [((EDIT,), 20, 0)], tasks=("easy",))
        + episodes(trajectory_maker, "starter-b", [((EDIT,), 5, 20)], tasks=("common",)),
        "finisher": episodes(trajectory_maker, "finisher", [((EDIT,), 10, 15)], tasks=("common",)),
    }
    router = fit_router(MEMBERS, known)
    assert router.best == "finisher"
    assert router.table["unchanged"]["starter"].num_episodes == 25


def test_invalid_episodes_count_for_nothing_and_too_few_are_an_error(trajectory_maker):
    made = episodes(trajectory_maker, "starter", [((EDIT,), 10, 10)])
    lost = [
        trajectory_maker(f"l{i}", "a", steps=[], kind=VerdictKind.INVALID, stop_reason=StopReason.INFRASTRUCTURE)
        for i in range(9)
    ]
    other = episodes(trajectory_maker, "finisher", [((EDIT,), 15, 4)])
    with pytest.raises(InputError, match="finisher has 19 valid episodes on the 2 tasks that all members tried"):
        fit_router(MEMBERS, {"starter": made + lost, "finisher": other + lost})
