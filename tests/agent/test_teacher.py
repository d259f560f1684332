"""The noisy teacher: perfect when its noise is off, and each kind of noise happens when it is on."""

import random

from repairgym.agent.teacher import Choice, Teacher
from repairgym.agent.tools.window_edits import CompactEdit
from repairgym.config.models import TeacherNoise

FIX = CompactEdit(3, "<", "<=")
GUESSES = [CompactEdit(2, "+", "-"), CompactEdit(5, "1", "2")]
SURE = TeacherNoise(knows_fix=1.0, mistypes=0.0, tests=1.0, undoes=1.0, gives_up=0.0)


def play(noise: TeacherNoise, seed: int, answer: dict[str, str]) -> list[tuple[str, str]]:
    teacher = Teacher([FIX], GUESSES, noise, random.Random(seed))
    observation, actions = "open", []
    for _ in range(30):
        choice = teacher.act(observation)
        actions.append((choice.kind, choice.text))
        if choice.kind == "submit":
            break
        observation = answer[choice.kind]
    return actions


PASSING = {"fix": "@3 a <= b", "guess": "@2 a - b", "typo": "error: < is on @3", "test": "passed 2", "undo": "undone"}
FAILING = PASSING | {"test": "failed 1 of 2: assert 1 == 2"}


def test_without_noise_it_repairs_tests_and_submits():
    assert play(SURE, 0, PASSING) == [("fix", "edit < => <= @3"), ("test", "test"), ("submit", "submit")]


def test_it_undoes_wrong_guesses():
    noise = SURE.model_copy(update={"knows_fix": 0.0})
    kinds = [kind for kind, _ in play(noise, 1, FAILING)]
    assert kinds[:6] == ["guess", "test", "undo", "guess", "test", "undo"]


def test_it_submits_blind():
    noise = SURE.model_copy(update={"tests": 0.0})
    assert [kind for kind, _ in play(noise, 0, FAILING)] == ["fix", "submit"]


def test_it_gives_up():
    noise = SURE.model_copy(update={"knows_fix": 0.0, "gives_up": 1.0})
    assert [kind for kind, _ in play(noise, 0, FAILING)] == ["guess", "test", "submit"]


def test_a_misread_token_is_one_that_the_window_lacks():
    noise = SURE.model_copy(update={"misreads": 0.5})
    answer = PASSING | {"typo": "error: > is not in the window"}
    typos = [text for seed in range(40) for kind, text in play(noise, seed, answer) if kind == "typo"]
    assert typos
    assert {text.split()[1] for text in typos} <= {"<=", ">", ">=", "==", "!="}
    assert {text.split(" ", 2)[2] for text in typos} == {"=> <= @3"}


def test_a_misread_that_hits_something_is_taken_back():
    noise = SURE.model_copy(update={"misreads": 1.0})
    teacher = Teacher([FIX], GUESSES, noise, random.Random(0))
    teacher.act("open")
    assert teacher.act("@3 a <= c") == Choice("undo", "undo")


def test_a_typo_is_corrected():
    noise = SURE.model_copy(update={"mistypes": 0.5})
    played = [play(noise, seed, PASSING) for seed in range(30)]
    assert {actions[-1][0] for actions in played} == {"submit"}
    assert any(actions[0][0] == "typo" for actions in played)
    for actions in played:
        kinds = [kind for kind, _ in actions]
        assert kinds[kinds.count("typo") :] == ["fix", "test", "submit"]
        assert all(text != "edit < => <= @3" for kind, text in actions if kind == "typo")


def test_a_typo_that_matched_is_undone_first():
    noise = SURE.model_copy(update={"mistypes": 0.5})
    played = [play(noise, seed, PASSING | {"typo": "@2 a <= c"}) for seed in range(30)]
    first = [[kind for kind, _ in actions][:2] for actions in played if actions[0][0] == "typo"]
    assert first
    assert all(kinds == ["typo", "undo"] for kinds in first)


def test_a_forgiven_typo_counts_as_the_edit():
    noise = SURE.model_copy(update={"mistypes": 0.5})
    played = [play(noise, seed, PASSING | {"typo": "@3 a <= b"}) for seed in range(30)]
    assert any([kind for kind, _ in actions] == ["typo", "test", "submit"] for actions in played)


def test_equal_seeds_play_equally():
    noise = TeacherNoise()
    assert [play(noise, 5, FAILING) for _ in range(2)] == [play(noise, 5, FAILING)] * 2
