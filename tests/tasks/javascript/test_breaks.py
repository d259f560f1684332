"""Edits that break packages of npm, and ranges of their dependencies."""

from __future__ import annotations

import json

import pytest

from repairgym.tasks.javascript.breaks import (
    declared_range,
    find_npm_breaks,
    range_recipe,
    read_range_recipe,
    with_range,
)

SETTINGS = """{
  "name": "@tiny/math",
  "version": "1.2.3",
  "main": "lib/index.js",
  "exports": {
    ".": "./lib/index.js",
    "./package.json": "./package.json"
  },
  "scripts": {
    "test": "node --test"
  },
  "dependencies": {
    "es-errors": "^1.3.0",
    "ret": "~0.5.0"
  },
  "devDependencies": {
    "ret": "~0.5.0",
    "tape": "^5.9.0"
  }
}
"""


def texts(operator: str, path: str = "package.json", text: str = SETTINGS) -> list[str]:
    return [edit.text for edit in find_npm_breaks(path, text) if edit.operator == operator]


def test_each_edit_changes_one_place_and_has_a_recipe_of_its_own() -> None:
    edits = find_npm_breaks("package.json", SETTINGS)
    assert len({edit.recipe for edit in edits}) == len({edit.text for edit in edits}) == len(edits)
    assert all(edit.text != SETTINGS for edit in edits)
    assert edits == find_npm_breaks("package.json", SETTINGS)


def test_a_removed_dependency_leaves_sound_json() -> None:
    removed = [json.loads(text) for text in texts("missing_dependency")]
    assert [list(told["dependencies"]) for told in removed[:2]] == [["ret"], ["es-errors"]]
    assert [list(told["devDependencies"]) for told in removed[2:]] == [["tape"], ["ret"]]


def test_a_dependency_moves_to_those_of_the_tests() -> None:
    moved = [json.loads(text) for text in texts("wrong_section")]
    assert moved[0]["dependencies"] == {"ret": "~0.5.0"}
    assert moved[0]["devDependencies"]["es-errors"] == "^1.3.0"


@pytest.mark.parametrize(
    ("operator", "place", "values"),
    [
        ("newer_range", ("dependencies", "es-errors"), ["^2.0.0"]),
        ("older_range", ("dependencies", "ret"), ["~0.4.0"]),
        ("missing_release", ("devDependencies", "tape"), ["5.9.99"]),
        ("wrong_path", ("main",), ["./index.js"]),
        ("bare_target", ("exports", "."), ["lib/index.js"]),
        ("added_type", ("type",), ["module"]),
        ("wrong_name", ("name",), ["Tiny/Math"]),
        ("wrong_version", ("version",), ["1.2"]),
    ],
)
def test_values_are_those_that_people_get_wrong(operator: str, place: tuple[str, ...], values: list[str]) -> None:
    found: list[object] = []
    sound = json.loads(SETTINGS)
    for text in texts(operator):
        told = json.loads(text)
        before = sound
        for key in place:
            told, before = told.get(key, {}), before.get(key, {})
        if told != before:
            found.append(told)
    assert found == values


@pytest.mark.parametrize("operator", ["missing_comma", "trailing_comma", "unclosed_text"])
def test_broken_syntax_is_no_json(operator: str) -> None:
    broken = texts(operator)
    assert broken
    for text in broken:
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)


def test_settings_of_types_are_broken_in_their_options() -> None:
    text = '{\n  "extends": "@x/base",\n  "compilerOptions": {\n    "strict": true,\n    "target": "es2020"\n  }\n}\n'
    assert '"stricts": true' in texts("misspelled_option", "tsconfig.json", text)[0]
    assert json.loads(texts("other_flag", "tsconfig.json", text)[0])["compilerOptions"]["strict"] is False
    assert "extends" not in json.loads(texts("missing_base", "tsconfig.json", text)[0])
    assert not texts("wrong_version", "tsconfig.json", text)


def test_one_line_of_settings_has_no_edits() -> None:
    assert find_npm_breaks("package.json", '{"name": "a", "version": "1.0.0", "main": "index.js"}\n') == []


def test_a_range_is_set_wherever_it_is_declared() -> None:
    told = json.loads(with_range(SETTINGS, "ret", "<0.5.0"))
    assert told["dependencies"]["ret"] == told["devDependencies"]["ret"] == "<0.5.0"
    assert declared_range(SETTINGS, "tape") == "^5.9.0"
    assert declared_range(SETTINGS, "test") == ""


def test_the_recipe_of_a_range_is_read_back() -> None:
    recipe = range_recipe("@x/y", "^1.0.0 || ^2", "^1.0.0 <1.5.0")
    assert read_range_recipe(recipe) == ("@x/y", "^1.0.0 || ^2", "^1.0.0 <1.5.0")
