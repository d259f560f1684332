"""A predictions file, graded: what is stored is kept, the rest is graded in parallel, the totals are written.

Reads tasks, predictions and a results folder; makes `GradedPrediction` records as they end. Invariants: each
prediction of a known task gets exactly one verdict; each is stored before it is reported, so an interrupted call loses
at most what was in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.predictions.pool import GradeRequest, GradingPool
from repairgym.grading.predictions.reading import Prediction
from repairgym.grading.predictions.results import GradedPrediction, ResultsFolder, grading_key
from repairgym.records import Task


def grade_predictions(
    predictions: Sequence[Prediction],
    tasks: Mapping[str, Task],
    results: ResultsFolder,
    pool: GradingPool,
    config: GradingConfig,
) -> Iterator[GradedPrediction]:
    """Each of ``predictions`` with its verdict: those that ``results`` has first, the others as they end.

    Raises:
        RepairGymError: this machine cannot grade at all.
        DiskFullError: no room for a result; what was stored before is intact.
    """
    keys = {one.instance_id: grading_key(tasks[one.instance_id], one.model_patch, config) for one in predictions}
    missing = []
    for one in predictions:
        stored = results.load(one, keys[one.instance_id])
        if stored is None:
            missing.append(one)
        else:
            yield stored
    # Neighbours share an environment and a tree, so that the processes keep few warm interpreters.
    missing.sort(key=lambda one: (tasks[one.instance_id].environment.digest, tasks[one.instance_id].base_tree))
    requests = [GradeRequest(tasks[one.instance_id], one.model_patch) for one in missing]
    for index, answer in pool.run(requests):
        one = missing[index]
        assert answer.verdict is not None
        graded = GradedPrediction(
            instance_id=one.instance_id,
            model_name_or_path=one.model_name_or_path,
            is_empty=not one.model_patch.strip(),
            is_applied=answer.is_applied,
            verdict=answer.verdict,
            key=keys[one.instance_id],
        )
        results.save(graded)
        yield graded
