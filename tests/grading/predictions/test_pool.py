"""Predictions graded through real processes and sandboxes: each kind of trouble is typed and costs nobody else."""

import os
import signal
import threading

import pytest

from repairgym.config.commands import GradeCommandConfig
from repairgym.config.sandbox import SandboxConfig, SandboxLimits
from repairgym.diffs.make import unified_diff
from repairgym.errors import RepairGymError
from repairgym.grading.predictions.pool import GradeRequest, GradingPool, grade_predictions
from repairgym.grading.predictions.reading import Prediction
from repairgym.grading.predictions.results import ResultsFolder
from repairgym.records import VerdictKind

CONFIG = GradeCommandConfig(num_workers=2, sandbox=SandboxConfig(limits=SandboxLimits(memory_bytes=400 << 20)))
ENDLESS_S = {"hang": 0.5, "gigabytes": 0.5, "memory": 1.5}


def patch_of(task, text: str) -> str:
    return unified_diff({"tinyclamp.py": task.base_files["tinyclamp.py"]}, {"tinyclamp.py": text})


def with_code(task, code: str) -> str:
    """The broken file with ``code`` at its top."""
    return patch_of(task, code + "\n" + task.base_files["tinyclamp.py"])


def gold(task) -> str:
    return patch_of(task, task.gold_files["tinyclamp.py"])


HANG = "while True:\n    pass\n"
GIGABYTES = "while True:\n    print('x' * 1_000_000)\n"
KILL = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n"
MEMORY = "x = []\nwhile True:\n    x.append(bytearray(1 << 24))\n"
DEEP = "y = " + "(" * 5000 + ")" * 5000 + "\n"


def submissions(task) -> dict[str, tuple[str, VerdictKind, str]]:
    """name -> (patch, what becomes of it, part of the reason)"""
    huge = "--- /dev/null\n+++ b/huge.py\n@@ -0,0 +1 @@\n+" + "#" * (9 << 20) + "\n"
    binary = "diff --git a/x.so b/x.so\nnew file mode 100644\nGIT binary patch\nliteral 1\nIcmZPo000310RR91\n"
    return {
        "gold": (gold(task), VerdictKind.PASSED, "1 fail_to_pass and 2 pass_to_pass pass"),
        "empty": ("", VerdictKind.FAILED, "fail_to_pass: 1 of 1"),
        "elsewhere": (gold(task).replace("low", "lower"), VerdictKind.FAILED, "does not apply: tinyclamp.py: hunk 1"),
        "huge": (huge, VerdictKind.FAILED, "does not apply: the patch has"),
        "binary": (binary, VerdictKind.FAILED, "does not apply: x.so is binary"),
        "hang": (with_code(task, HANG), VerdictKind.FAILED, ""),
        "gigabytes": (with_code(task, GIGABYTES), VerdictKind.FAILED, ""),
        "kill_parent": (with_code(task, KILL), VerdictKind.FAILED, ""),
        "memory": (with_code(task, MEMORY), VerdictKind.FAILED, ""),
        "deep": (with_code(task, DEEP), VerdictKind.FAILED, ""),
        "unbuildable": (gold(task), VerdictKind.INVALID, "build the tasks again"),
    }


def test_each_submission_gets_its_own_typed_verdict(place, tmp_path):
    wanted = submissions(place.task)
    tasks = {name: place.task.model_copy(update={"id": name}) for name in wanted}
    for name, timeout_s in ENDLESS_S.items():
        tasks[name] = tasks[name].model_copy(update={"timeout_s": timeout_s, "test_timeout_s": timeout_s})
    tasks["unbuildable"] = tasks["unbuildable"].model_copy(update={"base_tree": "0" * 64})
    predictions = [
        Prediction(instance_id=name, model_name_or_path="m", model_patch=patch)
        for name, (patch, _, _) in wanted.items()
    ]
    results = ResultsFolder(tmp_path / "out")
    with GradingPool(CONFIG, place.cache_root) as pool:
        graded = {one.instance_id: one for one in grade_predictions(predictions, tasks, results, pool, CONFIG.grading)}
    kinds = {name: one.verdict.kind for name, one in graded.items()}
    assert kinds == {name: kind for name, (_, kind, _) in wanted.items()}
    for name, (_, _, reason) in wanted.items():
        assert reason in graded[name].verdict.reason
        assert graded[name].is_applied == ("does not apply" not in graded[name].verdict.reason)
    assert graded["gold"].verdict.is_cold
    assert results.load(predictions[0], graded["gold"].key) == graded["gold"]


def test_a_process_that_dies_costs_only_its_submission(place):
    config = CONFIG.model_copy(update={"num_workers": 1})
    requests = [GradeRequest(place.task, gold(place.task)) for _ in range(2)]
    with GradingPool(config, place.cache_root) as pool:
        pool.start()
        process = pool.workers[0].process
        assert process.pid is not None
        # Stopped, it takes the first request and cannot answer it.
        os.kill(process.pid, signal.SIGSTOP)
        killer = threading.Timer(0.5, process.kill)
        killer.start()
        found = [(index, answer.verdict.kind) for index, answer in pool.run(requests)]
        killer.join()
    assert found == [(0, VerdictKind.INVALID), (1, VerdictKind.PASSED)]


def test_an_instance_over_its_deadline_is_invalid(place):
    config = CONFIG.model_copy(update={"num_workers": 1, "max_instance_s": 0.01})
    with GradingPool(config, place.cache_root) as pool:
        (found,) = list(pool.run([GradeRequest(place.task, gold(place.task))]))
    assert found[1].verdict.kind is VerdictKind.INVALID
    assert found[1].verdict.reason == "the grading took longer than 0.01 s"


def test_a_back_end_that_does_not_isolate_ends_the_call(place):
    config = CONFIG.model_copy(update={"sandbox": SandboxConfig(backend="degraded", is_degraded_allowed=True)})
    with (
        GradingPool(config, place.cache_root) as pool,
        pytest.raises(RepairGymError, match="degraded"),
    ):
        list(pool.run([GradeRequest(place.task, "")]))
