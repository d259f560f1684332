"""Keeps pytest's rewriting of assertions to the tests that run.

Reads the requested ids; changes what pytest does with a test file that it compiles. Most of a short run of a long test
file went into rewriting assertions of tests that nobody asked for. Invariants: all code is compiled and runs as it is
written; a test that was not asked for keeps its plain assertions, which decide alike and explain less.
"""

from __future__ import annotations

import ast
import os
from typing import Any, Iterator, List, Set, Tuple

from _pytest.assertion import rewrite

from .testbed import selectors


def rewrite_only(test_ids: List[str], testbed: str) -> None:
    """From now on rewrite the assertions of ``test_ids`` and of what is no test; of all tests when there are none."""
    rewrite_asserts = getattr(rewrite, "rewrite_asserts", None)
    if not test_ids or rewrite_asserts is None:
        return
    wanted = {name.partition("[")[0] for name in test_ids}

    def rewrite_wanted(module: ast.Module, source: bytes, path: Any = None, *rest: Any) -> None:
        place = os.path.relpath(str(path), testbed) if path is not None else ""
        hidden = [(function, function.body) for function in _unwanted(module, place, wanted)] if place else []
        for function, body in hidden:
            function.body = [ast.copy_location(ast.Pass(), body[0])]
        try:
            rewrite_asserts(module, source, path, *rest)
        finally:
            for function, body in hidden:
                function.body = body

    setattr(rewrite, "rewrite_asserts", rewrite_wanted)  # noqa: B010 - its signature differs between versions


def _unwanted(module: ast.Module, path: str, wanted: Set[str]) -> Iterator[Any]:
    """Test functions and methods of ``module`` that no wanted id stands for."""
    for name, function in _tests(module):
        if wanted.isdisjoint(selectors(f"{path}::{name}")):
            yield function


def _tests(module: ast.Module) -> Iterator[Tuple[str, Any]]:
    for node in module.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)) and member.name.startswith("test"):
                yield prefix + member.name, member
