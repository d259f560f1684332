"""Grading of many submissions in worker processes.

Reads submissions or a predictions file. Makes answers in the order in which they end. Guarantees: every submission gets
exactly one answer; a submission that kills its process (a syntax tree too deep, memory, an endless search) or takes
longer than `max_instance_s` is *invalid* and costs no other submission; closing the pool, or the death of this process,
ends every process and sandbox.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from repairgym.config.commands import GradeCommandConfig
from repairgym.config.pipeline import GradingConfig
from repairgym.diffs.parse import PatchError
from repairgym.errors import RepairGymError
from repairgym.grading.decision import broken_verdict
from repairgym.grading.execution import GRADER_VERSION
from repairgym.grading.grader import Grader
from repairgym.grading.judge import open_judge
from repairgym.grading.official import official_kind
from repairgym.grading.predictions.reading import Prediction, apply_submission
from repairgym.grading.predictions.results import GradedPrediction, ResultsFolder, grading_key
from repairgym.grading.replayed import ReplayJudge
from repairgym.grading.stages import Files, read_pinned
from repairgym.process_pool import ProcessPool, WorkerEnded, WorkerFailure, WorkerTimeout, answer_requests, run_worker
from repairgym.records import Task, Verdict, VerdictKind
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import TaskLayers, task_layers
from repairgym.tasks.layers.store import LayerStore


class GradeRequest(NamedTuple):
    """One submission."""

    task: Task
    patch: str


class GradeAnswer(NamedTuple):
    """The verdict on one submission."""

    verdict: Verdict
    is_applied: bool = True


class GradingPool(ProcessPool):
    """Grading processes, started when there is work for them. Use as a context manager."""

    def __init__(self, config: GradeCommandConfig, cache_root: Path | None = None) -> None:
        """Start nothing yet; ``cache_root`` is the folder of the layer store, None for the usual one."""
        super().__init__(_grading_worker, (config, cache_root), config.num_workers or os.cpu_count() or 1)
        self._max_instance_s = config.max_instance_s

    def run(self, requests: Sequence[GradeRequest]) -> Iterator[tuple[int, GradeAnswer]]:
        """Yield (index of the request, answer) of all ``requests`` as they end.

        Raises:
            RepairGymError: no process can work here, e.g. because nothing isolates.
        """
        with closing(self.map(requests, self._max_instance_s)) as answers:
            for index, answer in answers:
                match answer:
                    case WorkerEnded():
                        yield index, _invalid(f"the grading process ended with exit code {answer.exit_code}")
                    case WorkerTimeout():
                        yield index, _invalid(f"the grading took longer than {self._max_instance_s:g} s")
                    case WorkerFailure():
                        raise answer.as_error()
                    case _:
                        yield index, answer


def grade_predictions(
    predictions: Sequence[Prediction],
    tasks: Mapping[str, Task],
    results: ResultsFolder,
    pool: GradingPool,
    config: GradingConfig,
) -> Iterator[GradedPrediction]:
    """Yield each of ``predictions`` with its verdict: those that ``results`` has first, the others as they end.

    Each is stored before it is yielded, so an interrupted call loses at most the gradings in flight.

    Raises:
        RepairGymError: this machine cannot grade at all.
        DiskFullError: no room for a result; earlier results are intact.
    """
    keys = {
        prediction.instance_id: grading_key(tasks[prediction.instance_id], prediction.model_patch, config)
        for prediction in predictions
    }
    missing = []
    for prediction in predictions:
        stored = results.load(prediction, keys[prediction.instance_id])
        if stored is None:
            missing.append((tasks[prediction.instance_id], prediction))
        else:
            yield stored
    # Neighbors share an environment and a tree, so that the processes keep few warm interpreters.
    missing.sort(key=lambda pair: (pair[0].environment.digest, pair[0].base_tree))
    for index, answer in pool.run([GradeRequest(task, prediction.model_patch) for task, prediction in missing]):
        task, prediction = missing[index]
        graded = GradedPrediction(
            instance_id=prediction.instance_id,
            model_name_or_path=prediction.model_name_or_path,
            is_empty=not prediction.model_patch.strip(),
            is_applied=answer.is_applied,
            verdict=answer.verdict,
            official=official_kind(task, answer.verdict),
            key=keys[prediction.instance_id],
        )
        results.save(graded)
        yield graded


def _invalid(reason: str) -> GradeAnswer:
    return GradeAnswer(Verdict(kind=VerdictKind.INVALID, reason=reason, grader_version=GRADER_VERSION))


def _grading_worker(connection: Connection, setup: tuple[GradeCommandConfig, Path | None]) -> None:
    run_worker(connection, lambda: _serve(connection, *setup))


async def _serve(connection: Connection, config: GradeCommandConfig, cache_root: Path | None) -> None:
    """Grade one submission after the other with one sandbox back end and one grader."""
    backend = create_backend(config.sandbox, "evaluation")
    store = LayerStore(cache_root, config=config.layers)
    known: dict[str, TaskLayers] = {}

    def layers_of(task: Task) -> TaskLayers:
        if task.id not in known:
            known[task.id] = task_layers(task, store)
        return known[task.id]

    def make_spec(task: Task, files: Files) -> SandboxSpec:
        return layers_of(task).spec(files, config.sandbox.limits)

    grader = Grader(
        backend,
        make_spec,
        config.grading,
        ExecutionCache(max_entries=0),
        open_judge(config.grading.judge, config.num_workers or os.cpu_count() or 1),
        ReplayJudge.open(backend, make_spec, config.grading, store),
    )
    try:
        await answer_requests(connection, lambda request: _answer(request, grader, layers_of, config.grading))
    finally:
        await backend.close()


async def _answer(
    request: GradeRequest, grader: Grader, layers_of: Callable[[Task], TaskLayers], config: GradingConfig
) -> GradeAnswer:
    """Return the verdict; any failure on the way becomes one with its reason."""
    task = request.task
    try:
        tree = layers_of(task).tree
        # The tree that the agent was given.
        files = apply_submission(request.patch, lambda path: task.base_files.get(path, read_pinned(tree, path)))
        return GradeAnswer(await grader.grade(task, files))
    except PatchError as error:
        reason = f"the submission does not apply: {error}"
        verdict = Verdict(kind=VerdictKind.FAILED, reason=reason, is_restored=False, grader_version=GRADER_VERSION)
        return GradeAnswer(verdict, is_applied=False)
    except RepairGymError as error:
        return _invalid(str(error))
    except Exception as error:  # must not cost the other submissions their verdicts
        return GradeAnswer(broken_verdict(error, config))
