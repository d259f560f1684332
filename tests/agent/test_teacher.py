"""The noisy teacher: perfect when its noise is off, and each kind of noise happens when it is on."""

import random

from mendwright.agent.teacher import Teacher
from mendwright.config.teacher import TeacherNoise
from mendwright.tools.patching import CompactEdit

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
    assert play(SURE, 0, PASSING) == [("fix", "edit @3 < => <="), ("test", "test"), ("submit", "submit")]


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


def test_a_typo_is_corrected():
    noise = SURE.model_copy(update={"mistypes": 1.0})
    actions = play(noise, 0, PASSING)
    assert [kind for kind, _ in actions] == ["typo", "fix", "test", "submit"]
    assert actions[0][1] in ("edit @2 < => <=", "edit @4 < => <=")


def test_a_typo_that_matched_is_undone_first():
    noise = SURE.model_copy(update={"mistypes": 1.0})
    actions = play(noise, 0, PASSING | {"typo": "@2 a <= c"})
    assert [kind for kind, _ in actions] == ["typo", "undo", "fix", "test", "submit"]


def test_equal_seeds_play_equally():
    noise = TeacherNoise()
    assert [play(noise, 5, FAILING) for _ in range(2)] == [play(noise, 5, FAILING)] * 2
