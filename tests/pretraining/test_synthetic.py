"""Simulated episodes say what the tools would say and end in a repair."""

import random

import pytest

from repairgym.agent.tools.window import Window
from repairgym.agent.tools.window_edits import edit_at, parse_compact_edit, replace_on_line, resolve_edit
from repairgym.config.models import TeacherNoise
from repairgym.pretraining.corpus import CorpusFunction, corpus_functions, function_digest
from repairgym.pretraining.synthetic import guesses_for, mutate, synthesize

SOURCE = '''\
def clip(values, low, high):
    """Doc."""
    kept = []
    for value in values:
        if value < low or value > high:
            continue
        kept.append(value - 1)
    return kept if len(kept) >= 2 else None
'''


@pytest.fixture
def function(tmp_path) -> CorpusFunction:
    path = tmp_path / "clip.py"
    path.write_text(SOURCE)
    (found,) = corpus_functions([("pkg/clip.py", path)], frozenset(), set())
    return found


def test_functions_lose_docstrings_and_keep_sites(function):
    assert not any("Doc" in line for line in function.lines)
    for site in function.sites:
        line = function.lines[site.line - 1]
        assert line[site.column : site.column + len(site.old)] == site.old


def test_excluded_and_repeated_functions_are_left_out(function, tmp_path):
    files = [("a.py", tmp_path / "clip.py"), ("b.py", tmp_path / "clip.py")]
    assert len(list(corpus_functions(files, frozenset(), set()))) == 1
    assert not list(corpus_functions(files, frozenset({function_digest(function.lines)}), set()))


@pytest.mark.parametrize("seed", range(20))
def test_the_edits_of_an_episode_repair_the_function(function, seed):
    generator = random.Random(seed)
    segments = synthesize(function, 1, TeacherNoise(), generator)
    assert segments is not None
    shown = segments[0].text.splitlines()[1:]
    lines = [
        line[len(f"@{k}") :].removeprefix(" ") if k < 2 else line[len(f"@{k}") :] for k, line in enumerate(shown, 1)
    ]
    undo: list[tuple[int, str]] = []
    window = Window("clip.py", tuple(range(1, len(lines) + 1)))
    for segment in segments[1::2]:
        edit = parse_compact_edit(segment.text.removeprefix("edit "))
        meant = resolve_edit("\n".join(lines) + "\n", window, edit) if edit else ""
        if segment.text == "undo":
            number, text = undo.pop()
            lines[number] = text
        elif not isinstance(meant, str):
            undo.append((meant.label - 1, lines[meant.label - 1]))
            lines[meant.label - 1] = replace_on_line(lines[meant.label - 1], meant) or ""
    assert tuple(lines) == function.lines
    assert segments[-1].kind == "submit"


def test_several_bugs_are_on_different_lines(function):
    broken, mutations = mutate(function, 3, random.Random(2))
    assert len({mutation.site.line for mutation in mutations}) == len(mutations) > 1
    assert broken != function.text


@pytest.mark.parametrize("seed", range(20))
def test_guesses_can_be_made_and_repair_nothing(function, seed):
    broken, mutations = mutate(function, 1, random.Random(seed))
    lines = broken.splitlines()
    bug = mutations[0].inverse.site
    fix = edit_at(lines[bug.line - 1], bug.line, bug.column, bug.old, bug.alternatives[0])
    guesses = guesses_for(broken, list(function.sites), mutations, [fix])
    for guess in guesses:
        changed = list(lines)
        changed[guess.label - 1] = replace_on_line(lines[guess.label - 1], guess)
        assert changed[guess.label - 1] not in (None, lines[guess.label - 1])
        assert tuple(changed) != function.lines
    at_the_bug = {guess.new for guess in guesses if (guess.label, guess.old) == (fix.label, fix.old)}
    assert at_the_bug >= set(mutations[0].site.alternatives) - {mutations[0].new}
