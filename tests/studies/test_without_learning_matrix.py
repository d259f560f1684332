"""A matrix of scripted policies in environments that differ in their tools."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from repairgym.config.commands import MatrixConfig, MatrixPolicy
from repairgym.config.pipeline import GradingConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.selection import TaskSelection
from repairgym.errors import ConfigError, InputError
from repairgym.evaluation.matrix import build_matrix
from repairgym.evaluation.stages import parse_eval_phase
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.local import LocalPool
from repairgym.rollout.store import RunStore
from repairgym.studies.without_learning import run_matrix
from repairgym.tasks.build.validation import TaskLayers
from repairgym.training.evaluate import check_fingerprint, policy_fingerprint
from repairgym.training.run import Run

POLICIES = {
    "start": MatrixPolicy(policy="submit-at-once"),
    "trained": MatrixPolicy(policy="oracle", trained_in="whole", start="start"),
}


@pytest.fixture
def short(rollout):
    return rollout.model_copy(update={"pipeline": rollout.pipeline.model_copy(update={"tools": ("edit", "submit")})})


@pytest.fixture
def config(rollout, short):
    return MatrixConfig(
        policies=POLICIES,
        environments={"whole": rollout, "edits": short},
        select=TaskSelection(splits=("train",)),
        num_samples=2,
    )


@pytest.fixture
def open_environment(tmp_path, base, many_tasks, make_backend):
    renderer = ChatRenderer(load_tokenizer(base))
    opened = []

    @contextmanager
    def open_run(rollout, model):
        path = tmp_path / "run.db"
        opened.append(model)
        layers = TaskLayers(tmp_path, tmp_path)
        pool = LocalPool(rollout, make_backend, lambda _: layers, renderer)
        # twelve tasks, so that a difference can be told from chance
        tasks = {
            f"train-{index}": many_tasks["train-0"].model_copy(update={"id": f"train-{index}"}) for index in range(12)
        }
        with RunStore.open(path) if path.exists() else RunStore.create(path) as store:
            yield Run(tmp_path, store, pool, tasks)

    open_run.opened = opened
    return open_run


def run(config, open_environment, base):
    policies = {name: PolicyRef(one.policy) for name, one in config.policies.items()}
    run_matrix(config, policies, open_environment, base)


def test_what_one_environment_taught_is_missing_in_another(config, open_environment, base, tmp_path):
    run(config, open_environment, base)
    assert len(open_environment.opened) == 2
    with RunStore.open(tmp_path / "run.db") as store:
        found = build_matrix(store, config, num_resamples=200)
        assert {parse_eval_phase(row.phase).stage for row in store.rows()} == {
            f"{policy}@{environment}" for policy in POLICIES for environment in config.environments
        }
        num = len(store.rows())
    rates = {(one.policy, one.environment): one.pass_at_1.value for one in found.cells}
    assert rates == {
        ("start", "whole"): 0.0,
        ("trained", "whole"): 1.0,
        ("start", "edits"): 0.0,
        ("trained", "edits"): 0.0,
    }
    assert found.findings[0].startswith("Mismatch: the gain of trained in whole (+100.0 points")
    assert "does not transfer to edits, where it shows no gain" in found.findings[0]
    assert "100.0 % in whole, its training environment, and 0.0 % in edits" in found.findings[1]
    run(config, open_environment, base)  # resumed: nothing is run again
    with RunStore.open(tmp_path / "run.db") as store:
        assert len(store.rows()) == num


def test_another_environment_of_the_same_name_is_refused(config, short, open_environment, base):
    run(config, open_environment, base)
    other = config.model_copy(update={"environments": {"whole": short}})
    with pytest.raises(InputError, match="was begun with another rollout"):
        run(other, open_environment, base)


def test_a_fingerprint_is_of_weights_and_settings_not_of_workers(store, base, rollout, short):
    ref = PolicyRef("base", str(base))
    first = policy_fingerprint(ref, rollout)
    assert policy_fingerprint(ref, rollout.model_copy(update={"num_workers": 7})) == first
    assert policy_fingerprint(ref, short)["policy_digest"] == first["policy_digest"]
    assert policy_fingerprint(PolicyRef("oracle"), rollout) != first
    store.start_phase("eval/x/y", first)
    check_fingerprint(store, "eval/x/y", first)
    with pytest.raises(InputError, match="another policy"):
        check_fingerprint(store, "eval/x/y", {"policy_digest": "z"})


def test_gates_of_an_environment_are_named(config, rollout, open_environment, base, tmp_path):
    loose = rollout.model_copy(update={"grading": GradingConfig(is_inspected=False)})
    config = config.model_copy(update={"environments": {"loose": loose}, "policies": {"start": POLICIES["start"]}})
    run(config, open_environment, base)
    with RunStore.open(tmp_path / "run.db") as store:
        assert build_matrix(store, config, num_resamples=50).cells[0].disabled_gates == ("detectors",)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"policies": {"a/b": MatrixPolicy(policy="oracle")}}, "letters, digits"),
        ({"policies": {"a": MatrixPolicy(policy="oracle", trained_in="moon")}}, "trained_in is 'moon'"),
        ({"policies": {"a": MatrixPolicy(policy="oracle", start="b")}}, "start is 'b'"),
    ],
)
def test_names_must_mean_something(update, message):
    values = {"policies": POLICIES, "environments": {"whole": RolloutConfig()}, **update}
    with pytest.raises((ConfigError, ValueError), match=message):
        MatrixConfig(**values)


def test_a_matrix_is_kept_once_nothing_contradicts_it(config, short, open_environment, base):
    kept, policies = [], {name: PolicyRef(one.policy) for name, one in config.policies.items()}
    first = config.model_copy(update={"environments": {"edits": short}})
    run_matrix(first, policies, open_environment, base, lambda: kept.append("first"))
    # The cell that contradicts is not of the first environment.
    other = config.model_copy(update={"environments": {"new": short, "edits": config.environments["whole"]}})
    with pytest.raises(InputError, match="another rollout"):
        run_matrix(other, policies, open_environment, base, lambda: kept.append("other"))
    selected = first.model_copy(update={"select": TaskSelection(splits=("train",), is_told_only=True)})
    with pytest.raises(InputError, match="another select"):
        run_matrix(selected, policies, open_environment, base, lambda: kept.append("selected"))
    assert kept == ["first"]
