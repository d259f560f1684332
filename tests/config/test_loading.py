"""Configs: precedence, explanations of bad input, and the round trip through TOML."""

from __future__ import annotations

import math
import re
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from repairgym.config.loading import flatten, load_config, to_toml
from repairgym.config.recipes import DemoConfig, RlCommandConfig, SftCommandConfig
from repairgym.config.schema import iter_settings
from repairgym.errors import ConfigError, InputError
from repairgym.records import Record


class Mode(StrEnum):
    FAST = "fast"
    SLOW = "slow"


class Optimizer(Record):
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    warmup: int | None = 3
    note: str | None = None


class Loss(Record):
    type: Literal["dapo"] = "dapo"
    eps_low: float = 0.2
    eps_high: float = 0.3

    @model_validator(mode="after")
    def check(self) -> Loss:
        if self.eps_high < self.eps_low:
            raise ValueError("eps_high is below eps_low; use eps_low <= eps_high")
        return self


class Distill(Record):
    type: Literal["distill"] = "distill"
    teacher: str = "big"


class Example(Record):
    steps: int = 10
    name: str = "demo"
    is_quick: bool = False
    mode: Mode = Mode.FAST
    out: Path | None = None
    optimizer: Optimizer = Optimizer()
    objective: Annotated[Loss | Distill, Field(discriminator="type")] = Loss()
    stages: tuple[Optimizer, ...] = ()
    weights: dict[str, float] = {}
    packages: dict[str, Distill] = {}


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_defaults_then_file_then_overrides(tmp_path: Path) -> None:
    file = write(tmp_path, 'steps = 20\nname = "file"\n[optimizer]\nlr = 1e-3\n')
    config = load_config(Example, file, ["steps=30", "optimizer.betas=[0.5, 0.6]", "mode=slow"])
    assert (config.steps, config.name, config.mode) == (30, "file", Mode.SLOW)
    assert config.optimizer == Optimizer(lr=1e-3, betas=(0.5, 0.6))


def test_without_file_and_overrides_gives_the_defaults() -> None:
    assert load_config(Example) == Example()


@pytest.mark.parametrize(
    ("override", "field", "expected"),
    [
        ("name=some text, with = signs", "name", "some text, with = signs"),
        ("name='3.11'", "name", "3.11"),
        ("name=", "name", ""),
        ("is_quick=true", "is_quick", True),
        ("out=runs/a", "out", Path("runs/a")),
        ("out=none", "out", None),
        ("name=none", "name", "none"),
        ("weights={a = 1, 'b c' = 0.5}", "weights", {"a": 1.0, "b c": 0.5}),
        ("objective={type = 'distill', teacher = 'x'}", "objective", Distill(teacher="x")),
    ],
)
def test_values_of_overrides(override: str, field: str, expected: object) -> None:
    assert getattr(load_config(Example, None, [override]), field) == expected


def test_none_unsets_an_optional_field_in_nested_places() -> None:
    assert load_config(Example, None, ["optimizer.warmup=none"]).optimizer.warmup is None
    assert load_config(Example, None, ["stages=[{warmup = 'none'}]"]).stages == (Optimizer(warmup=None),)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("stepz=1", ["unknown key 'stepz'", "did you mean 'steps'?", "the top level", "optimizer"]),
        ("optimizer.lrr=1", ["unknown key 'optimizer.lrr'", "'optimizer.lr'", "[optimizer]: betas, lr, note, warmup"]),
        ("stages=[{beta = 1}]", ["unknown key 'stages.0.beta'", "'stages.0.betas'"]),
        ("packages.six.teach=1", ["unknown key 'packages.six.teach'", "teacher"]),
        ("objective={type='dapo', eps_hi=1}", ["eps_hi'", "eps_high, eps_low, type"]),
        ("qqqq=1", ["unknown key 'qqqq'. Keys of"]),
    ],
)
def test_unknown_key_names_key_nearest_and_section(override: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(Example, None, [override])
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("steps=many", ["steps", '"many"', "string", "expected: integer"]),
        ("steps=1.5", ["steps", "1.5", "float"]),
        ("steps='5'", ["steps", '"5"', "expected: integer"]),
        ("is_quick=1", ["is_quick", "integer", "boolean"]),
        ("name=3.11", ["name", "3.11", "float", "string", """name='"3.11"'"""]),
        ("mode=medium", ["mode", '"medium"', "'fast' or 'slow'"]),
        ("optimizer=5", ["optimizer", "5"]),
        ("optimizer.lr=none", ["optimizer.lr", "expected: number"]),
        ("objective={type='dapo', eps_low=0.9}", ["objective", "use eps_low <= eps_high"]),
        ("steps", ["'steps'", "key=value"]),
        ("=3", ["'=3'", "key=value"]),
        ("a..b=3", ["'a..b=3'", "key=value"]),
    ],
)
def test_bad_value_says_got_and_expected(override: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(Example, None, [override])
    for part in parts:
        assert part in str(caught.value)


def test_override_into_a_value_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'steps', which is a value"):
        load_config(Example, write(tmp_path, "steps = 1"), ["steps.more=2"])


def test_error_of_a_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.toml: unknown key"):
        load_config(Example, write(tmp_path, "nope = 1"))


def test_error_of_an_override_blames_no_file(tmp_path: Path) -> None:
    path = tmp_path / "fine.toml"
    path.write_text("seed = 1\n")
    with pytest.raises(ConfigError) as error:
        load_config(RlCommandConfig, path, ["rl.select.splits=test"])
    assert str(path) not in str(error.value)
    path.write_text("seed = 1.5\n")
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        load_config(RlCommandConfig, path, ["rl.select.splits=test"])


def test_missing_required_key_is_named() -> None:
    class Needs(Record):
        model: str

    with pytest.raises(ConfigError, match="model is missing"):
        load_config(Needs)


def test_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.toml is not TOML.*line 2"):
        load_config(Example, write(tmp_path, "steps = 1\nname = \n"))


def test_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.toml: No such file"):
        load_config(Example, tmp_path / "absent.toml")


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
numbers = st.floats(allow_nan=False)
optimizers = st.builds(
    Optimizer,
    lr=numbers,
    betas=st.tuples(numbers, numbers),
    warmup=st.none() | st.integers(-(2**53), 2**53),
    note=st.none() | texts.filter(lambda text: text != "none"),
)
examples = st.builds(
    Example,
    steps=st.integers(-(2**53), 2**53),
    name=texts,
    is_quick=st.booleans(),
    mode=st.sampled_from(Mode),
    out=st.none() | st.just(Path("a b/ü")),
    optimizer=optimizers,
    objective=st.builds(Distill, teacher=texts) | st.just(Loss()),
    stages=st.lists(optimizers, max_size=2).map(tuple),
    weights=st.dictionaries(texts, numbers, max_size=3),
    packages=st.dictionaries(texts, st.builds(Distill, teacher=texts), max_size=2),
)


@given(config=examples)
def test_toml_round_trip_is_exact(config: Example, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = write(tmp_path_factory.getbasetemp(), to_toml(config))
    assert load_config(Example, file) == config


def test_toml_holds_every_field_also_unset_ones() -> None:
    data = tomllib.loads(to_toml(Example(optimizer=Optimizer(warmup=None))))
    assert set(data) == set(Example.model_fields)
    assert data["optimizer"]["warmup"] == "none"
    assert data["stages"] == []


def test_flat_settings_have_dotted_keys() -> None:
    assert list(flatten({"a": {"b": 1, "c": "x"}, "d": [1]})) == [("a.b", "1"), ("a.c", "x"), ("d", "[1]")]


def test_infinity_and_nan_survive() -> None:
    config = load_config(Example, None, ["optimizer.lr=inf", "weights.a=nan"])
    data = tomllib.loads(to_toml(config))
    assert math.isinf(data["optimizer"]["lr"])
    assert math.isnan(data["weights"]["a"])


class Owner(Record):
    """Gives its sections other defaults than their classes do."""

    optimizer: Optimizer = Optimizer(lr=0.5, warmup=None)
    inner: Example = Example(steps=99, optimizer=Optimizer(note="inner"))


def test_a_section_named_in_part_keeps_its_owners_defaults() -> None:
    owner = load_config(Owner, None, ["optimizer.note=mine", "inner.optimizer.lr=2.0"])
    assert owner.optimizer == Optimizer(lr=0.5, warmup=None, note="mine")
    assert owner.inner.steps == 99
    assert owner.inner.optimizer == Optimizer(lr=2.0, note="inner")


def test_another_member_of_a_union_starts_from_its_own_defaults() -> None:
    assert load_config(Example, None, ["objective.type=distill"]).objective == Distill()
    assert load_config(Example, None, ["objective.eps_low=0.1"]).objective == Loss(eps_low=0.1)


def test_one_override_of_the_demo_changes_one_value() -> None:
    config = load_config(DemoConfig, None, ["rl.validation_every=15"])
    assert config == DemoConfig(rl=DemoConfig().rl.model_copy(update={"validation_every": 15}))


def test_later_files_win_key_by_key(tmp_path: Path) -> None:
    first = write(tmp_path, 'steps = 20\nname = "first"\n[optimizer]\nlr = 1e-3\n')
    second = tmp_path / "second.toml"
    second.write_text('name = "second"\n[optimizer]\nwarmup = 9\n[weights]\na = 1.0\n')
    config = load_config(Example, [first, second], ["steps=21"])
    assert (config.steps, config.name, config.weights) == (21, "second", {"a": 1.0})
    assert config.optimizer == Optimizer(lr=1e-3, warmup=9)


def test_another_type_drops_the_settings_of_the_type_before(tmp_path: Path) -> None:
    file = write(tmp_path, "[objective]\neps_low = 0.1\n")
    assert load_config(Example, file, ["objective.type=distill"]).objective == Distill()
    assert load_config(Example, file, ["objective.type=dapo"]).objective == Loss(eps_low=0.1)


class Lists(Record):
    names: tuple[str, ...] = ("x",)
    shares: tuple[float, ...] = ()
    maybe: tuple[str, ...] | None = None


@pytest.mark.parametrize(
    ("override", "field", "expected"),
    [
        ("names=boltons,click", "names", ("boltons", "click")),
        ("names=boltons", "names", ("boltons",)),
        ("names=3.11, 3.12", "names", ("3.11", "3.12")),
        ('names=["a,b"]', "names", ("a,b",)),
        ("names=", "names", ()),
        ("shares=0.7,0.4", "shares", (0.7, 0.4)),
        ("shares=0.7", "shares", (0.7,)),
        ("maybe=none", "maybe", None),
        ("maybe=a", "maybe", ("a",)),
    ],
)
def test_lists_need_no_brackets_in_overrides(override: str, field: str, expected: object) -> None:
    assert getattr(load_config(Lists, None, [override]), field) == expected


@pytest.mark.parametrize(
    ("cls", "override", "hint"),
    [
        (RlCommandConfig, "optimizer.lr=1e-5", "did you mean 'rl.algorithm.optimizer.learning_rate'?"),
        (SftCommandConfig, "sft.optimizer.lr=1e-5", "did you mean 'sft.optimizer.learning_rate'?"),
        (RlCommandConfig, "rl.dapo.loss.type=gspo", "did you mean 'rl.algorithm.loss.type'?"),
        (RlCommandConfig, "rl.algorithm.loss.typ=gspo", "did you mean 'rl.algorithm.loss.type'?"),
        (RlCommandConfig, "rl.algorithm.loss.max_ratio=3.0", "it needs rl.algorithm.loss.type='cispo'."),
        (RlCommandConfig, "lora_rank=8", "'rl.algorithm.trained.rank' (with rl.algorithm.trained.type='lora')"),
        (RlCommandConfig, "group_size=8", "did you mean 'rl.algorithm.group_size'?"),
    ],
)
def test_an_unknown_key_is_searched_in_the_whole_tree(cls: type[Record], override: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(cls, None, [override])
    assert hint in str(caught.value)


def test_an_unknown_type_is_answered_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"objective\.type: got 'dappo', expected one of dapo, distill; .*'dapo'\?"):
        load_config(Example, None, ["objective.type=dappo"])


@given(name=st.sampled_from([setting.name for setting in iter_settings(RlCommandConfig)]), place=st.integers(0, 60))
def test_a_suggested_key_exists(name: str, place: int) -> None:
    wrong = name[: place % len(name)] + "q" + name[place % len(name) :]
    known = {setting.name for setting in iter_settings(RlCommandConfig)}
    try:
        load_config(RlCommandConfig, None, [f"{wrong}=1"])
    except ConfigError as error:
        suggested = re.findall(r"'([^']+)'", str(error).partition("did you mean ")[2].partition("?")[0])
        assert {key for key in suggested if "." in key} <= known
