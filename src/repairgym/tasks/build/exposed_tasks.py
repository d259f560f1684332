"""Tasks on which cheating is easy: every test is visible and may be changed. For exploit studies only.

Reads tasks (and their pinned trees for a window on a test); makes exposed copies of them, and hollow test files.
Invariants: an exposed task has gold patch, certificate and tests of its original, so grading with every gate
asks for the repair; with a window on a failing test only that one must begin to pass, so that one edit is enough to
cheat; its id and its ``exposed`` label say what it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from repairgym.records import Location, Task
from repairgym.tasks.build.test_files import file_of, function_id, functions_of

InitialPrompt = Literal["source", "test"]
"""Where the episode's first window is: on the cached place of the bug, or on the test that fails."""

_Tree = dict[str, "list[str] | _Tree"]


def expose(task: Task, opening: InitialPrompt = "source", tree: Path | None = None) -> Task | None:
    """``task`` with nothing hidden; None when the window is to be on a test that ``tree`` does not define.

    Args:
        task: Any task; its hidden tests were cut out of the agent's copy of the test files.
        opening: Where the first window is.
        tree: Root of the pinned tree; needed for ``opening="test"``.
    """
    location, fail_to_pass = task.location, task.fail_to_pass
    if opening == "test":
        location = find_test_place(tree, task.fail_to_pass) if tree else None
        if location is None:
            return None
        shown = f"{location.path}::{location.name.replace('.', '::')}"
        fail_to_pass = tuple(test_id for test_id in fail_to_pass if function_id(test_id) == shown)
    return task.model_copy(
        update={
            "id": f"{task.id}-exposed-{opening}",
            "base_files": {path: text for path, text in task.base_files.items() if path not in task.test_paths},
            "fail_to_pass": fail_to_pass,
            "visible_tests": tuple(dict.fromkeys((*fail_to_pass, *task.pass_to_pass))),
            "location": location,
            "labels": {**task.labels, "exposed": opening},
        }
    )


def find_test_place(tree: Path, test_ids: Iterable[str]) -> Location | None:
    """Place of the first of these test functions that its file defines; None when none does."""
    for name in functions_of(test_ids):
        path, *parts = name.split("::")
        file = tree / path
        if not file.is_file():
            continue
        node = _find(ast.parse(file.read_text(encoding="utf-8")), parts)
        if node is not None:
            return Location(path=path, name=".".join(parts), first_line=node.lineno, last_line=node.end_lineno or 0)
    return None


def _find(node: ast.AST, parts: list[str]) -> ast.stmt | None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and child.name == parts[0]:
            return child if len(parts) == 1 else _find(child, parts[1:])
    return None


def hollow_tests(task: Task) -> dict[str, str]:
    """Path -> text of a test file that has the task's test ids and tests nothing; what a cheat would write."""
    by_file: dict[str, list[str]] = {}
    for test_id in dict.fromkeys((*task.fail_to_pass, *task.pass_to_pass)):
        by_file.setdefault(file_of(test_id), []).append(test_id)
    return {path: _hollow(test_ids) for path, test_ids in by_file.items()}


def _hollow(test_ids: list[str]) -> str:
    """Functions without a body; classes and parameters as the ids have them."""
    root: _Tree = {}
    for test_id in test_ids:
        *classes, name = function_id(test_id).split("::")[1:]
        folder = root
        for part in classes:
            child = folder.setdefault(part, {})
            if not isinstance(child, dict):
                break
            folder = child
        case = test_id[len(function_id(test_id)) + 1 : -1]
        cases = folder.setdefault(name, [])
        if isinstance(cases, list) and case:
            cases.append(case)
    return "import unittest\n\nimport pytest\n" + "".join(_lines(root, ""))


def _id_of(case: str) -> str:
    """The id that pytest writes as ``case``: it escapes what is given."""
    try:
        return case.encode("ascii", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:
        return case


def _lines(folder: _Tree, indent: str) -> Iterable[str]:
    for name, content in folder.items():
        if isinstance(content, dict):
            # A TestCase is collected whatever its name is, but takes no parameters.
            base = "" if any(content.values()) else "(unittest.TestCase)"
            yield f"\n{indent}class {name}{base}:\n"
            yield from _lines(content, indent + "    ")
            continue
        if content:
            cases = ", ".join(f"pytest.param(0, id={_id_of(case)!r})" for case in content)
            yield f"\n{indent}@pytest.mark.parametrize('case', [{cases}])"
        arguments = ["self"] * bool(indent) + ["case"] * bool(content)
        yield f"\n{indent}def {name}({', '.join(arguments)}):\n{indent}    pass\n"
