"""Import of other people's trajectories: text that can be imitated, and nothing more.

Reads `ExchangeTrajectory` records and verdicts of `repairgym grade`; makes `Trajectory` records. Guarantees: the ledger
is the text encoded here; its actions have no policy version, so supervised training accepts them and RL rejects them; a
trajectory passes only when exactly its patch was graded here; other splits than ``train`` have their own phase.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from repairgym.bridges.trajectories.base import ExchangeTrajectory, full_text
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
        """Read its configuration; `InputError` where ``folder`` is no results folder."""
        path = folder / "config.toml"
        if not path.is_file():
            raise InputError(f"{folder} has no config.toml; expected the results folder of repairgym grade")
        self._config = load_config(GradeCommandConfig, path, []).grading
        self._results = ResultsFolder(folder)

    def verdict(self, task: Task, patch: str) -> Verdict | None:
        """Return the verdict on this patch; None when exactly this patch was not graded."""
        prediction = Prediction(instance_id=task.id, model_name_or_path="", model_patch=patch)
        result = self._results.load(prediction, grading_key(task, patch, self._config))
        return result.verdict if result else None


@dataclass
class Imported:
    """Counts and errors of an import."""

    num_stored: int = 0
    num_known: int = 0
    """Already in the run."""
    verdicts: Counter[str] = field(default_factory=Counter)
    bad: list[BadDocument] = field(default_factory=list)


def import_trajectories(
    documents: Iterable[ExchangeTrajectory | BadDocument],
    store: RunStore,
    tasks: Mapping[str, Task],
    renderer: ChatRenderer,
    gradings: Gradings | None = None,
) -> Imported:
    """Store the trajectories of ``tasks``; returns the others with the reason."""
    result = Imported()
    for document in documents:
        if isinstance(document, BadDocument):
            result.bad.append(document)
        elif document.instance_id not in tasks:
            result.bad.append(BadDocument(document.id, f"{document.instance_id!r} is none of the {len(tasks)} tasks"))
        else:
            task = tasks[document.instance_id]
            phase = PHASE if task.split == "train" else f"{PHASE}/{task.split}"
            trajectory = to_trajectory(document, task, renderer, gradings)
            is_new = store.add_trajectory(trajectory, phase=phase, step=0, split=task.split)
            result.num_stored += is_new
            result.num_known += not is_new
            result.verdicts[trajectory.verdict.kind.value] += is_new
    return result


def to_trajectory(
    imported: ExchangeTrajectory, task: Task, renderer: ChatRenderer, gradings: Gradings | None = None
) -> Trajectory:
    """Make the record of an imported trajectory."""
    ledger = LedgerBuilder()
    ledger.append_context(renderer.conversation_ids(imported.opening))
    turns = []
    for number, step in enumerate(imported.steps):
        text = full_text(step)
        ids = renderer.action_ids(text)
        span = ledger.append_action(ids, [0.0] * len(ids), UNKNOWN_VERSION)
        if number + 1 < len(imported.steps):
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
    name = imported.id if imported.id == imported.instance_id else f"{imported.instance_id}/{imported.id}"
    verdict = gradings.verdict(task, imported.patch) if gradings else None
    return Trajectory(
        id=f"{PHASE}/{imported.agent or 'chat'}/{name}",
        task_id=task.id,
        group_id=f"{PHASE}/{task.id}",
        pipeline=PIPELINE,
        policy_id=imported.model or imported.agent or PIPELINE,
        sandbox_backend="none",
        turns=tuple(turns),
        ledger=ledger.build(),
        stop_reason=_stop_reason(imported),
        final_files={},
        final_patch=imported.patch,
        verdict=verdict or _not_graded(),
        seed=0,
    )


def _not_graded() -> Verdict:
    reason = "imported and not graded here; give the results folder of repairgym grade"
    return Verdict(kind=VerdictKind.INVALID, reason=reason, grader_version=GRADER_VERSION)


def _stop_reason(imported: ExchangeTrajectory) -> StopReason:
    """Map our own values to themselves; others write ``Submitted``, ``submitted (exit_cost)`` or names of limits."""
    if imported.exit_status in {reason.value for reason in StopReason}:
        return StopReason(imported.exit_status)
    is_submitted = "submitted" in imported.exit_status.lower() or (not imported.exit_status and bool(imported.patch))
    return StopReason.SUBMITTED if is_submitted else StopReason.TURN_LIMIT
