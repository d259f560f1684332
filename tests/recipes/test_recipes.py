"""The papers' recipes from start to end over a tiny model and a scripted sandbox; resumption and rejected settings."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from repairgym.config.algorithms import GrpoLossConfig
from repairgym.config.learning import (
    AlgorithmConfig,
    EntropyWindowChoice,
    LossChoice,
    OptimizerConfig,
    RftConfig,
    SftConfig,
    StepDpoConfig,
)
from repairgym.config.pipeline import FullConfig
from repairgym.config.recipes import (
    CollectConfig,
    DistillThenGrpoConfig,
    RftCommandConfig,
    RlConfig,
    StageConfig,
    StepDpoCommandConfig,
    TwoStageConfig,
)
from repairgym.config.rollout import RolloutConfig
from repairgym.config.selection import TrainingSelection
from repairgym.config.tasks import SolveRateConfig
from repairgym.errors import ConfigError, InputError, ModelFolderError, TaskError
from repairgym.inference.loading import load_model, shipped_base
from repairgym.inference.stretching import stretch_folder
from repairgym.learning.samples import Sample, without_thoughts
from repairgym.learning.sft import Selection, split_validation
from repairgym.recipes.dapo_two_stage import (
    STAGE_1,
    STAGE_2,
    dapo_two_stage,
    select_tasks_again,
    solve_rates,
)
from repairgym.recipes.distill_then_grpo import distill_then_grpo
from repairgym.recipes.rft import rft
from repairgym.recipes.step_dpo import action_pairs, step_dpo, stored_pairs
from repairgym.records import VerdictKind
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.store import RunStore
from repairgym.training.run import Run
from repairgym.training.supervised import fit_samples, supervised_samples

FAST = OptimizerConfig(learning_rate=1e-2, weight_decay=0.0)
COLLECT = CollectConfig(select=TrainingSelection(num_tasks=4), num_samples=12, max_per_task=12)
SFT = SftConfig(optimizer=FAST, batch_size=8, num_epochs=25)
RL = RlConfig(
    algorithm=AlgorithmConfig(group_size=6, batch_size=24, optimizer=OptimizerConfig(learning_rate=1e-3)),
    num_groups=4,
    num_groups_sampled=4,
    max_refills=0,
    max_iterations=2,
    validation_every=0,
)


@pytest.fixture
def run_in(base, many_tasks, make_pool_of):
    """Makes the callable that recipes open a run folder with."""

    def in_folder(folder: Path, model: Path = base):
        folder.mkdir(exist_ok=True)
        if not (folder / "checkpoints" / "start").exists():
            shutil.copytree(model, folder / "checkpoints" / "start")

        @contextmanager
        def open_run(rollout):
            path = folder / "run.db"
            with RunStore.open(path) if path.exists() else RunStore.create(path) as store:
                yield Run(folder, store, make_pool_of(folder, model), many_tasks)

        return open_run

    return in_folder


@pytest.fixture
def student(taught, tmp_path) -> Path:
    """A fresh run folder that starts with the student."""
    shutil.copytree(taught / "checkpoints" / "sft", tmp_path / "run" / "checkpoints" / "start")
    return tmp_path / "run"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_model(folder).state_dict()


def is_equal(left: Path, right: Path) -> bool:
    found = weights(right)
    return all(torch.equal(tensor, found[name]) for name, tensor in weights(left).items())


# --- recipes -------------------------------------------------------------------------------------------------------


def test_rft_learns_what_passed(student, run_in):
    config = RftCommandConfig(collect=COLLECT, rft=RftConfig(optimizer=FAST, batch_size=8))
    with run_in(student)(config.rollout) as run:
        target = rft(run, config)
        rows = list(run.store.rows(phase="rollout"))
        assert len(rows) == 48
        metrics = run.store.metrics("rollout", "rft/num_kept")
        assert 0 < metrics[-1][1] <= sum(row.verdict is VerdictKind.PASSED for row in rows)
    assert not is_equal(target, student / "checkpoints" / "start")


def test_two_stages_with_other_tasks_and_a_longer_context(student, run_in):
    stage = StageConfig(rl=RL.model_copy(update={"max_iterations": 1}))
    config = TwoStageConfig(
        stage_1=stage,
        stage_2=stage.model_copy(update={"yarn_factor": 2.0}),
        select=SolveRateConfig(below=1.0, min_samples=6),
    )
    dapo_two_stage(run_in(student), config)
    # The second call finds everything done, and the first stage, which the second has begun from, stays as it is.
    more = stage.model_copy(update={"rl": RL.model_copy(update={"max_iterations": 2})})
    dapo_two_stage(run_in(student), config.model_copy(update={"stage_1": more}))
    start = json.loads((student / "checkpoints/start/config.json").read_text())
    longer = json.loads((student / "checkpoints/stage-2/config.json").read_text())
    assert longer["max_position_embeddings"] == 2 * start["max_position_embeddings"]
    assert longer["rope_parameters"]["rope_type"] == "yarn"
    with run_in(student)(None) as run:
        rates = solve_rates(run.store, STAGE_1, 6)
        used = {row.task_id for row in run.store.rows(phase=STAGE_2)}
        assert used == {task_id for task_id, rate in rates.items() if 0 < rate < 1}
        assert used == set(select_tasks_again(run, config.select))
        assert len(run.store.trajectory_ids(phase=STAGE_1)) == 4 * 6
        with pytest.raises(TaskError, match="widen select"):
            select_tasks_again(run, SolveRateConfig(below=1.0, min_samples=1000))


def test_distill_then_grpo(tmp_path, run_in):
    config = DistillThenGrpoConfig(
        collect=COLLECT,
        collect_rollout=RolloutConfig(pipeline=FullConfig(max_len_tokens=1024)),
        sft=SFT.model_copy(update={"num_epochs": 12, "choice": LossChoice(validation_share=0.25)}),
        rl=RL.model_copy(
            update={"algorithm": RL.algorithm.model_copy(update={"loss": GrpoLossConfig()}), "max_iterations": 1}
        ),
    )
    opened: list[str] = []
    open_run = run_in(tmp_path / "run")

    def open_noted(rollout):
        opened.append(rollout.pipeline.type)
        return open_run(rollout)

    distill_then_grpo(open_noted, config, PolicyRef("teacher"))
    assert opened == ["full", "compact"], "distilled in one pipeline, then RL in the other"
    with run_in(tmp_path / "run")(None) as run:
        losses = [value for _, value in run.store.metrics("train/sft", "validation/nll")]
        assert len(losses) == 12
        assert min(losses) < losses[0]
        assert run.store.trajectory_ids(phase="grpo")
        assert {row.split for row in run.store.rows()} == {"train"}
    assert weights(tmp_path / "run/checkpoints/grpo")


def test_step_dpo_from_a_stored_run(taught, tmp_path):
    shutil.copytree(taught, tmp_path / "run")
    with RunStore.open(tmp_path / "run" / "run.db") as store:
        config = StepDpoCommandConfig(phase="teacher", min_gap=0.2, step_dpo=StepDpoConfig(optimizer=FAST))
        start, target = tmp_path / "run/checkpoints/sft", tmp_path / "run/checkpoints/step_dpo"
        metrics = step_dpo(store, start, target, config)
        assert metrics["preference/num_pairs"] >= 1
        assert metrics["preference/loss"] == pytest.approx(np.log(2), abs=1e-4)  # the reference is where it starts
        assert not is_equal(start, target)
        with pytest.raises(TaskError, match="num_samples"):
            step_dpo(store, start, target, config.model_copy(update={"phase": "nothing"}))


@pytest.mark.slow
def test_every_recipe_runs_on_the_shipped_base(tmp_path, run_in):
    """The real model and tokenizer, the sandbox scripted: what a laptop runs, in small."""
    folder, base = tmp_path / "run", shipped_base()
    sft = SftConfig(optimizer=OptimizerConfig(learning_rate=3e-4, weight_decay=0.0), batch_size=8, num_epochs=4)
    distill = DistillThenGrpoConfig(
        collect=COLLECT,
        sft=sft.model_copy(update={"choice": EntropyWindowChoice(validation_share=0.25)}),
        rl=RL.model_copy(update={"algorithm": RL.algorithm.model_copy(update={"loss": GrpoLossConfig()})}),
    )
    distill_then_grpo(run_in(folder, base), distill, PolicyRef("teacher"))
    taught = folder / "checkpoints" / "sft"

    config = RftCommandConfig(collect=COLLECT, rft=RftConfig(optimizer=sft.optimizer, batch_size=8))
    with run_in(tmp_path / "rft", taught)(config.rollout) as run:
        target = rft(run, config)
    stage = StageConfig(rl=RL.model_copy(update={"validation_every": 0}))
    two = TwoStageConfig(stage_1=stage, stage_2=stage, select=SolveRateConfig(below=1.0, min_samples=6))
    dapo_two_stage(run_in(tmp_path / "two", target), two)
    with RunStore.open(tmp_path / "two" / "run.db") as store:
        step_dpo(store, target, tmp_path / "step_dpo", StepDpoCommandConfig(phase=STAGE_1))
    for made in (
        taught,
        folder / "checkpoints/grpo",
        target,
        tmp_path / "two/checkpoints/stage-2",
        tmp_path / "step_dpo",
    ):
        assert not is_equal(made, base)


# --- supervised stages ---------------------------------------------------------------------------------------------


def samples_of(folder: Path) -> list[Sample]:
    with RunStore.open(folder / "run.db") as store:
        found = sorted(store.trajectories(phase="teacher"), key=lambda trajectory: trajectory.id)
    return supervised_samples([t for t in found if t.verdict.kind is VerdictKind.PASSED], SFT)


@pytest.mark.parametrize("choice", [None, LossChoice(validation_share=0.25, every_steps=2)])
def test_a_killed_stage_ends_with_the_weights_of_an_unbroken_one(taught, base, tmp_path, choice):
    samples, start = samples_of(taught), base
    config = SFT.model_copy(update={"num_epochs": 2, "save_every_steps": 3} | ({"choice": choice} if choice else {}))

    def killed(phase: str, done: int, total: int, detail: str) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with RunStore.create(tmp_path / "run.db") as store:
        fit_samples(start, tmp_path / "unbroken", samples, config, store, lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            fit_samples(start, tmp_path / "killed", samples, config, store, killed)
        with pytest.raises(InputError, match="other samples"):
            fit_samples(start, tmp_path / "killed", samples[::-1], config, store, lambda *_: None)
        fit_samples(start, tmp_path / "killed", samples, config, store, lambda *_: None)
    assert is_equal(tmp_path / "unbroken", tmp_path / "killed")
    assert not (tmp_path / "killed-state").exists()


def test_checkpoints_are_chosen_by_loss_or_by_entropy():
    loss = Selection(LossChoice())
    assert [loss.is_best(nll, 1.0) for nll in (2.0, 1.0, 1.5, 1.0, 0.5)] == [True, True, False, False, True]
    window = Selection(EntropyWindowChoice(low=0.3, high=0.5))
    entropies = (0.9, 0.6, 0.45, 0.35, 0.2, 0.05)
    assert [window.is_best(1.0, entropy) for entropy in entropies] == [True, True, True, True, False, False]
    assert Selection(EntropyWindowChoice(), best=0.0).is_best(1.0, 0.9) is False


def test_validation_tasks_are_apart():
    arrays = (np.arange(3, dtype=np.int32), np.array([0, 1, 1], np.float32), np.zeros(3, np.float32))
    samples = [Sample(*arrays, group_id=f"g{at % 5}") for at in range(20)]
    config = SftConfig(choice=LossChoice(validation_share=0.4))
    learned, held_out = split_validation(samples, config)
    assert (len(learned), len(held_out)) == (12, 8)
    assert not {s.group_id for s in learned} & {s.group_id for s in held_out}
    with pytest.raises(ConfigError, match="only 1"):
        split_validation(samples[:1], config)


def test_thoughts_are_removed_or_required(trajectory_maker, base):
    ids = np.array([9, 1, 5, 5, 2, 7, 8, 1, 6, 2, 7], np.int32)  # 1 opens a thought, 2 closes it
    weight = np.array([0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1], np.float32)
    cut = without_thoughts(Sample(ids, weight, np.zeros(11, np.float32)), 1, 2)
    assert cut.token_id.tolist() == [9, 7, 8, 7]
    assert cut.weight.tolist() == [0, 1, 0, 1]
    with pytest.raises(ConfigError, match="none of 1"):
        supervised_samples([trajectory_maker()], SFT.model_copy(update={"thoughts": "require"}))
    with pytest.raises(ConfigError, match="is_paired: none of 1 trajectories thinks"):
        supervised_samples([trajectory_maker()], SFT.model_copy(update={"thoughts": "remove", "is_paired": True}))
    from repairgym.inference.loading import load_tokenizer

    with pytest.raises(ConfigError, match="lacks <think>, </think>"):
        supervised_samples([trajectory_maker()], SFT.model_copy(update={"thoughts": "remove"}), load_tokenizer(base))


# --- parts ---------------------------------------------------------------------------------------------------------


def test_pairs_are_siblings_whose_values_differ(trajectory_maker):
    good = (("edit", "@3 < => <=", "ok", ""), ("submit", "", "ok", ""))
    bad = (("edit", "@9 x => y", "ok", ""), ("submit", "", "ok", ""))
    found = [
        trajectory_maker("a", steps=good),
        trajectory_maker("b", steps=bad, kind=VerdictKind.FAILED),
        trajectory_maker("c", steps=bad, kind=VerdictKind.INVALID),
        trajectory_maker("d", "other", steps=bad, kind=VerdictKind.FAILED),
    ]
    (pair,) = action_pairs(found, 0.5, 10)
    assert pair.chosen.num_learned == len(found[0].turns[0].action) + 1
    assert pair.rejected.token_id.tolist() == found[1].ledger.token_id[: found[1].turns[0].action_span[1]].tolist()
    assert action_pairs(found[:1], 0.5, 10) == []
    # Taken twice with one success of two, an action is worth one half.
    assert action_pairs([*found, trajectory_maker("e", steps=bad)], 0.6, 10) == []


def test_pairs_of_a_stored_run_do_not_depend_on_the_order_in_which_episodes_ended(trajectory_maker, tmp_path):
    # After each of two first actions one second action passed and one failed: equal gaps.
    made = [
        trajectory_maker(
            f"{first}{second}",
            steps=(("edit", f"@3 {first}", "ok", ""), ("edit", f"@4 {second}", "ok", "")),
            kind=VerdictKind.PASSED if second == "x" else VerdictKind.FAILED,
        )
        for first in "ab"
        for second in "xy"
    ]
    found = []
    for number, order in enumerate((made, made[::-1])):
        with RunStore.create(tmp_path / f"{number}.db") as store:
            for trajectory in order:
                store.add_trajectory(trajectory, phase="rollout", step=0, split="train")
            found.append(stored_pairs(store, StepDpoCommandConfig(phase="rollout", min_gap=0.5, max_per_task=1)))
    assert len({pairs[0].chosen.token_id.tobytes() for pairs in found}) == 1


def test_an_extended_context_loads_with_more_positions(base, tmp_path):
    short = load_model(base)
    longest = short.config.max_position_embeddings
    assert stretch_folder(base, tmp_path / "long", 4.0).positions == 4 * longest
    long = load_model(tmp_path / "long")
    assert long.config.max_position_embeddings == 4 * longest
    ids = torch.arange(200)[None] % 100
    assert not torch.allclose(short(input_ids=ids).logits, long(input_ids=ids).logits, atol=1e-4)
    # Twice is the same as once: it counts from the original positions.
    stretch_folder(base, tmp_path / "first", 2.0)
    assert stretch_folder(tmp_path / "first", tmp_path / "second", 4.0).original == longest
    twice = load_model(tmp_path / "second")
    assert torch.equal(twice(input_ids=ids).logits, long(input_ids=ids).logits)
    with pytest.raises(ConfigError, match="positions already"):
        stretch_folder(tmp_path / "long", tmp_path / "longer", 2.0)
    with pytest.raises(ModelFolderError, match=r"config\.json"):
        stretch_folder(tmp_path, tmp_path / "longer", 2.0)
