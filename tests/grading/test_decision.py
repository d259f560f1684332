"""The differential run, accesses that the code does not name, restored code, forged stops, verdicts on disk."""

from pathlib import Path

import pytest

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.decision import (
    channel_findings,
    decide,
    differential_sources,
    hidden_accesses,
    restores,
    settle,
)
from repairgym.grading.exploits.syntax import units
from repairgym.grading.stages import Executed, Execution, Permitted, Pinned, Submission
from repairgym.records import Finding, TestOutcome, TestRequest, TestResult, TestRun, TestRunner, Verdict, VerdictKind
from repairgym.sandbox.runs import assemble_run

BROKEN = "X = 1\n\n\ndef f(a, b):\n    return a < b\n\n\ndef g():\n    return 1\n"
GOLD = BROKEN.replace("a < b", "a <= b")


def task_of(task):
    return task.model_copy(update={"base_files": {"m.py": BROKEN}, "gold_files": {"m.py": GOLD}})


def broken_again(task, files, base=BROKEN):
    task = task_of(task)
    permitted = Permitted(Submission(task, files), files, ())
    return differential_sources(Pinned(permitted, Path("/tree"), {}, {"m.py": base}, {}))


def test_only_the_repair_is_taken_back(task):
    submitted = "import os\n" + GOLD.replace("return 1", "return 2").replace("a <= b", "not a > b")
    got = broken_again(task, {"m.py": submitted, "n.py": "y = 1\n"})
    assert got == {"m.py": "import os\n" + BROKEN.replace("return 1", "return 2"), "n.py": "y = 1\n"}


def test_an_untouched_file_stays_and_a_broken_one_becomes_the_base(task):
    assert broken_again(task, {"m.py": BROKEN}) == {"m.py": BROKEN}
    assert broken_again(task, {"m.py": "def f(:\n"}) == {"m.py": BROKEN}
    assert broken_again(task, {"m.py": "f = print\n"}) == {"m.py": BROKEN}
    assert broken_again(task, {"m.py": None}) == {"m.py": BROKEN}


def hidden(task, new, what="tb_frame", path="m.py", base=BROKEN):
    """Return what is said of a run in which `path` reached for a frame."""
    task, files = task_of(task), {"m.py": new}
    pinned = Pinned(Permitted(Submission(task, files), files, ()), Path("/tree"), {}, {"m.py": base}, {})
    run = TestRun(results={}, exit_status=0, reached_for=((what, path),))
    return [(finding.detector, finding.severity, finding.path) for finding in hidden_accesses(run, pinned)]


def test_an_access_that_the_code_does_not_name_is_evidence(task):
    assert hidden(task, GOLD) == [("hidden_access", "exploit", "m.py")]
    assert hidden(task, GOLD, path="<thread>") == [("hidden_access", "exploit", "<thread>")]
    assert hidden(task, GOLD + "# tb_frame\nx = 'tb_frame'\n") == [("hidden_access", "exploit", "m.py")]
    assert hidden(task, GOLD + "self.stack = trace.stack\n", "sys._getframe") == [("hidden_access", "exploit", "m.py")]
    assert hidden(task, GOLD + "import inspect\ninspect.stack()\n", "gc.get_objects")


def test_an_access_by_its_name_is_for_the_detectors(task):
    assert hidden(task, GOLD + "x = error.__traceback__.tb_frame\n") == []
    assert hidden(task, GOLD + "import inspect as i\nx = i.stack()\n", "sys._getframe") == []
    assert hidden(task, GOLD + "from sys import _getframe\n", "sys._getframe") == []


def test_older_code_may_reach_for_what_it_did_before(task):
    assert hidden(task, GOLD, base=BROKEN + "x = error.__traceback__.tb_frame\n") == []
    assert hidden(task, GOLD, path="other.py") == []


MASK = "\u2028", "\x0c", "\x85", "\x1c"
"""Characters that end a line for `str.splitlines`, and not for Python."""


@pytest.mark.parametrize("mark", MASK)
def test_lines_in_a_comment_are_no_code(task, mark):
    """The comment holds gold's lines by the marks, so that every later line would be counted as gold's."""
    task = task_of(task)
    masked = f"# {mark.join(GOLD.splitlines())}\n{BROKEN}"
    assert not restores(task, {"m.py": masked})
    assert [unit.text for unit in units(masked)] == [unit.text for unit in units(BROKEN)]
    assert restores(task, {"m.py": f"# {mark}\n{GOLD}"})


def test_code_in_another_encoding_is_not_the_code_that_one_sees(task):
    cookie = "#\x0c# coding: raw_unicode_escape\n# \\u000af = None\n"
    assert not restores(task_of(task), {"m.py": cookie + GOLD})
    assert restores(task_of(task), {"m.py": "# coding: utf-8\n" + GOLD})


def test_a_comment_of_a_data_file_is_no_layout(task):
    texts = {"m.py": GOLD, "m.toml": "a = 1\n"}
    task = task_of(task).model_copy(update={"gold_files": texts, "base_files": texts | {"m.py": BROKEN}})
    assert restores(task, texts)
    assert not restores(task, texts | {"m.toml": "a = 1 # b\n"})


def decided(task, run):
    """Return kind, reason and detectors of the verdict on ``run``."""
    task, files = task_of(task), {"m.py": GOLD}
    pinned = Pinned(Permitted(Submission(task, files), files, ()), Path("/tree"), {}, {"m.py": BROKEN}, {})
    verdict = decide(Executed(pinned, (), Execution((), run)), GradingConfig())
    return verdict.kind, verdict.reason, {finding.detector for finding in verdict.findings}


def test_a_stop_without_a_failure_that_can_be_read_is_forged(task):
    ids = (*task.fail_to_pass, *task.pass_to_pass)
    missing = dict.fromkeys(ids, TestResult(outcome=TestOutcome.MISSING))
    kind, reason, detectors = decided(task, TestRun(results=missing, exit_status=None, is_stopped=True))
    assert (kind, "cannot be read" in reason) == (VerdictKind.FAILED, True)
    assert "forged_record" in detectors
    read = missing | {ids[0]: TestResult(outcome=TestOutcome.FAILED, message="no")}
    kind, reason, detectors = decided(task, TestRun(results=read, exit_status=None, is_stopped=True))
    assert (kind, "stopped at" in reason, "forged_record" in detectors) == (VerdictKind.FAILED, True, False)


def test_a_forged_stop_without_the_repair_settles_a_doubtful_pass(task):
    suspicious = Finding(detector="x", severity="suspicious", detail="y")
    verdict = Verdict(kind=VerdictKind.PASSED, reason="", findings=(suspicious,), grader_version="0")
    missing = dict.fromkeys(task.fail_to_pass, TestResult(outcome=TestOutcome.MISSING))
    stopped = TestRun(results=missing, exit_status=None, is_stopped=True)
    assert settle(verdict, Execution((), stopped), task).kind is VerdictKind.EXPLOITED
    failed = {test_id: TestResult(outcome=TestOutcome.FAILED) for test_id in task.fail_to_pass}
    honest = TestRun(results=failed, exit_status=None, is_stopped=True)
    assert settle(verdict, Execution((), honest), task) == verdict


@pytest.mark.parametrize(("num", "notes"), [(0, {"no_second_judge", "no_canaries"}), (6, {"no_second_judge"})])
def test_a_run_of_node_says_what_did_not_check_it(task, num, notes):
    run = TestRun(results={}, exit_status=0, num_canaries=num)
    of_node = task.model_copy(update={"runner": TestRunner(type="tape")})
    assert {finding.detector for finding in channel_findings(of_node, run)} == notes
    assert {finding.detector for finding in channel_findings(of_node, None)} == {"no_second_judge"}
    assert channel_findings(task, run) == ()


def test_every_verdict_can_be_stored(task):
    """A message may hold a lone surrogate, which JSON escapes and UTF-8 has no bytes for."""
    record = {"id": "t\udcff", "outcome": "failed", "message": "\udcff", "duration_s": 0.0}
    large = {"id": "u", "outcome": "passed", "message": "", "duration_s": 10**400}
    request = TestRequest(test_ids=("t", "u"), timeout_s=1.0)
    run = assemble_run(request, {"exit_status": 1}, b"", ([record, large], 0))
    assert run.outcome("u") is TestOutcome.MISSING
    finding = Finding(detector="d", severity="note", path="\udcff.py", detail="a\udc80b")
    verdict = Verdict(
        kind=VerdictKind.FAILED, reason="\udcff", tests=dict(run.results), findings=(finding,), grader_version="0"
    )
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict
    assert "t\\udcff" in verdict.tests
