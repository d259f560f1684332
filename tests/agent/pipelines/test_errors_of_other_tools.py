"""Knowledge base, outer loop and samples of paper A's pipelines with main errors of JavaScript, Java, Go and Rust."""

import itertools
import json
from pathlib import Path

import pytest

from repairgym.agent.pipelines.paper_a import compare, split_by_error
from repairgym.agent.tools.check import BuildOutcome
from repairgym.agent.tools.knowledge import KnowledgeBase, make_fix
from repairgym.records import Provenance
from repairgym.tasks.logs.main_error import parse_errors, parse_main_error

FIXTURES = Path(__file__).parents[2] / "tasks" / "logs" / "fixtures"
TOOLS = ("npm", "tsc", "node", "maven", "gradle", "javac", "go", "cargo")
TWO_ERRORS = """\
src/a.ts(1,7): error TS2322: Type 'string' is not assignable to type 'number'.
src/b.ts(4,1): error TS2304: Cannot find name 'totl'.
src/b.ts(9,1): error TS2304: Cannot find name 'totl'.
"""


def errors_of(tool):
    lines = (FIXTURES / f"{tool}.jsonl").read_text(encoding="utf-8").splitlines()
    return [(row["id"], parse_main_error(row["log"]), row.get("moved_log")) for row in map(json.loads, lines)]


@pytest.mark.parametrize("tool", TOOLS)
def test_the_outer_loop_tells_progress_from_a_repetition(tool):
    errors = errors_of(tool)
    for (_, before, _), (_, after, _) in itertools.pairwise(errors):
        assert compare(before, after) == "other_error"
    moved = [(error, parse_main_error(log)) for _, error, log in errors if log]
    assert moved
    assert {compare(before, after) for before, after in moved} == {"same_error"}


def test_past_fixes_of_such_errors_are_retrieved(task, tmp_path):
    errors = [(name, error) for tool in TOOLS for name, error, _ in errors_of(tool)[:3]]
    with KnowledgeBase.create(tmp_path / "fixes.db") as base:
        for name, error in errors:
            own = task.model_copy(update={"id": name, "provenance": Provenance(package=name, version="1")})
            base.add(make_fix(own, error, f"+ {name}"), own)
        hits = [name == base.search(error.message)[0].fix.task_id for name, error in errors]
    assert sum(hits) >= 0.9 * len(hits)


def test_each_error_of_a_build_becomes_a_sample(task):
    samples = split_by_error(task, BuildOutcome(steps=(), run=None, errors=parse_errors(TWO_ERRORS)))
    assert [sample.id for sample in samples] == [task.id, f"{task.id}-error-2"]
