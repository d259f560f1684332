"""Explanations of settings: commented TOML, one setting, the JSON schema and the page."""

import json
import tomllib
from pathlib import Path

import pytest

from repairgym.config.algorithms import AdvantageConfig, LossConfig
from repairgym.config.learning import AlgorithmConfig
from repairgym.config.loading import load_config
from repairgym.config.reference import (
    COMMAND_CONFIGS,
    commented_toml,
    default_of,
    explain_setting,
    find_place,
    json_schema,
    reference_page,
)
from repairgym.config.schema import records_of, tags_of
from repairgym.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs/reference/configuration.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == reference_page(), f"run: repairgym config reference --out {PAGE}"


@pytest.mark.parametrize("command", COMMAND_CONFIGS)
def test_shown_defaults_are_the_defaults(command: str, tmp_path: Path) -> None:
    default = default_of(find_place(command))
    shown = tmp_path / "shown.toml"
    shown.write_text(commented_toml(command))
    if default is not None:
        assert load_config(type(default), shown) == default


def test_a_section_is_shown_below_its_own_key_with_docstrings() -> None:
    text = commented_toml("rl.algorithm")
    assert tomllib.loads(text)["rl"]["algorithm"]["group_size"] == AlgorithmConfig().group_size
    assert "# Trajectories per problem.\ngroup_size" in text


@pytest.mark.parametrize(("key", "union"), [("loss", LossConfig), ("advantage", AdvantageConfig)])
def test_a_union_is_explained_with_all_its_members(key: str, union: object) -> None:
    text = explain_setting(f"rl.algorithm.{key}")
    for member in records_of(union):
        assert f"type = {tags_of(member)[0]!r}: " in text


def test_a_value_is_explained_with_type_bounds_and_default() -> None:
    text = explain_setting("rl.algorithm.group_size")
    assert "integer > 0" in text
    assert "default: 10" in text
    assert "Trajectories per problem." in text
    assert explain_setting("train sft").startswith("train sft  (repairgym train sft)")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'rl\.algorithmm'; did you mean 'rl\.algorithm'"):
        commented_toml("rl.algorithmm")


def test_the_json_schema_has_docstrings_and_choices() -> None:
    schema = json.loads(json_schema("train rl"))
    assert schema["properties"]["rl"]
    algorithm = schema["$defs"]["AlgorithmConfig"]["properties"]
    assert "grpo" in algorithm["preset"]["enum"]
    assert algorithm["group_size"]["description"] == "Trajectories per problem."
