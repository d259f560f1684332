"""Fits of stored samples: what a kill leaves, what is not made again, and tasks that are held out whole."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from repairgym.config.learning import LastChoice, LossChoice, OptimizerConfig, SftConfig
from repairgym.errors import InputError
from repairgym.inference.loading import save_checkpoint, weights_digest
from repairgym.learning.samples import Sample
from repairgym.learning.sft import split_validation
from repairgym.learning.weight_loading import open_model
from repairgym.records import VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.training.run import no_progress
from repairgym.training.supervised import fit_samples, supervised_samples

SFT = SftConfig(
    optimizer=OptimizerConfig(learning_rate=1e-2, weight_decay=0.0),
    batch_size=8,
    num_epochs=2,
    save_every_steps=3,
    choice=LossChoice(validation_share=0.25, every_steps=2),
)


@pytest.fixture
def samples(taught: Path) -> list[Sample]:
    with RunStore.open(taught / "run.db") as store:
        found = sorted(store.trajectories(phase="teacher"), key=lambda trajectory: trajectory.id)
    return supervised_samples([it for it in found if it.verdict.kind is VerdictKind.PASSED], SFT)


@pytest.mark.parametrize("has_note", [True, False])
def test_a_kill_behind_the_last_renaming_keeps_the_model(samples, base, store, tmp_path, has_note):
    target, state = tmp_path / "sft", tmp_path / "sft-state"
    # Nothing changes, so the first validation stays the best and the steps that are made again choose none.
    config = SFT.model_copy(update={"optimizer": OptimizerConfig(learning_rate=1e-12, weight_decay=0.0)})

    def keep_state(phase: str, done: int, total: int, detail: str) -> None:
        if state.exists():
            shutil.copytree(state, tmp_path / "kept", dirs_exist_ok=True)

    fit_samples(base, target, samples, config, store, keep_state)
    digest = weights_digest(target)
    shutil.copytree(tmp_path / "kept", state)  # as if the kill had come before the state was removed
    if not has_note:
        (target / "fit.json").unlink()  # as older versions left it
    fit_samples(base, target, samples, config, store, no_progress)
    assert weights_digest(target) == digest
    assert sorted(path.name for path in tmp_path.iterdir() if "sft" in path.name) == ["sft"]


def test_a_finished_fit_is_not_made_again_and_another_one_is(samples, base, store, tmp_path):
    target = tmp_path / "sft"
    fit_samples(base, target, samples, SFT, store, no_progress)
    steps: list[int] = []

    def count(phase: str, done: int, total: int, detail: str) -> None:
        steps.append(done)

    fit_samples(base, target, samples, SFT, store, count)
    assert steps == [0]
    fit_samples(base, target, samples[1:], SFT, store, count)
    assert len(steps) > 2


def test_a_state_is_not_resumed_from_another_start(samples, base, store, tmp_path):
    model = open_model(base)
    model.lm_head.weight.data += 0.01
    save_checkpoint(model, None, tmp_path / "other")
    shutil.copytree(base, tmp_path / "start")
    shutil.copy(tmp_path / "other" / "model.safetensors", tmp_path / "start")

    def killed(phase: str, done: int, total: int, detail: str) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_samples(base, tmp_path / "sft", samples, SFT, store, killed)
    with pytest.raises(InputError, match="start weights"):
        fit_samples(tmp_path / "start", tmp_path / "sft", samples, SFT, store, no_progress)


def test_a_task_is_held_out_with_the_samples_of_all_its_groups(trajectory_maker):
    found = [
        replace(trajectory_maker(f"{task}/{chain}", task), group_id=f"hints/0/{task}#{chain}")
        for task in ("a", "b", "c")
        for chain in range(3)
    ]
    learned, held_out = split_validation(supervised_samples(found, SFT), SFT)
    assert (len(learned), len(held_out)) == (6, 3)


@pytest.mark.parametrize("choice", [SFT.choice, LastChoice()])
def test_a_model_and_the_note_of_its_samples_appear_together(samples, base, tmp_path, choice):
    target, noted = tmp_path / "sft", []

    class Watched(RunStore):
        """Looks at the target whenever metrics are stored."""

        def add_metrics(self, *values):
            super().add_metrics(*values)
            if target.exists():
                noted.append((target / "fit.json").read_text())

    config = SFT.model_copy(update={"choice": choice})
    with Watched.create(tmp_path / "run.db") as store:
        fit_samples(base, target, samples, config, store, no_progress)
        first = (target / "fit.json").read_text()
        fit_samples(base, target, samples[1:], config, store, no_progress)
    assert set(noted) == {first}
    assert (target / "fit.json").read_text() != first
    assert sorted(path.name for path in tmp_path.iterdir() if "sft" in path.name) == ["sft"]
