"""Test runs from signed records, from JUnit XML reports and from exit statuses."""

import pytest
from pydantic import ValidationError

from repairgym.records import TestOutcome, TestRequest, TestRunner
from repairgym.sandbox.base import ExecResult
from repairgym.sandbox.runs import MAX_REPORT_BYTES, assemble_run, parse_junit_xml, run_by_command
from repairgym.testing.scripted import ScriptedSandbox

IDS = ("t.py::test_a[two words]", "t.py::test_a[br[ack]et]", "t.py::test_a[caf\\xe9 a::b]", "t.py::test_ünï[ß]")
ENDED = {"exit_status": 0, "duration_s": 1.0}


def phase(test_id, name, outcome="passed", message="", **fields):
    return {"id": test_id, "phase": name, "outcome": outcome, "message": message, "duration_s": 0.5, **fields}


def passing(test_id):
    return [phase(test_id, name) for name in ("setup", "call", "teardown")]


def run_of(records, test_ids=("t.py::test_a",), num_forged=0, **fields):
    return assemble_run(TestRequest(test_ids=test_ids, **fields), ENDED, b"", (records, num_forged))


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("outcome", ["failed", "error", "skipped"])
def test_the_worst_phase_decides(bad, outcome):
    records = passing("t.py::test_a")
    records[bad].update(outcome=outcome, message="why")
    result = run_of(records).results["t.py::test_a"]
    assert (result.outcome, result.message, result.duration_s) == (outcome, "why", 1.5)


@pytest.mark.parametrize("num_phases", [0, 1, 2])
def test_a_test_with_an_unfinished_teardown_is_missing(num_phases):
    """Whatever its other phases said: the process ended in the middle of it."""
    assert run_of(passing("t.py::test_a")[:num_phases]).outcome("t.py::test_a") is TestOutcome.MISSING


def test_ids_stay_whole():
    run = run_of([{"selected": list(IDS)}, *passing(IDS[0]), *passing(IDS[3])], IDS)
    assert list(run.results) == list(IDS)
    expected = [TestOutcome.PASSED, TestOutcome.MISSING, TestOutcome.MISSING, TestOutcome.PASSED]
    assert [run.outcome(name) for name in IDS] == expected


def test_a_failed_collection_needs_no_phase():
    record = {"id": "t.py::test_a", "outcome": "error", "message": "ImportError", "duration_s": 0.0}
    assert run_of([record]).outcome("t.py::test_a") is TestOutcome.ERROR


def test_a_forged_phase_and_a_forged_line_are_counted():
    records = [*passing("t.py::test_a")[:2], phase("t.py::test_a", "teardown", is_forged=True), {"finished": 0}]
    run = run_of(records, num_forged=1)
    assert run.num_forged_records == 2
    assert run.is_finished


def test_checks_are_not_tests():
    record = {"check": "compile", "outcome": "failed", "message": "a.py:1: SyntaxError: x", "duration_s": 0.1}
    run = run_of([record, *passing("t.py::test_a")])
    assert run.checks["compile"].outcome is TestOutcome.FAILED
    assert list(run.results) == ["t.py::test_a"]


def test_a_malformed_record_is_ignored():
    run = run_of([{"id": "t.py::test_a", "phase": "teardown", "outcome": "perfect"}, {}, {"id": 3}])
    assert run.outcome("t.py::test_a") is TestOutcome.MISSING


REPORT = b"""<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="shop" tests="5">
<testcase classname="org.shop.Prices" name="total of two words [1]" time="0.25"/>
<testcase classname="org.shop.Prices" name="fails">
<failure message="expected 3&#10;got 4" type="E">trace</failure></testcase>
<testcase classname="org.shop.Prices" name="breaks"><error type="java.lang.Error"/></testcase>
<testcase classname="org.shop.Prices" name="skips"><skipped/></testcase>
<testcase name="caf\xc3\xa9" time="1,000.5"/>
<testcase classname="org.shop.Prices" name="twice"/>
<testcase classname="org.shop.Prices" name="twice"><failure message="second"/></testcase>
</testsuite></testsuites>"""


class Runner(ScriptedSandbox):
    """Answers each command from a list, writes the report when asked to."""

    def __init__(self, results, report=None, old_report=None):
        super().__init__({} if old_report is None else {"out.xml": old_report}, lambda files, request: None)
        self.commands, self._results, self._report = [], list(results), report

    async def exec(self, argv, **options):
        self.commands.append((argv, options["timeout_s"]))
        if argv[0] == "rm":
            self.files.pop(argv[-1], None)
            return ExecResult(exit_status=0)
        if self._report is not None:
            self.files["out.xml"] = self._report.decode()
        return self._results.pop(0)


def request(kind, command, test_ids, **fields):
    runner = TestRunner(type=kind, command=command, report_path="out.xml" if kind == "junit_xml" else "")
    return TestRequest(test_ids=test_ids, runner=runner, **fields)


def test_a_report_is_read():
    results = parse_junit_xml(REPORT)
    outcomes = {name: result.outcome.value for name, result in results.items()}
    assert outcomes == {
        "org.shop.Prices::total of two words [1]": "passed",
        "org.shop.Prices::fails": "failed",
        "org.shop.Prices::breaks": "error",
        "org.shop.Prices::skips": "skipped",
        "café": "passed",
        "org.shop.Prices::twice": "failed",
    }
    assert results["org.shop.Prices::fails"].message == "expected 3"
    assert (results["org.shop.Prices::total of two words [1]"].duration_s, results["café"].duration_s) == (0.25, 1000.5)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not XML"),
        (b"<testsuite><testcase name='a'>", "not XML"),
        (b"<!DOCTYPE a [<!ENTITY b 'bbbb'>]><testsuite>&b;</testsuite>", "document type"),
        (b" " * (MAX_REPORT_BYTES + 1), "bytes"),
    ],
)
def test_an_unreadable_report_is_rejected(content, words):
    with pytest.raises(ValueError, match=words):
        parse_junit_xml(content)


@pytest.mark.asyncio
async def test_outcomes_come_from_the_report():
    sandbox = Runner([ExecResult(exit_status=1)], REPORT)
    wanted = ("org.shop.Prices::fails", "café", "org.shop.Prices::gone")
    run = await run_by_command(sandbox, request("junit_xml", ("mvn", "test"), wanted, timeout_s=7))
    assert [run.outcome(name).value for name in wanted] == ["failed", "passed", "missing"]
    assert (run.exit_status, sandbox.commands[-1]) == (1, (("mvn", "test"), 7))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("done", "report", "words"),
    [
        (ExecResult(exit_status=0), None, "no report"),
        (ExecResult(exit_status=3), b"<t><testcase name='a'/></t>", "names no failure"),
        (ExecResult(exit_status=None, signal=9), b"<t><testcase name='a'/></t>", "signal 9"),
        (ExecResult(exit_status=None, is_timed_out=True), b"<t><testcase name='a'/></t>", "in time"),
    ],
)
async def test_a_contradictory_report_is_an_error_of_every_test(done, report, words):
    """An old report, perhaps part of the submission, is gone before the run."""
    sandbox = Runner([done], report, old_report="<t><testcase name='a'/></t>")
    run = await run_by_command(sandbox, request("junit_xml", ("x",), ("a",)))
    assert run.outcome("a") is TestOutcome.ERROR
    assert words in run.results["a"].message


@pytest.mark.asyncio
async def test_one_exit_status_for_all():
    run = await run_by_command(Runner([ExecResult(exit_status=2)]), request("exit_code", ("make", "check"), ("a", "b")))
    assert {name: result.message for name, result in run.results.items()} == dict.fromkeys("ab", "exit status 2")
    run = await run_by_command(Runner([ExecResult(exit_status=0)]), request("exit_code", ("make",), ("a", "b")))
    assert run.passes(("a", "b"))


@pytest.mark.asyncio
async def test_one_command_per_test():
    ended = [ExecResult(exit_status=0), ExecResult(exit_status=None, is_timed_out=True), ExecResult(exit_status=0)]
    sandbox = Runner(ended)
    wanted = ("a b", "b;rm -rf x", "c")
    asked = request("exit_code", ("run", "--only={test}"), wanted, test_timeout_s=3, timeout_s=60)
    run = await run_by_command(sandbox, asked)
    assert [argv for argv, _ in sandbox.commands] == [("run", f"--only={name}") for name in wanted]
    assert [run.outcome(name).value for name in wanted] == ["passed", "failed", "passed"]
    assert not run.is_timed_out


@pytest.mark.asyncio
async def test_the_deadline_of_the_run_leaves_the_rest_missing():
    run = await run_by_command(Runner([]), request("exit_code", ("run", "{test}"), ("a", "b"), timeout_s=0.0))
    assert run.is_timed_out
    assert run.outcome("b") is TestOutcome.MISSING


@pytest.mark.asyncio
@pytest.mark.parametrize(("waited_s", "cpu_s", "num_run"), [(0.0, 1.0, 2), (28.5, 1.0, 4), (28.5, 90.0, 2)])
async def test_the_deadline_of_the_run_excludes_waits_for_a_processor(waited_s, cpu_s, num_run):
    sandbox = Runner([ExecResult(exit_status=0, duration_s=30.0, waited_s=waited_s, cpu_s=cpu_s)] * 4)
    run = await run_by_command(sandbox, request("exit_code", ("run", "{test}"), tuple("abcd"), timeout_s=60))
    assert len(sandbox.commands) == num_run
    assert run.is_timed_out == (num_run < 4)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "gtest"},
        {"type": "junit_xml", "command": ["x"]},
        {"type": "junit_xml", "command": ["x", "{test}"], "report_path": "r"},
        {"type": "exit_code"},
        {"type": "exit_code", "command": ["x"], "report_path": "r"},
        {"type": "pytest", "command": ["pytest"]},
        {"type": "unittest", "report_path": "r"},
        {"type": "log", "command": ["x"]},
        {"type": "log", "command": ["x"], "parser": "gtest"},
        {"type": "exit_code", "command": ["x"], "parser": "pytest"},
        {"type": "django", "command": ["x"]},
    ],
)
def test_an_invalid_runner_is_rejected(fields):
    with pytest.raises(ValidationError):
        TestRunner.model_validate(fields)
