"""The diff as it grew is right or absent."""

from __future__ import annotations

import dataclasses

import pytest

from repairgym.view.folders import RunFolders
from repairgym.view.lists import TrajectoryFilter
from repairgym.view.replay import grow


@pytest.fixture(scope="module")
def episodes(run_folder):
    viewed = RunFolders(run_folder).get("small")
    with viewed.opened() as reader:
        rows = reader.page(TrajectoryFilter(), 50).rows
        return [(viewed.tasks.get(one.row.task_id), reader.document(one)) for one in rows]


def test_every_episode_is_followed_to_its_submission(episodes):
    for task, document in episodes:
        growth = grow(task, document)
        assert not isinstance(growth, str)
        assert len(growth) == len(document.turns)
        assert growth[-1].whole == document.final_patch
        for turn, one in zip(document.turns, growth, strict=True):
            assert bool(one.step) <= (turn.tool in ("edit", "line", "undo", "write") and not turn.error)


def test_an_undo_takes_the_diff_back(episodes):
    undone = [
        one
        for task, document in episodes
        for turn, one in zip(document.turns, grow(task, document), strict=True)
        if turn.tool == "undo" and not turn.error
    ]
    assert undone
    assert any(not one.whole and one.step for one in undone)


def test_an_edit_with_another_answer_is_not_shown(episodes):
    task, document = next(one for one in episodes if one[1].turns[0].tool == "edit" and not one[1].turns[0].error)
    other = document.turns[0].model_copy(update={"observation": "@9 something else"})
    changed = dataclasses.replace(document, turns=(other, *document.turns[1:]))
    assert "does not lead to the submission" in grow(task, changed)


def test_a_submission_that_is_not_reached_is_not_shown(episodes):
    task, document = episodes[0]
    assert "does not lead" in grow(task, dataclasses.replace(document, final_files={"m.py": "other"}))


def test_an_episode_that_submitted_nothing_is_followed_by_its_answers(episodes):
    task, document = next(one for one in episodes if one[1].final_files)
    growth = grow(task, dataclasses.replace(document, final_files={}))
    assert growth[-1].whole == document.final_patch


def test_the_effect_of_a_shell_is_not_guessed(episodes):
    task, document = episodes[0]
    shell = document.turns[0].model_copy(update={"tool": "run_sh", "arguments": {"command": "sed -i s/a/b/ m.py"}})
    changed = dataclasses.replace(document, turns=(shell, *document.turns[1:]))
    assert "run_sh can change files" in grow(task, changed)


def test_whole_files_of_paper_a_are_followed(episodes):
    task, document = next(one for one in episodes if one[1].turns[0].tool == "write")
    write = document.turns[0].model_copy(
        update={
            "tool": "write_file",
            "arguments": {"path": "./m.py", "content": document.final_files["m.py"]},
            "observation": "wrote 2 lines to m.py",
        }
    )
    growth = grow(task, dataclasses.replace(document, turns=(write, *document.turns[1:]), pipeline="full"))
    assert growth[-1].whole == document.final_patch
