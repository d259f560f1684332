from __future__ import annotations

import dataclasses

import pytest

from repairgym.records import Finding, TestOutcome, TestResult
from repairgym.report.reading import MAX_ROWS, read, read_diff, split_thought

PATCH = """--- a/m.sql
+++ b/m.sql
@@ -3,3 +3,3 @@
 select 1
--- old
+++ new
 from t
--- /dev/null
+++ b/n.py
@@ -0,0 +1 @@
+x
"""


def test_a_diff_is_numbered_by_its_hunks():
    found = read_diff(PATCH)
    assert [(row.kind, row.text, row.old_number, row.new_number) for row in found.rows] == [
        ("file", "m.sql", None, None),
        ("hunk", "@@ -3,3 +3,3 @@", None, None),
        ("same", "select 1", 3, 3),
        ("del", "-- old", 4, None),
        ("add", "++ new", None, 4),
        ("same", "from t", 5, 5),
        ("file", "n.py (new file)", None, None),
        ("hunk", "@@ -0,0 +1 @@", None, None),
        ("add", "x", None, 1),
    ]
    assert (found.num_added, found.num_removed) == (2, 1)


def test_findings_are_shown_at_their_lines():
    here = Finding(detector="a", severity="exploit", path="m.sql", line=4, detail="here")
    far = Finding(detector="b", severity="note", path="m.sql", line=9, detail="far")
    nowhere = Finding(detector="c", severity="suspicious", detail="all of it")
    found = read_diff(PATCH, (here, far, nowhere), {"m.sql": "\n".join(map(str, range(1, 30)))})
    assert [row.findings for row in found.rows if row.findings] == [(here,)]
    assert next(row for row in found.rows if row.findings).kind == "add"
    assert [extract.finding for extract in found.extracts] == [far, nowhere]
    assert found.extracts[0].lines[3] == (9, "9")
    assert found.extracts[1].lines == ()


def test_any_text_is_accepted_as_a_diff():
    assert read_diff("").rows == ()
    assert [row.kind for row in read_diff("no diff\n@@ -99999999999999,9 +1 @@\n?").rows] == ["note", "hunk", "note"]
    long = read_diff(f"@@ -0,0 +1,{MAX_ROWS * 2} @@\n" + "+x\n" * (MAX_ROWS * 2))
    assert (len(long.rows), long.num_left_out, long.num_added) == (MAX_ROWS, MAX_ROWS + 1, 2 * MAX_ROWS)


def test_thoughts_are_separated_from_actions():
    assert split_thought("<think>hm\nso</think>\nedit x") == ("hm\nso", "edit x")
    assert split_thought("I look.\n```bash\nls\n```") == ("I look.", "```bash\nls\n```")
    assert split_thought("edit < => <= @2") == ("", "edit < => <= @2")
    assert split_thought("<tool_call>{}") == ("", "<tool_call>{}")


@pytest.mark.parametrize(("is_stopped", "words", "num_not_run"), [(True, "not run", 2), (False, "missing", 0)])
def test_tests_after_a_stop_were_not_run(trajectory_maker, is_stopped, words, num_not_run):
    outcomes = {"a": TestOutcome.MISSING, "b": TestOutcome.FAILED, "c": TestOutcome.PASSED, "d": TestOutcome.MISSING}
    tests = {name: TestResult(outcome=outcome) for name, outcome in outcomes.items()}
    one = trajectory_maker()
    verdict = one.verdict.model_copy(update={"tests": tests, "is_stopped": is_stopped})
    reading = read(dataclasses.replace(one, verdict=verdict), None, None, None)
    assert [(test.name, test.outcome) for test in reading.tests] == [
        ("b", "failed"), ("a", words), ("d", words), ("c", "passed"),
    ]  # fmt: skip
    assert (reading.num_tests_passed, reading.num_tests_not_run) == (1, num_not_run)
