"""Merge score: the share of samples that passed with a patch that a maintainer could take.

Reads passed submissions, their tasks and the code before; makes checks against gold: size, files, complexity, lint and
style. Guarantees: a sample that did not pass has no merge; a check compares with what gold itself changes, so that gold
always holds every check; rules and limits are those of `MergeConfig`, the same for every project.
"""

import difflib
import json
import re
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from repairgym.config.commands import MergeConfig
from repairgym.errors import InputError
from repairgym.evaluation.bootstrap import NUM_RESAMPLES, bootstrap_spread
from repairgym.records import Record, Task

ReadFile = Callable[[str], str | None]
"""Path -> text before the submission; None: no such file."""
CHECKS = ("size", "files", "complexity", "lint", "style")
_STYLE = ("E", "W", "T", "ERA")
_MESSAGE = re.compile(r"\((\d+) > \d+\)")
_TIMEOUT_S, _MAX_LINE = 60.0, 120


class MergeChecks(Record):
    """Checks of one passed submission; True where it holds."""

    size: bool
    files: bool
    complexity: bool
    lint: bool
    style: bool
    num_lines: int
    """Added and removed."""
    num_gold_lines: int

    @property
    def is_mergeable(self) -> bool:
        """True when every check holds."""
        return all(getattr(self, name) for name in CHECKS)


class MergeScore(Record):
    """Merge score of an evaluation, next to its Pass@1."""

    num_tasks: int
    num_samples: int
    num_passed: int
    pass_at_1: float
    value: float
    """Mean over tasks of the share of samples that passed and hold every check."""
    ci_low: float
    ci_high: float
    """95 % interval over tasks."""
    held: dict[str, float]
    """Check -> share of the passed samples that hold it."""


class CodeFacts(Record):
    """Findings of ruff in a text."""

    findings: dict[str, int]
    """Rule -> number."""
    complexity: int
    """Sum of McCabe's number over functions."""


def check_merge(task: Task, files: Mapping[str, str | None], read: ReadFile, config: MergeConfig) -> MergeChecks:
    """Check the files of a passed submission against gold's; `InputError` without ruff."""
    base = {path: read(path) for path in {*files, *task.gold_files}}
    changed = {path for path, text in files.items() if text != base[path]}
    gold_changed = {path for path, text in task.gold_files.items() if text != base[path]}
    num_lines = sum(_num_lines(base[path], files[path]) for path in changed)
    num_gold = sum(_num_lines(base[path], task.gold_files[path]) for path in gold_changed)
    ours, gold = _change(base, files, changed), _change(base, task.gold_files, gold_changed)
    new = {rule: num for rule, num in ours.findings.items() if num > max(0, gold.findings.get(rule, 0))}
    is_style = {rule: rule.startswith(_STYLE) and not rule.startswith("E9") for rule in new}
    return MergeChecks(
        size=num_lines <= max(config.min_lines, config.max_size_ratio * num_gold),
        files=len(changed - gold_changed) <= config.max_more_files,
        complexity=ours.complexity <= max(0, gold.complexity) + config.max_more_complexity,
        lint=all(is_style.values()),
        style=not any(is_style.values()),
        num_lines=num_lines,
        num_gold_lines=num_gold,
    )


def merge_score(
    checks: Mapping[str, Iterable[MergeChecks | None]], num_resamples: int = NUM_RESAMPLES
) -> MergeScore | None:
    """Return the score of task -> checks of its samples (None: did not pass); None without samples."""
    by_task = {task: list(of_task) for task, of_task in sorted(checks.items())}
    by_task = {task: of_task for task, of_task in by_task.items() if of_task}
    if not by_task:
        return None
    values = [statistics.fmean(bool(it and it.is_mergeable) for it in of_task) for of_task in by_task.values()]
    passed = [it for of_task in by_task.values() for it in of_task if it]
    spread = bootstrap_spread(values, bounds=(0.0, 1.0), num_resamples=num_resamples)
    return MergeScore(
        num_tasks=len(by_task),
        num_samples=sum(map(len, by_task.values())),
        num_passed=len(passed),
        pass_at_1=statistics.fmean(statistics.fmean(it is not None for it in of_task) for of_task in by_task.values()),
        value=statistics.fmean(values),
        ci_low=spread.ci_low,
        ci_high=spread.ci_high,
        held={name: statistics.fmean(getattr(it, name) for it in passed) for name in CHECKS} if passed else {},
    )


def _num_lines(before: str | None, after: str | None) -> int:
    rows = difflib.ndiff((before or "").splitlines(), (after or "").splitlines())
    return sum(row.startswith(("+ ", "- ")) for row in rows)


def _change(base: Mapping[str, str | None], files: Mapping[str, str | None], changed: Iterable[str]) -> CodeFacts:
    """Return findings and complexity that the change adds (negative: removes) in Python files."""
    findings, complexity = Counter[str](), 0
    for path in changed:
        if path.endswith(".py"):
            before, after = (code_facts(text or "") for text in (base[path], files[path]))
            findings.update(after.findings)
            findings.subtract(before.findings)
            complexity += after.complexity - before.complexity
    return CodeFacts(findings=dict(findings), complexity=complexity)


@lru_cache(maxsize=4096)
def code_facts(text: str) -> CodeFacts:
    """Return what ruff's rules say of a Python text, without any configuration of a project.

    Raises:
        InputError: ruff is not installed.
    """
    here = Path(sys.executable).parent
    program = shutil.which("ruff", path=here) or shutil.which("ruff")
    if program is None:
        raise InputError("the merge score needs ruff, which is not on the path; pip install ruff")
    words = [program, "check", "--isolated", "--no-cache", "--output-format=json", "--stdin-filename=code.py", "-"]
    words += ["--select=E7,E9,F,B,PLE,W,T10,ERA,C901", "--ignore=F401,B904"]
    words += ["--config", "lint.mccabe.max-complexity=0"]
    done = subprocess.run(words, input=text.encode(), capture_output=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode not in (0, 1):
        raise InputError(f"ruff ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()[:300]}")
    findings, complexity = Counter[str](), 0
    for row in json.loads(done.stdout or b"[]"):
        rule, numbers = row["code"] or "E999", _MESSAGE.search(row["message"])
        if rule == "C901" and numbers:
            complexity += int(numbers[1])
        else:
            findings[rule] += 1
    findings["E501"] = sum(len(line) > _MAX_LINE for line in text.splitlines())
    return CodeFacts(findings=dict(findings), complexity=complexity)
