"""The choice of tasks as a Record: overrides, dates, splits of training and the names of evaluation sets."""

import pytest

from repairgym.config.commands import RolloutCommandConfig
from repairgym.config.loading import load_config, to_toml
from repairgym.config.recipes import RlCommandConfig
from repairgym.config.selection import TaskSelection
from repairgym.errors import ConfigError


def test_overrides_name_every_part_and_survive_the_file(tmp_path):
    given = [
        *("select.sources=releases,history", "select.labels.difficulty=easy,hard", "select.since=2026-05-01"),
        *("select.before=2026-07-01", "select.id_files=verified-50.txt", "select.packages=idna"),
    ]
    config = load_config(RolloutCommandConfig, None, given)
    assert config.select == TaskSelection(
        splits=("test",),
        sources=("releases", "history"),
        packages=("idna",),
        labels={"difficulty": ("easy", "hard")},
        since="2026-05-01",
        before="2026-07-01",
        id_files=("verified-50.txt",),
        is_specified_only=True,
    )
    file = tmp_path / "kept.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    assert load_config(RolloutCommandConfig, file) == config


def test_a_partial_selection_keeps_the_defaults_of_its_place():
    rl = load_config(RlCommandConfig, None, ["rl.select.sources=history", "rl.validation.sources=history"]).rl
    assert (rl.select.splits, rl.validation.splits, rl.validation.num_tasks) == (("train",), ("validation",), 64)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rl.select.splits=test", "training sees the train split only"),
        ("rl.validation.splits=test", "nothing is tuned on the test split"),
        ("rl.select.since=May", "expected a date as in 2026-05-01"),
        ("rl.select.since=2026-13-45", "got '2026-13-45', expected a date"),
        ("rl.select.before=2026-02-29", "got '2026-02-29', expected a date"),
        ("rl.select.since=2026-W18-5", "expected a date as in 2026-05-01"),
        ("rl.select={since = '2026-06-01', before = '2026-05-01'}", "since=2026-06-01 is not before before=2026-05-01"),
        ("rl.validation={since = '2026-06-01', before = '2026-06-01'}", "no day is between"),
        ("rl.select.sources=bugs", "sources"),
        ("rl.source_shares={mutations = 0.5, releases = 0.4}", "the shares add up to 0.9, expected 1"),
    ],
)
def test_what_cannot_be_meant_is_rejected(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(RlCommandConfig, None, [override])


def test_a_leap_day_is_a_date():
    assert TaskSelection(since="2028-02-29").since == "2028-02-29"


def test_an_evaluation_set_is_named_by_what_chooses_it():
    def name(**parts):
        return TaskSelection(**{"splits": ("test",), **parts}).set_name

    assert name() == "test"
    assert name(sources=("mutations",), num_tasks=5) == "test-mutations"
    assert name(splits=()) == "all"
    assert name(id_files=("sets/verified-50.txt",)).startswith("verified-50-")
    others = {name(packages=("idna",)), name(packages=("click",)), name(labels={"difficulty": ("easy",)}), name()}
    assert len(others) == 4
