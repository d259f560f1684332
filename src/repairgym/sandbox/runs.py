"""A test run from the records of its channel.

Reads what a runner wrote (:mod:`.guest.recorder`, signatures already checked), makes a
:class:`~repairgym.records.TestRun`. Invariants: the worst phase of a test decides; a test whose clean-up did not end
is *missing*, whatever its other phases said; every requested id has a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repairgym.records import TestOutcome, TestRequest, TestResult, TestRun

NUM_TAIL_CHARS = 16_000
MISSING = TestResult(outcome=TestOutcome.MISSING)
_RANKS = (TestOutcome.PASSED, TestOutcome.SKIPPED, TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.MISSING)
_Record = dict[str, Any]


def assemble_run(
    request: TestRequest, answer: Mapping[str, Any], output: bytes, signed: tuple[Sequence[_Record], int]
) -> TestRun:
    """The run of ``request``.

    Args:
        request: What was asked for.
        answer: How the process ended: exit status, signal, deadline, duration.
        output: What it printed.
        signed: The records and the number of lines that nobody signed.
    """
    records, num_forged = signed
    checks = {str(record["check"]): _test_result(record) for record in records if "check" in record}
    selected = [name for record in records for name in record.get("selected") or ()]
    traced = {str(record["id"]): tuple(map(str, record["functions"])) for record in records if "functions" in record}
    finished = _finished(records)
    results = {str(name): finished.get(str(name), MISSING) for name in selected} | finished
    return TestRun(
        results=with_requested(request, results),
        output_tail=output.decode(errors="replace")[-NUM_TAIL_CHARS:],
        executed_functions={name: traced.get(name, ()) for name in finished} if request.traced_paths else {},
        checks={name: result for name, result in checks.items() if result is not None},
        num_forged_records=num_forged + sum(record.get("is_forged") is True for record in records),
        is_finished=any("finished" in record for record in records),
        **answer,
    )


def _finished(records: Sequence[_Record]) -> dict[str, TestResult]:
    """Results of the tests that came to their end: their last phase, or one record without a phase."""
    phases: dict[str, list[TestResult]] = {}
    complete: dict[str, bool] = {}
    for record in records:
        result = None if "check" in record else _test_result(record)
        if result is not None:
            name = str(record.get("id"))
            phases.setdefault(name, []).append(result)
            complete[name] = complete.get(name, False) or record.get("phase", "teardown") == "teardown"
    return {name: merge(results) for name, results in phases.items() if complete[name]}


def merge(results: Sequence[TestResult]) -> TestResult:
    """One result of several: the first of the worst, with the time of all."""
    worst = max(results, key=lambda result: _RANKS.index(result.outcome))
    return worst.model_copy(update={"duration_s": sum(result.duration_s for result in results)})


def with_requested(request: TestRequest, results: Mapping[str, TestResult]) -> dict[str, TestResult]:
    """``results`` and one for every requested id: what stands for several tests has the worst of theirs."""
    found = dict(results)
    for name in request.test_ids:
        if name not in found:
            prefixes = (name + "::", name + "[", name + "/")
            members = [result for test_id, result in results.items() if test_id.startswith(prefixes)]
            found[name] = max(members, key=lambda result: _RANKS.index(result.outcome), default=MISSING)
    return found


def _test_result(record: _Record) -> TestResult | None:
    try:
        return TestResult(
            outcome=TestOutcome(record["outcome"]),
            message=str(record["message"])[:200],
            duration_s=float(record["duration_s"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
