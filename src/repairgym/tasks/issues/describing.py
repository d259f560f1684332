"""Description of real bugs: the issue text, what else an agent is shown, and labels.

Reads tasks of the sources `releases` and `history` with their pinned trees, texts of the project about their fixes, and
the failures on the broken code. Makes the same tasks with an issue, perhaps with one more visible test, and with the
labels ``issue_source``, ``kind`` and ``is_underspecified``. Guarantees: the specification check passes for every task
without the last label; the issue holds no text of one run and no line of the repair; nothing but the issue, the visible
tests and the labels of a task changes.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

from repairgym.errors import TaskError
from repairgym.records import UNDERSPECIFIED, Task, TestRun
from repairgym.tasks.build.assembly import files_without
from repairgym.tasks.build.test_files import file_of, function_id, functions_of, held_tests
from repairgym.tasks.issues.assignment import assign_entries
from repairgym.tasks.issues.kinds import Change, kind_of
from repairgym.tasks.issues.run_text import without_run_text
from repairgym.tasks.issues.specification import Facts, find_untold, new_names
from repairgym.tasks.issues.statement import Clues, Proof, state_behaviour
from repairgym.tasks.javascript.syntax import statement_at, written_title
from repairgym.tasks.sources.changelog import MIN_FIT, read_entries
from repairgym.tasks.sources.fixes import fix_clues

HALF = "is_half"
"""Label of a bug whose broken code is a state that no release had: half of a change."""
MIN_WORDS = 10
"""Shorter texts get a statement where no failing test is visible (SWE-rebench, arXiv 2505.20411, asks for as many)."""
MAX_STATEMENTS = 3
MAX_MESSAGE_CHARS = 200
MAX_STATEMENT_CHARS = 400
"""Longer statements of JavaScript tests are whole tests rather than checks."""
_WORD = re.compile(r"[\w$]+")
_NOT_OF_SOURCES = re.compile(
    r"^\[(tests?|dev deps|deps|meta|actions|readme|docs?|eslint|types)\]|readme|lockfile|\blint|npmignore",
    re.IGNORECASE,
)
"""Changelog entries of projects of node that are not about their code."""


class Failure(NamedTuple):
    """A failure of a test."""

    message: str
    """Its first line."""
    line: int = 0
    """Line of the test function, itself or in what it called; 0: not known."""


def failures_of(run: TestRun, test_ids: Sequence[str]) -> dict[str, Failure]:
    """Return the failures of ``test_ids`` in ``run``."""
    results = {i: run.results[i] for i in test_ids if i in run.results}
    return {i: Failure(result.message, result.line) for i, result in results.items() if result.message}


@dataclass(frozen=True)
class Report:
    """A bug as a project and the runs tell it."""

    text: str = ""
    """Text of the project; empty without one."""
    source: str = "tests"
    """Place of the text: ``changelog``, ``issue`` or ``commit``; ``tests`` without one."""
    failures: Mapping[str, Failure] = field(default_factory=dict)
    """Failing test -> its failure on the broken code."""
    proofs: Mapping[str, Proof] = field(default_factory=dict)
    """Failing test function -> its checks that may be told; one that is missing was not tried."""


def assigned_entries(tasks: Sequence[Task], tree: Path) -> list[str]:
    """Return the changelog entry of each task of one pair of releases, empty for none; ``tree`` is the newer one."""
    entries = list(dict.fromkeys(read_entries(tree, tasks[0].provenance.version))) if tasks else []
    is_node = bool(tasks) and tasks[0].runner.is_node
    entries = [entry for entry in entries if not (is_node and _NOT_OF_SOURCES.search(entry))]
    clues = [fix_clues(Facts(task, tree).fix, tree, task.fail_to_pass) for task in tasks]
    # Titles of tests say less than names of functions: a word decides where nothing else is to be assigned.
    min_fit = 1 if is_node and len(entries) == len(tasks) == 1 else MIN_FIT
    numbers = assign_entries([[own.score(entry) for entry in entries] for own in clues], min_fit)
    return ["" if number is None else entries[number] for number in numbers]


def describe(task: Task, tree: Path, report: Report) -> Task:
    """Return ``task`` as ``report`` and its tests describe it; ``tree`` is its pinned tree."""
    text = report.text.strip()
    if report.source == "changelog" and not task.runner.is_node and not _names_what_is_new(Facts(task, tree), text):
        text = ""
    source = report.source if text else "tests"
    if task.runner.is_node:
        return _by_failure(task, tree, text, source, report)
    facts = Facts(_with_issue(task, text, source), tree)
    if not text or (len(text.split()) < MIN_WORDS and not facts.visible_functions()):
        facts = _with_statement(facts, report, ())
    untold = find_untold(facts)
    if untold:
        facts = _with_another_test(facts, untold)
        untold = find_untold(facts)
    for _ in range(MAX_STATEMENTS):
        if not untold:
            break
        told = _with_statement(facts, report, untold)
        left = find_untold(told)
        if len(left) >= len(untold):
            break
        facts, untold = told, left
    facts = _with_hidden_behaviour(facts, report)
    if facts.task.issue:
        return _labelled(facts, text, bool(untold), report.failures)
    return _labelled(
        replace(facts, task=_with_issue(task, _test_names(task, report), source)), text, True, report.failures
    )


def _names_what_is_new(facts: Facts, text: str) -> bool:
    """Return False for a text of another change: the tests use a public name that the repair brings, it names none."""
    used = facts.used_names(facts.hidden_functions() + facts.visible_functions())
    new = Change(facts.fix, text, frozenset(used)).new_names
    return not new or any(name in text for name in new)


def _with_hidden_behaviour(facts: Facts, report: Report) -> Facts:
    """Return ``facts`` with a statement for each hidden failing function, `MAX_STATEMENTS` at most.

    One expectation does not tell what other hidden tests ask of other inputs. An issue or a commit message stays as
    people wrote it.
    """
    is_own = facts.task.labels["issue_source"] in ("tests", "changelog") and facts.task.issue
    for function in facts.hidden_functions()[:MAX_STATEMENTS] if is_own else ():
        facts = _with_statement(facts, report, (), (function,))
    return facts


def _by_failure(task: Task, tree: Path, text: str, source: str, report: Report) -> Task:
    """Return a JavaScript task with the text of its project and its failing tests; no check reads its tests.

    Without any visible failing test, and without a text, an agent cannot know what is wanted.
    """
    checks = _failing_checks(task, tree, report) or [_test_names(task, report)]
    told = _with_issue(task, "\n\n".join(filter(None, (text, *checks))), source)
    is_told = bool(text) or not set(task.visible_tests).isdisjoint(task.fail_to_pass)
    facts = Facts(task, tree)
    used = frozenset(_WORD.findall("".join(map(facts.source, dict.fromkeys(map(file_of, task.fail_to_pass))))))
    kind = kind_of(Change(facts.fix, text, used, is_marked_half=HALF in task.labels))
    labels = {**told.labels, "kind": kind, **({} if is_told else {UNDERSPECIFIED: "true"})}
    return told.model_copy(update={"labels": labels})


def _failing_checks(task: Task, tree: Path, report: Report) -> list[str]:
    """Return what is told of failing JavaScript tests, visible ones first, and of `MAX_STATEMENTS` hidden ones.

    Of tests that end with one message the first counts: an exception in one test of tape ends all others of its file.
    """
    visible = [i for i in task.fail_to_pass if i in task.visible_tests]
    hidden = [i for i in task.fail_to_pass if i not in task.visible_tests]
    first: dict[str, str] = {}
    for test_id in visible + hidden:
        if test_id in report.failures:
            first.setdefault(report.failures[test_id].message, test_id)
    chosen = [i for i in first.values() if i in visible]
    chosen += [i for i in first.values() if i in hidden][:MAX_STATEMENTS]
    return [_failing_check(test_id, tree, report.failures[test_id]) for test_id in chosen]


def _failing_check(test_id: str, tree: Path, failure: Failure) -> str:
    """Return the title of a failing JavaScript test, its message, and the statement that failed where it is short."""
    path, _, name = test_id.partition("::")
    source = (tree / path).read_text(encoding="utf-8", errors="replace")
    told = f"{written_title(path, source, name)} fails: {_shortened(failure.message)}"
    statement = statement_at(path, source, failure.line) if failure.line else ""
    return f"{told}\n\n{indent(statement, ' ' * 4)}" if 0 < len(statement) <= MAX_STATEMENT_CHARS else told


def _test_names(task: Task, report: Report) -> str:
    """Return a report of the first failing test by its name, for tests that no statement can be made from."""
    first = task.fail_to_pass[0]
    message = _shortened(report.failures[first].message) if first in report.failures else "it does not pass"
    return f"{first.partition('::')[2]} fails: {message}"


def _with_issue(task: Task, issue: str, source: str) -> Task:
    labels = {**task.labels, "issue_source": source}
    return task.model_copy(update={"issue": without_run_text(issue), "labels": labels})


def _with_statement(
    facts: Facts, report: Report, untold: Collection[str], functions: Sequence[str] | None = None
) -> Facts:
    """Return ``facts`` with a statement of behaviour of one of ``functions`` (None: all failing) after the issue."""
    candidates = facts.hidden_functions() if untold else facts.visible_functions() + facts.hidden_functions()
    candidates = candidates if functions is None else list(functions)
    touched = {span.qualified_name.rpartition(".")[2] for _, span in facts.fix.touched_functions()} | new_names(facts)
    names = {part for name in touched for part in (name, name.strip("_"))}
    for function in candidates:
        failing = [i for i in facts.task.fail_to_pass if function_id(i) == function]
        failure = next((report.failures[i] for i in failing if i in report.failures), Failure(""))
        for node in facts.nodes([function]):
            parameters = [i.partition("[")[2].removesuffix("]") for i in failing]
            clues, proof = Clues(untold, names, *failure), report.proofs.get(function)
            statement, line = state_behaviour(node, clues, parameters, facts.scope(function), proof)
            if statement and statement not in facts.task.issue and _is_useful(statement, untold):
                message = proof[line].message if proof else failure.message
                end = "" if untold or not message else f" Found: {_shortened(message)}"
                parts = (facts.task.issue, statement + (f"\n\n{end[1:]}" if statement[-1] != "." and end else end))
                issue = "\n\n".join(filter(None, parts))
                return replace(facts, task=_with_issue(facts.task, issue, facts.task.labels["issue_source"]))
    return facts


def _is_useful(statement: str, untold: Collection[str]) -> bool:
    return not untold or any(item in statement for item in untold)


def _shortened(message: str) -> str:
    line = without_run_text(message.strip().splitlines()[0])
    return line if len(line) <= MAX_MESSAGE_CHARS else f"{line[:MAX_MESSAGE_CHARS]}..."


def _with_another_test(facts: Facts, untold: tuple[str, ...]) -> Facts:
    """Return ``facts`` with the hidden test visible that tells most; at least one stays hidden."""
    hidden = facts.hidden_functions()
    best, left = facts, len(untold)
    for function in hidden if len(hidden) > 1 else ():
        try:
            shown = replace(facts, task=_with_visible(facts, function))
        except TaskError:
            continue
        if (num_left := len(find_untold(shown))) < left:
            best, left = shown, num_left
    return best


def _with_visible(facts: Facts, function: str) -> Task:
    """Return the task with ``function`` in the agent's copy of its file."""
    task, path = facts.task, file_of(function)
    text = task.base_files.get(path)
    held = held_tests(text) if text is not None else frozenset()
    own = [i for i in functions_of(task.fail_to_pass) if file_of(i) == path and i != function]
    cut = [i for i in own if text is not None and i.partition("::")[2] not in held]
    files = {name: value for name, value in task.base_files.items() if name != path}
    shown = tuple(i for i in task.fail_to_pass if function_id(i) == function)
    return task.model_copy(
        update={"base_files": {**files, **files_without(facts.tree, cut)}, "visible_tests": task.visible_tests + shown}
    )


def _labelled(facts: Facts, text: str, is_underspecified: bool, failures: Mapping[str, Failure]) -> Task:
    used = frozenset(facts.used_names(facts.hidden_functions() + facts.visible_functions()))
    messages = tuple(failure.message for failure in failures.values())
    labels = {**facts.task.labels, "kind": kind_of(Change(facts.fix, text, used, messages, HALF in facts.task.labels))}
    labels.pop(UNDERSPECIFIED, None)
    if is_underspecified:
        labels[UNDERSPECIFIED] = "true"
    return facts.task.model_copy(update={"labels": labels})
