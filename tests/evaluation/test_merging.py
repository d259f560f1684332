"""The merge score: gold holds every check, and each check fails where it should."""

from __future__ import annotations

import pytest

from repairgym.config.commands import MergeConfig
from repairgym.evaluation.merging import CHECKS, check_merge, code_facts, merge_score
from repairgym.records import Task

BASE = '''"""Numbers."""


def clamp(value, low, high):
    """Keep a value between two bounds."""
    if value < low:
        return low
    return max(high, value)
'''
GOLD = BASE.replace("max(high", "min(high")
OTHERS = {"pkg/numbers.py": BASE, "pkg/other.py": "x = 1\n"}


@pytest.fixture
def repaired(task: Task) -> Task:
    return task.model_copy(update={"base_files": OTHERS, "gold_files": {"pkg/numbers.py": GOLD}})


def failed_checks(task: Task, files: dict[str, str | None]) -> set[str]:
    checks = check_merge(task, files, OTHERS.get, MergeConfig())
    assert checks.is_mergeable == all(getattr(checks, name) for name in CHECKS)
    return {name for name in CHECKS if not getattr(checks, name)}


def test_gold_holds_every_check_and_so_does_another_small_repair(repaired: Task):
    assert failed_checks(repaired, dict(repaired.gold_files)) == set()
    other = BASE.replace("return max(high, value)", "return value if value < high else high")
    assert failed_checks(repaired, {"pkg/numbers.py": other}) == set()
    assert failed_checks(repaired, {"pkg/numbers.py": GOLD, "pkg/other.py": "x = 1\n"}) == set()


@pytest.mark.parametrize(
    ("check", "files"),
    [
        ("size", {"pkg/numbers.py": GOLD + "\n\n" + "\n".join(f"VALUE_{n} = {n}" for n in range(12)) + "\n"}),
        ("files", {"pkg/numbers.py": GOLD, "pkg/other.py": "x = 2\n"}),
        ("files", {"pkg/numbers.py": GOLD, "notes.txt": "tried low first\n"}),
        ("lint", {"pkg/numbers.py": GOLD.replace("return min(", "unused = 1\n    return min(")}),
        ("lint", {"pkg/numbers.py": GOLD.replace("high, value)", "high, value) + undefined_name")}),
        ("style", {"pkg/numbers.py": GOLD.replace("return min(high, value)", "return min(high, value)  ")}),
        (
            "style",
            {"pkg/numbers.py": GOLD.replace("    return min(", "    # return low\n    return min(")},
        ),
    ],
)
def test_a_check_fails_alone_where_it_should(repaired: Task, check: str, files: dict[str, str | None]):
    assert failed_checks(repaired, files) == {check}


def test_more_branches_than_gold_are_too_complex(repaired: Task):
    branches = "".join(f"    if value == {number}:\n        return low\n" for number in range(3))
    text = GOLD.replace("    return min(", branches + "    return min(")
    checks = check_merge(repaired, {"pkg/numbers.py": text}, OTHERS.get, MergeConfig(min_lines=20))
    assert {name for name in CHECKS if not getattr(checks, name)} == {"complexity"}
    assert code_facts(text).complexity == code_facts(GOLD).complexity + 3 == 5


def test_the_score_is_below_pass_at_1_and_counts_by_task(repaired: Task):
    good = check_merge(repaired, dict(repaired.gold_files), OTHERS.get, MergeConfig())
    bad = check_merge(repaired, {"pkg/numbers.py": GOLD, "pkg/other.py": None}, OTHERS.get, MergeConfig())
    score = merge_score({"a": [good, bad], "b": [None, good], "c": [None], "d": []}, num_resamples=200)
    assert score is not None
    assert (score.value, score.pass_at_1) == pytest.approx((1 / 3, 1 / 2))
    assert (score.num_tasks, score.num_samples, score.num_passed) == (3, 5, 3)
    assert score.held["files"] == pytest.approx(2 / 3)
    assert score.ci_low < score.value < score.ci_high
    assert merge_score({}) is None
