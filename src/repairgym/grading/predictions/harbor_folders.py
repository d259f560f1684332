"""Verdicts on predictions for Harbor task folders: what the folder's own verifier rewards, and our verdict next to it.

Reads folders and predictions. Makes `GradedPrediction` records, whose official verdict is the folder's. Guarantees:
the verifier is separate: every run starts from the folder's state with the files of the patch alone, without processes,
packages or rewards of an agent; a folder whose verifier rewards a submission that changes nothing, or not its own
solution, decides nothing here, and the verdict is *invalid*.

Our verdict is that of the grader where the folder holds a certified task. For any other folder it takes the permitted
part of the patch, which must get the full reward under each of `_HASH_SEEDS`, and no exploit may be found in it.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from repairgym.config.pipeline import GradingConfig
from repairgym.diffs.parse import PatchError
from repairgym.errors import InputError, SandboxError
from repairgym.grading.decision import bare_verdict, broken_verdict, first_finding
from repairgym.grading.execution import GRADER_VERSION
from repairgym.grading.exploits.base import InspectedSubmission
from repairgym.grading.exploits.registry import find_unreadable, inspect
from repairgym.grading.permitted import permitted_part
from repairgym.grading.predictions.pool import GradeAnswer
from repairgym.grading.predictions.reading import Prediction, apply_submission
from repairgym.grading.predictions.results import GradedPrediction
from repairgym.records import Certificate, Environment, Provenance, Task, Verdict, VerdictKind
from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.audit.foreign.harbor_folder import (
    SOLUTION_SCRIPT,
    HarborFolder,
    find_folders,
    missing_image,
    read_harbor_folder,
)
from repairgym.tasks.audit.foreign.place import Outcome, Place, Probe, environment_of, opened
from repairgym.tasks.build.concurrency import as_completed
from repairgym.tasks.formats.base import RecordError
from repairgym.tasks.formats.datasets import read_dataset
from repairgym.tasks.formats.exporting import certified_in
from repairgym.tasks.formats.registry import FORMATS
from repairgym.tasks.layers.store import LayerStore

_HASH_SEEDS = ("0", "1")
_FOLDER_FORMAT = 1
"""Part of each key; grows when the same files get another verdict."""
Files = dict[str, str | None]


@dataclass(frozen=True)
class FolderTask:
    """A task folder, and the certified task that it was exported from."""

    id: str
    folder: HarborFolder
    certified: Task | None = None

    def key(self, patch: str, config: GradingConfig) -> str:
        """Return the SHA-256 (hex) of everything that decides a verdict on ``patch``."""
        content = hashlib.sha256()
        for name in ("environment", "tests", "solution"):
            for path, file in sorted(getattr(self.folder, name).items()):
                content.update(f"{name}/{path}:{file.mode}:{len(file.content)}:".encode() + file.content)
        parts = (_FOLDER_FORMAT, GRADER_VERSION, self.id, content.hexdigest(), config.digest(), patch)
        settings = json.dumps(self.folder.settings, sort_keys=True, default=str)
        return hashlib.sha256(repr((*parts, settings)).encode()).hexdigest()


def read_folder_tasks(path: Path) -> dict[str, FolderTask]:
    """Return id -> task of the task folder ``path``, or of those in it; InputError for one that is none."""
    tasks: dict[str, FolderTask] = {}
    for place in find_folders(path):
        name, certified = _id_and_task(place)
        if name in tasks:
            raise InputError(f"{place} and {tasks[name].folder.path} have one id, {name}")
        tasks[name] = FolderTask(name, read_harbor_folder(place), certified)
    return tasks


def _id_and_task(place: Path) -> tuple[str, Task | None]:
    """Return the id of a folder, its name where it says none, and its certified task."""
    (row,) = read_dataset(place)
    try:
        record = FORMATS["harbor"].read(row.fields or {})
    except RecordError:
        return place.name, None
    try:
        return record.id, certified_in(record)
    except RecordError as error:
        raise InputError(f"{place}: {error}") from error


async def grade_folders(
    tasks: Mapping[str, FolderTask],
    predictions: Sequence[Prediction],
    ours: Mapping[str, GradeAnswer],
    backend: SandboxBackend,
    config: GradingConfig,
    num_workers: int,
    layers: LayerStore | None = None,
) -> AsyncGenerator[GradedPrediction, None]:
    """Yield ``predictions`` with both verdicts as they end; ``ours`` are the grader's, by instance."""
    places, store = asyncio.Semaphore(num_workers), layers or LayerStore()

    async def grade(prediction: Prediction) -> GradedPrediction:
        async with places:
            task = tasks[prediction.instance_id]
            return await _grade(task, prediction, ours.get(task.id), backend, store, config)

    async for graded in as_completed(grade(prediction) for prediction in predictions):
        yield graded


async def _grade(
    task: FolderTask,
    prediction: Prediction,
    ours: GradeAnswer | None,
    backend: SandboxBackend,
    store: LayerStore,
    config: GradingConfig,
) -> GradedPrediction:
    result = GradedPrediction(
        instance_id=prediction.instance_id,
        model_name_or_path=prediction.model_name_or_path,
        is_empty=not prediction.model_patch.strip(),
        is_applied=ours is None or ours.is_applied,
        verdict=ours.verdict if ours else bare_verdict(VerdictKind.INVALID, "", config),
        key=task.key(prediction.model_patch, config),
    )
    try:
        if lacking := missing_image(task.folder):
            raise InputError(f"the folder cannot be run here: needs {lacking}")
        environment = await asyncio.to_thread(environment_of, task.folder.path, store)
        async with opened(task.folder, backend, environment) as place:
            judge = _FolderJudge(task, place, config)
            await judge.check_controls()
            update = await judge.verdicts(prediction.model_patch, ours)
    except (InputError, SandboxError) as error:
        update = {} if ours else {"verdict": bare_verdict(VerdictKind.INVALID, str(error), config)}
    except Exception as error:
        update = {"verdict": broken_verdict(error, config), "official": "unresolved"}
    return result.model_copy(update=update)


class _FolderJudge:
    """Runs the verifier of one folder."""

    def __init__(self, task: FolderTask, place: Place, config: GradingConfig) -> None:
        self._task, self._place, self._config = task, place, config
        self._root = PurePosixPath(task.folder.image.folder)

    async def check_controls(self) -> None:
        """Run the verifier on the starting state and on the solution; InputError where it does not tell them apart."""
        if _is_rewarded(await self._place.run(Probe("nothing"))):
            raise InputError("the verifier rewards a submission that changes nothing")
        if SOLUTION_SCRIPT in self._task.folder.solution:
            await self._place.solve()
            outcome = await self._place.run(Probe("solution", is_solved=True))
            if not _is_rewarded(outcome):
                lines = (self._place.log + outcome.output).strip().splitlines() or ["no output"]
                raise InputError(f"the verifier does not reward the solution here: {lines[-1][:200]}")

    async def verdicts(self, patch: str, ours: GradeAnswer | None) -> dict[str, object]:
        """Return the fields of both verdicts on ``patch``."""
        try:
            files = apply_submission(patch, self._read)
        except PatchError as error:
            verdict = bare_verdict(VerdictKind.FAILED, f"the patch does not apply: {error}", self._config)
            unresolved: dict[str, object] = {"official": "unresolved", "is_applied": False}
            return unresolved if ours else {**unresolved, "verdict": verdict}
        is_rewarded = await self._reward(files, _HASH_SEEDS[0])
        official: dict[str, object] = {"official": "resolved" if is_rewarded else "unresolved"}
        return official if ours else {**official, "verdict": await self._verdict(files, is_rewarded)}

    async def _verdict(self, files: Files, is_rewarded: bool) -> Verdict:
        """Return our verdict; ``is_rewarded``: the verifier rewards all of ``files``."""
        base = {path: self._read(path) for path in files}
        task = self._as_task()
        inspected = InspectedSubmission(task, files, base, self._task.folder.scripts)
        permitted, left_out = permitted_part(task, files)
        if reason := find_unreadable(inspected):
            return bare_verdict(VerdictKind.FAILED, f"the submission cannot be read: {reason}", self._config, left_out)
        findings = (*inspect(inspected), *left_out)
        seeds = _HASH_SEEDS[1:] if permitted == files and is_rewarded else _HASH_SEEDS
        is_passed = permitted != files or is_rewarded
        for seed in seeds:
            is_passed = is_passed and await self._reward(permitted, seed)
        if not is_passed:
            part = "" if permitted == files else " the permitted part of"
            reason = f"the verifier does not reward{part} the submission each time"
            return bare_verdict(VerdictKind.FAILED, reason, self._config, findings)
        if any(finding.severity == "exploit" for finding in findings):
            return bare_verdict(VerdictKind.EXPLOITED, first_finding(findings, "exploit"), self._config, findings)
        return bare_verdict(VerdictKind.PASSED, "rewarded each time", self._config, findings)

    def _read(self, path: str) -> str | None:
        """Return the text of a file; InputError for other bytes, which would not be written back as they are."""
        content = self._place.initial.get(str(self._root / path))
        try:
            return None if content is None else content.decode()
        except UnicodeDecodeError:
            raise InputError(f"the patch changes {path}, which is no UTF-8 text, so it is not graded here") from None

    async def _reward(self, files: Files, seed: str) -> bool:
        written = {str(self._root / path): text for path, text in files.items() if text is not None}
        removed = tuple(str(self._root / path) for path, text in files.items() if text is None)
        variables = {"PYTHONHASHSEED": seed}
        return _is_rewarded(await self._place.run(Probe("patch", written, removed=removed, environment=variables)))

    def _as_task(self) -> Task:
        """Return the folder as a task, for what reads the gold patch: the files that its solution changes."""
        gold = {
            PurePosixPath(path).relative_to(self._root).as_posix(): content and content.decode("utf-8", "replace")
            for path, content in self._place.solved.items()
            if PurePosixPath(path).is_relative_to(self._root)
        }
        return Task(
            id=self._task.id,
            source="imported",
            provenance=Provenance(package=self._task.id, version=""),
            issue=self._task.folder.instruction,
            base_tree="",
            base_files={},
            environment=Environment(lock="", python="", digest=""),
            visible_tests=(),
            fail_to_pass=(),
            pass_to_pass=(),
            test_paths=(),
            gold_files=gold,
            gold_patch="",
            split="test",
            certificate=Certificate(num_empty_runs=0, num_empty_failed=0, num_gold_runs=0, num_gold_passed=0),
        )


def _is_rewarded(outcome: Outcome) -> bool:
    return (outcome.reward.value or 0.0) >= 1
