"""Supervised stages: imitation of the teacher (SFT) and of the policy's own successes (RFT, paper B section 4.2).

Reads training tasks; makes trajectories in the store and a checkpoint per stage. Invariants: only passed trajectories
are learned (exploited ones are not), at most `max_per_task` of a task, equal action sequences once; a killed stage goes
on from its last saved state and ends with the weights of an unbroken one.
"""

import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from repairgym.config.learning import LastChoice, SftConfig
from repairgym.config.recipes import CollectConfig
from repairgym.errors import ConfigError, InputError, TaskError
from repairgym.inference.loading import load_tokenizer, replace_folder, save_checkpoint, weights_digest
from repairgym.learning.checkpoints import STATE_FILE, load_training_state, save_training_state
from repairgym.learning.export import save_model
from repairgym.learning.learner import release_memory
from repairgym.learning.samples import (
    THOUGHT_END,
    Sample,
    split_histories,
    supervised_sample,
    thought_token_ids,
    without_thoughts,
)
from repairgym.learning.sft import Selection, SftTrainer, learnable, num_steps_of, split_validation
from repairgym.learning.weight_loading import open_model
from repairgym.records import Trajectory, VerdictKind
from repairgym.rollout.jobs import PolicyRef, make_groups
from repairgym.rollout.names import SOLVE
from repairgym.rollout.store import RunStore
from repairgym.training.processes import assign
from repairgym.training.run import Progress, Run

_FIT_FILE = "fit.json"
"""In the folder of a fitted model: the digest of what it was fitted to. Written last, gone with the folder."""


def collect_successes(run: Run, policy: PolicyRef, config: CollectConfig, phase: str) -> list[Trajectory]:
    """Run ``policy`` on training tasks and keep what passed.

    Raises:
        TaskError: nothing passed.
        ConfigError: no training task is selected.
    """
    tasks = run.select(config.select, phase)
    jobs = make_groups(phase, 0, [task.id for task in tasks], config.num_samples, run.seed)
    trajectories = run.run_jobs(policy, jobs, phase=phase)
    kept = keep_successes(trajectories, config.max_per_task)
    run.store.add_metrics(phase, 0, {"rft/num_rollouts": len(trajectories), "rft/num_kept": len(kept)})
    if not kept:
        raise TaskError(f"{phase}: none of {len(trajectories)} trajectories passed, so there is nothing to imitate")
    return kept


def keep_successes(trajectories: Iterable[Trajectory], max_per_task: int) -> list[Trajectory]:
    """Passed trajectories, equal action sequences once, at most ``max_per_task`` of each task."""
    count: Counter[str] = Counter()
    seen: set[tuple[str, ...]] = set()
    kept = []
    for trajectory in trajectories:
        key = (trajectory.task_id, *(turn.action for turn in trajectory.turns))
        is_new = key not in seen and count[trajectory.task_id] < max_per_task
        if trajectory.verdict.kind is VerdictKind.PASSED and is_new:
            seen.add(key)
            count[trajectory.task_id] += 1
            kept.append(trajectory)
    return kept


def supervised_samples(
    trajectories: Iterable[Trajectory], config: SftConfig, tokenizer: PreTrainedTokenizerFast | None = None
) -> list[Sample]:
    """Trajectories as samples: format-error turns masked and thoughts treated as ``config`` says.

    ``tokenizer`` of the learning model is needed to remove thoughts only.

    Raises:
        ConfigError: thoughts are to be removed and the tokenizer does not know them, or they are required and no
            trajectory has them.
    """
    chosen = list(trajectories)
    if config.thoughts == "require" or config.is_paired:
        num_all, chosen = len(chosen), [t for t in chosen if all(THOUGHT_END in turn.action for turn in t.turns)]
        if not chosen:
            setting = "is_paired" if config.is_paired else "thoughts='require'"
            raise ConfigError(f"{setting}: none of {num_all} trajectories thinks before every action")
    samples = [
        supervised_sample(history, is_format_error_masked=config.is_format_error_masked)
        for trajectory in chosen
        for history in split_histories(trajectory)
    ]
    if config.thoughts == "remove":
        if tokenizer is None:
            raise ConfigError("thoughts='remove' needs the model's tokenizer, got none")
        marks = thought_token_ids(tokenizer)
        samples = [without_thoughts(sample, *marks) for sample in samples]
    return samples


def check_graded(phase: str) -> None:
    """Reject the phase of a search: what its visible tests pass may be wrong, so nothing is learned from it.

    Raises:
        ConfigError: the phase is one of `repairgym solve`.
    """
    if phase.startswith(SOLVE):
        raise ConfigError(
            f"phase {phase!r} is a search, judged by visible tests only; expected a phase that was graded, "
            "as those of repairgym rollout are"
        )


def stored_samples(store: RunStore, phase: str, max_per_task: int, config: SftConfig, model: Path) -> list[Sample]:
    """Samples of the passed trajectories of a stored phase, for the model in folder ``model``; a `TaskError` if none.

    Sorted by id: the order in which episodes happened to end must not decide what is learned.
    """
    check_graded(phase)
    successes = keep_successes(sorted(store.trajectories(phase=phase), key=lambda stored: stored.id), max_per_task)
    if not successes:
        raise TaskError(f"the run has no passed trajectory in phase {phase!r}; run repairgym rollout first")
    return supervised_samples(successes, config, load_tokenizer(model))


def fit_samples(
    start: Path, target: Path, samples: list[Sample], config: SftConfig, store: RunStore, progress: Progress
) -> None:
    """Fit ``samples`` from model folder ``start`` and save model folder ``target``; metrics go under its name.

    Its state lies next to ``target`` until it is done. A ``target`` of the same samples, settings and start stays as
    it is. Where there are several processes, the leader calls this.

    Raises:
        InputError: the saved state is of other samples or of another model.
        ConfigError: no sample has a token to learn.
    """
    samples = learnable(samples)
    data = _digest(start, samples, config)
    if _is_fitted(target, data):
        _forget_state(target)
        progress(f"train {target.name}", 0, 0, "done in an earlier call: same samples, settings and start")
        return

    def note(step: int, total: int, metrics: dict[str, float]) -> None:
        store.add_metrics(f"train/{target.name}", step, metrics)
        progress(f"train {target.name}", step, total, f"loss {metrics.get('train/loss', 0.0):.3f}")

    work = FitWork(start, target, samples, config, data)
    assign(work)
    _Stage(work, note).run()
    release_memory()


def accept_fitted(start: Path, target: Path, samples: list[Sample], config: SftConfig) -> None:
    """Note that ``target`` was fitted to these samples, where an earlier version made it and kept no digest."""
    if target.exists() and not (target / _FIT_FILE).exists():
        (target / _FIT_FILE).write_text(json.dumps({"data": _digest(start, samples, config)}), encoding="utf-8")


def _is_fitted(target: Path, data: str) -> bool:
    """Return True where the model folder ``target`` was fitted to what ``data`` is the digest of."""
    file = target / _FIT_FILE
    return file.is_file() and file.read_text(encoding="utf-8") == json.dumps({"data": data})


def _state_of(target: Path) -> Path:
    return target.with_name(f"{target.name}-state")


def _forget_state(target: Path) -> None:
    """Remove the saved state in one step, so that a kill leaves no half of it to resume from."""
    state = _state_of(target)
    if state.exists():
        unused = target.with_name(f".{target.name}.{os.getpid()}.old")
        shutil.rmtree(unused, ignore_errors=True)  # of a killed process with the same id
        state.rename(unused)
        shutil.rmtree(unused, ignore_errors=True)


@dataclass(frozen=True)
class FitWork:
    """A supervised stage as work for several processes."""

    start: Path
    target: Path
    samples: list[Sample]
    config: SftConfig
    data: str
    """Digest of the start's weights, the samples and the settings."""

    def follow(self) -> None:
        """Take part in the leader's `fit_samples`."""
        _Stage(self, lambda *_: None).run()


class _Stage:
    """One supervised stage, resumable; ``note`` gets step, number of steps and metrics of each step."""

    def __init__(self, work: FitWork, note: Callable[[int, int, dict[str, float]], None]) -> None:
        self._target, self._config, self._note = work.target, work.config, note
        self._state = _state_of(work.target)
        self._candidate = work.target.with_name(f"{work.target.name}-best")
        self._tokenizer = load_tokenizer(work.start)
        self._samples, self._validation = split_validation(work.samples, work.config)
        self._trainer = SftTrainer.for_samples(open_model(work.start), work.config, len(self._samples))
        self._data = work.data
        self._selection = Selection(work.config.choice, self._resume())

    def run(self) -> None:
        learner, total = self._trainer.learner, num_steps_of(self._config, len(self._samples))
        for metrics in self._trainer.fit(self._samples):
            step = learner.optimizer.num_done
            if self._is_validated(step, total):
                metrics |= self._validate()
            self._note(step, total, metrics)
            if step % self._config.save_every_steps == 0 and step < total:
                best = self._selection.best
                extra = {"data": self._data, "best": best}
                save_training_state(learner, self._state, extra)
        if isinstance(self._config.choice, LastChoice):
            save_model(learner, self._tokenizer, self._candidate)
        if learner.world.is_leader:
            self._place()
            _forget_state(self._target)

    def _place(self) -> None:
        """Make the candidate the target, with the note of what it was fitted to: both or neither."""
        # A kill behind the renaming leaves the target alone: the steps that are made again need not be better.
        is_new = self._candidate.exists() or not self._target.exists()
        note = (self._candidate if is_new else self._target) / _FIT_FILE
        note.write_text(json.dumps({"data": self._data}), encoding="utf-8")
        if is_new:
            replace_folder(self._candidate, self._target)

    def _resume(self) -> float | None:
        if not (self._state / STATE_FILE).is_file():
            return None
        extra = load_training_state(self._trainer.learner, self._state)
        if extra["data"] != self._data:
            raise InputError(
                f"{self._state} was begun with other samples, settings or start weights; remove it to begin again, or "
                "resume with the same trajectories, configuration and start"
            )
        best: float | None = extra["best"]
        return best

    def _is_validated(self, step: int, total: int) -> bool:
        if isinstance(self._config.choice, LastChoice):
            return False
        every = self._config.choice.every_steps or total // self._config.num_epochs
        return step % every == 0 or step == total

    def _validate(self) -> dict[str, float]:
        measured = self._trainer.evaluate(self._validation)
        nll, entropy = measured["sft/nll"], measured["policy/entropy"]
        if self._selection.is_best(nll, entropy):
            save_model(self._trainer.learner, self._tokenizer, self._candidate)
        return {"validation/nll": nll, "validation/entropy": entropy}


def _digest(start: Path, samples: Sequence[Sample], config: SftConfig) -> str:
    """Of all that decides what a stage learns and when: the start's weights, the samples in order, the settings."""
    digest = hashlib.sha256(config.model_dump_json(exclude={"compute", "save_every_steps"}).encode())
    digest.update(weights_digest(start).encode())
    for sample in samples:
        digest.update(sample.group_id.encode() + sample.token_id.tobytes() + sample.weight.tobytes())
    return digest.hexdigest()


def continue_supervised(
    run: Run, start: str, stage: str, samples: list[Sample], config: SftConfig, cpu_s: float
) -> None:
    """Control: train from ``start`` on ``samples`` for ``cpu_s`` CPU seconds, at the constant peak rate, as RL does."""
    samples = learnable(samples)
    constant = config.model_copy(
        update={"num_epochs": 1_000_000, "optimizer": config.optimizer.model_copy(update={"schedule": "constant"})}
    )
    model = open_model(run.checkpoint(start))
    trainer = SftTrainer(model, constant)
    started = time.process_time()
    for step, metrics in enumerate(trainer.fit(samples), 1):
        used_s = time.process_time() - started
        run.store.add_metrics(f"train/{stage}", step, metrics)
        run.progress(f"train {stage}", int(used_s), int(cpu_s), f"loss {metrics.get('train/loss', 0.0):.3f}")
        if used_s >= cpu_s:
            break
    save_checkpoint(model, load_tokenizer(run.checkpoint(start)), run.checkpoint(stage))
    del model, trainer
    release_memory()
