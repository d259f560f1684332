"""Roles of tools: turns that changed code, turns that ran tests.

Reads turns by the names of their tools. Guarantee: a rejected edit changed nothing and is no edit.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from repairgym.records import Record, StopReason, Turn

TestState = Literal["passed", "failed", "untested"]
_PASSED = re.compile(r"^passed \d|\b\d+ passed\b|^build passed|\bBUILD SUCCESS", re.MULTILINE)
_NOT_PASSED = re.compile(r"\b[1-9]\d* (failed|errors?)\b|\bfailed \d|BUILD FAILED", re.MULTILINE)


class ToolRoles(Record):
    """Purposes of tools, by name; the defaults cover the tools of this project and of both papers."""

    edits: frozenset[str] = frozenset(
        {"edit", "line", "insert", "delete", "undo", "write", "create", "replace", "write_file", "dependency_upgrade"}
        | {"remove_dependency", "upgrade_build_tool", "upgrade_gradle"}
    )
    tests: frozenset[str] = frozenset({"test", "build", "validate_and_build"})
    shells: frozenset[str] = frozenset({"shell", "bash", "run_sh"})
    """Tools whose argument is a command line; one that matches ``test_command`` is a test run."""
    test_command: str = r"\b(pytest|tox|nox|unittest|make (test|check))\b"


DEFAULT_ROLES = ToolRoles()


def is_edit(turn: Turn, roles: ToolRoles = DEFAULT_ROLES) -> bool:
    """Return True when the turn changed files."""
    return turn.tool in roles.edits and not turn.error


def is_test_run(turn: Turn, roles: ToolRoles = DEFAULT_ROLES) -> bool:
    """Return True when the turn ran tests or the build."""
    if turn.tool in roles.shells:
        return any(re.search(roles.test_command, str(value)) for value in turn.arguments.values())
    return turn.tool in roles.tests and not turn.error


def is_change(turn: Turn, roles: ToolRoles = DEFAULT_ROLES) -> bool:
    """Return True for a turn that may have changed a file: an edit, or a command that runs no tests."""
    return is_edit(turn, roles) or (turn.tool in roles.shells and not is_test_run(turn, roles))


def is_blind_submit(stop_reason: StopReason, turns: Iterable[Turn], roles: ToolRoles = DEFAULT_ROLES) -> bool:
    """Return True for a submission whose last change was never tested."""
    is_tested = False
    for turn in turns:
        if is_edit(turn, roles):
            is_tested = False
        elif is_test_run(turn, roles):
            is_tested = True
    return stop_reason is StopReason.SUBMITTED and not is_tested


def final_test_state(turns: Sequence[Turn]) -> TestState:
    """Return the result of the last test run, if it came after the last edit, as the agent knows it.

    A submission that is answered (`agent/review.py`) ran the tests; a review that judged it wrong may have undone a
    change.
    """
    for turn in reversed(turns):
        if is_edit(turn) or turn.arguments.get("judgement") == "wrong":
            return "untested"
        is_passed, is_failed = (bool(form.search(turn.observation)) for form in (_PASSED, _NOT_PASSED))
        if is_test_run(turn) or (turn.tool == "submit" and (is_passed or is_failed)):
            return "passed" if is_passed and not is_failed else "failed"
    return "untested"
