"""Reviews of submissions: roles by hand, both forms of judgement, what each role reads, whole episodes of each form."""

from __future__ import annotations

import asyncio

import pytest
from tests.rollout.test_resuming import JOB, PIPELINES, Backend, Machine, Sampler
from tests.rollout.test_resuming import renderer as renderer

from repairgym.agent.formats import Action, ParseError
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.agent.review import RIGHT, WRONG, judgement_of, make_review, review_turn, role_after
from repairgym.agent.tools.base import ToolServices
from repairgym.config.loading import load_config
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError
from repairgym.records import StopReason, Trajectory, Turn, VerdictKind
from repairgym.rollout.runner import Runner
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.build.validation import TaskLayers


def turn(tool: str | None, error: str = "") -> Turn:
    return Turn(action="x", tool=tool, observation="x", error=error, action_span=(0, 1))


EDIT, SUBMIT, REJECTED = turn("edit"), turn("submit"), turn("submit", "tool")
UNREADABLE = turn(None, "format")


@pytest.mark.parametrize(
    ("turns", "role", "at"),
    [
        ([], "patcher", 1),
        ([EDIT], "patcher", 2),
        ([EDIT, REJECTED], "patcher", 3),
        ([EDIT, SUBMIT], "reviewer", 2),
        ([EDIT, SUBMIT, UNREADABLE], "refiner", 2),
        ([EDIT, SUBMIT, turn("review"), EDIT, SUBMIT], "refiner", 2),
    ],
)
def test_roles_by_hand(turns, role, at):
    assert role_after(turns) == role
    assert review_turn(turns) == at


@pytest.mark.parametrize(
    ("form", "text", "judgement"),
    [
        ("actions", "submit", RIGHT),
        ("actions", "undo", WRONG),
        ("actions", "undo it", WRONG),
        ("actions", "edit < => <= @2", None),
        ("actions", "", None),
        ("written", "The bound is right.\njudgement: right", RIGHT),
        ("written", "judgement: right\nno, it is not.\n**Judgement: wrong**\n", WRONG),
        ("written", "I would say that the judgement: right is too early", None),
        ("written", "judgement: right or wrong", None),
        ("written", "", None),
    ],
)
def test_a_judgement_is_read_or_is_a_format_error(form, text, judgement):
    format_ = {"action_format": "fenced"} if form == "written" else {}
    config = PipelineConfig(review=form, **format_)
    answer = make_review(ToolServices(config, ExecutionCache())).read(text)
    if judgement is None:
        assert isinstance(answer, ParseError)
    else:
        assert answer == Action("review", {"judgement": judgement})


def test_reviews_that_cannot_be_honoured_are_errors():
    for wrong, message in {
        "pipeline.type=simplified": "needs the tool submit",
        "pipeline.type=paper_b": "for compact actions",
        "pipeline.context.type=elision": "one history of all roles",
        "agent.type=external agent.command=x": "pipeline.review has no effect",
    }.items():
        with pytest.raises(ConfigError, match=message):
            load_config(RolloutConfig, None, ["pipeline.review=actions", *wrong.split()])


@pytest.fixture
def play(task, tmp_path, renderer):
    def play(name: str, *actions: str | tuple[str, str]) -> Trajectory:
        pipeline = PIPELINES[name][0]
        write = make_pipeline(pipeline, ExecutionCache()).format.write
        texts = tuple(it if isinstance(it, str) else write(Action(*it)) for it in actions)
        config = RolloutConfig(pipeline=pipeline, engine=EngineConfig(max_len_tokens=1 << 20))
        runner = Runner(config, Backend(Machine()), lambda _: TaskLayers(tmp_path, tmp_path), renderer)
        return asyncio.run(runner.run_job(JOB, task, Sampler(renderer, texts, Machine(), 0), 1.0))

    return play


WRONG_EDIT, REPAIR = "edit < => > @2", "edit < => <= @2"


def test_a_rejected_change_is_taken_back_and_the_refiner_goes_on(play):
    episode = play("reviewed", WRONG_EDIT, "submit", "undo", REPAIR, "submit")
    assert [turn.tool for turn in episode.turns] == ["edit", "submit", "review", "edit", "submit"]
    assert judgement_of(episode.turns[2]) == WRONG
    assert episode.turns[1].observation.startswith("failed ")
    assert episode.turns[2].observation == "undone"
    assert (episode.stop_reason, episode.verdict.kind) == (StopReason.SUBMITTED, VerdictKind.PASSED)


def test_an_accepted_change_stays_and_the_refiner_submits(play):
    episode = play("reviewed", REPAIR, "submit", "submit", "submit")
    assert [turn.tool for turn in episode.turns] == ["edit", "submit", "review", "submit"]
    assert judgement_of(episode.turns[2]) == RIGHT
    assert episode.turns[1].observation == episode.turns[2].observation
    assert episode.turns[1].observation.startswith("passed ")
    assert episode.verdict.kind is VerdictKind.PASSED


def test_a_rejected_submission_without_a_change_has_nothing_to_undo(play):
    episode = play("reviewed", "submit", "undo", "submit")
    assert episode.turns[1].error == "tool"
    assert judgement_of(episode.turns[1]) == WRONG
    assert episode.verdict.kind is VerdictKind.FAILED


def test_an_unreadable_review_changes_nothing_and_the_refiner_goes_on(play):
    episode = play("reviewed", REPAIR, "submit", WRONG_EDIT, "submit")
    assert [(turn.tool, turn.error) for turn in episode.turns[2:]] == [(None, "format"), ("submit", "")]
    assert episode.verdict.kind is VerdictKind.PASSED


def test_a_written_review_shows_the_patch_and_the_visible_tests_only(play, task):
    heredoc = ("edit", "2:2 << 'EOF'\n    return a <= b\nEOF")
    said = "The bound belongs to it.\njudgement: wrong"
    episode = play("written", ("open", "m.py"), heredoc, ("submit", ""), said, ("submit", ""))
    request, refine = episode.turns[2].observation, episode.turns[3].observation
    assert "+    return a <= b" in request
    assert "tests passed" in request
    assert all(test_id not in request for test_id in set(task.fail_to_pass) - set(task.visible_tests))
    assert episode.turns[3].action.strip().endswith("judgement: wrong")
    assert "You are the author again" in refine
    assert "no readable judgement" not in refine
    assert episode.verdict.kind is VerdictKind.PASSED  # nothing is undone


def test_the_refiner_of_a_text_pipeline_reads_that_the_review_has_no_judgement(play):
    episode = play("written", ("submit", ""), "Looks good to me.", ("submit", ""))
    assert (episode.turns[1].tool, episode.turns[1].error) == (None, "format")
    assert "no readable judgement" in episode.turns[1].observation
