"""Other people's trajectories as ours: text that can be imitated, and nothing more.

Reads `ExchangeTrajectory` records and verdicts of `repairgym grade`; makes `Trajectory` records. Invariants: the ledger is
the text encoded here, its actions have no policy version, so supervised training takes them and RL refuses them; a
trajectory passes only when its very patch was graded here; what is not of the train split lands in a phase of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from repairgym.bridges.trajectories.base import ExchangeTrajectory, spoken
from repairgym.bridges.trajectories.files import BadDocument
from repairgym.config.commands import GradeCommandConfig
from repairgym.config.loading import load_config
from repairgym.errors import InputError
from repairgym.grading.execution import GRADER_VERSION
from repairgym.grading.predictions.reading import Prediction
from repairgym.grading.predictions.results import ResultsFolder, grading_key
from repairgym.inference.renderer import ChatRenderer
from repairgym.ledger import UNKNOWN_VERSION, LedgerBuilder
from repairgym.records import StopReason, Task, Trajectory, Turn, Verdict, VerdictKind
from repairgym.rollout.store import RunStore

PHASE = "import"
"""Of tasks of the train split; others are in ``import/SPLIT``."""
PIPELINE = "imported"


class Gradings:
    """A results folder of `repairgym grade`."""

    def __init__(self, folder: Path) -> None:
        """Read its configuration.

        Raises:
            InputError: ``folder`` is no results folder.
        """
        path = folder / "config.toml"
        if not path.is_file():
            raise InputError(f"{folder} has no config.toml; expected the results folder of repairgym grade")
        self._config = load_config(GradeCommandConfig, path, []).grading
        self._results = ResultsFolder(folder)

    def verdict(self, task: Task, patch: str) -> Verdict | None:
        """The verdict on this patch; None when it was not graded, or another one of the same task was."""
        prediction = Prediction(instance_id=task.id, model_name_or_path="", model_patch=patch)
        found = self._results.load(prediction, grading_key(task, patch, self._config))
        return found.verdict if found else None


@dataclass
class Imported:
    """What became of the documents."""

    num_stored: int = 0
    num_known: int = 0
    """Already in the run."""
    verdicts: Counter[str] = field(default_factory=Counter)
    bad: list[BadDocument] = field(default_factory=list)


def import_trajectories(
    found: Iterable[ExchangeTrajectory | BadDocument],
    store: RunStore,
    tasks: Mapping[str, Task],
    renderer: ChatRenderer,
    gradings: Gradings | None = None,
) -> Imported:
    """Store what is of ``tasks``; the rest is told with the reason."""
    done = Imported()
    for one in found:
        if isinstance(one, BadDocument):
            done.bad.append(one)
        elif one.instance_id not in tasks:
            done.bad.append(BadDocument(one.id, f"{one.instance_id!r} is none of the {len(tasks)} tasks"))
        else:
            task = tasks[one.instance_id]
            phase = PHASE if task.split == "train" else f"{PHASE}/{task.split}"
            trajectory = to_trajectory(one, task, renderer, gradings)
            is_new = store.add_trajectory(trajectory, phase=phase, step=0, split=task.split)
            done.num_stored += is_new
            done.num_known += not is_new
            done.verdicts[trajectory.verdict.kind.value] += is_new
    return done


def to_trajectory(
    one: ExchangeTrajectory, task: Task, renderer: ChatRenderer, gradings: Gradings | None = None
) -> Trajectory:
    """The record of an imported trajectory."""
    ledger = LedgerBuilder()
    ledger.append_context(renderer.conversation_ids(one.opening))
    turns = []
    for number, step in enumerate(one.steps):
        text = spoken(step)
        ids = renderer.action_ids(text)
        span = ledger.append_action(ids, [0.0] * len(ids), UNKNOWN_VERSION)
        if number + 1 < len(one.steps):
            ledger.append_context(renderer.observation_ids(step.observation, is_stopped=True))
        call = step.calls[0] if step.calls else None
        turns.append(
            Turn(
                action=text,
                tool=call.name if call else None,
                arguments=call.arguments if call else {},
                observation=step.observation,
                action_span=span,
                tool_s=step.duration_s,
            )
        )
    name = one.id if one.id == one.instance_id else f"{one.instance_id}/{one.id}"
    verdict = gradings.verdict(task, one.patch) if gradings else None
    return Trajectory(
        id=f"{PHASE}/{one.agent or 'chat'}/{name}",
        task_id=task.id,
        group_id=f"{PHASE}/{task.id}",
        pipeline=PIPELINE,
        policy_id=one.model or one.agent or PIPELINE,
        sandbox_backend="none",
        turns=tuple(turns),
        ledger=ledger.build(),
        stop_reason=_stop_reason(one),
        final_files={},
        final_patch=one.patch,
        verdict=verdict or _not_graded(),
        seed=0,
    )


def _not_graded() -> Verdict:
    reason = "imported and not graded here; give the results folder of repairgym grade"
    return Verdict(kind=VerdictKind.INVALID, reason=reason, grader_version=GRADER_VERSION)


def _stop_reason(one: ExchangeTrajectory) -> StopReason:
    """Ours by its value; others say ``Submitted``, ``submitted (exit_cost)`` and names of limits."""
    if one.exit_status in {reason.value for reason in StopReason}:
        return StopReason(one.exit_status)
    is_submitted = "submitted" in one.exit_status.lower() or (not one.exit_status and bool(one.patch))
    return StopReason.SUBMITTED if is_submitted else StopReason.TURN_LIMIT
