"""Pytest in this process, under the grader's own configuration; each test is reported as it ends.

Reads a request (the JSON form of ``TestRequest``), makes the records of :mod:`.recorder` over a given link.
Guarantees: the repository's pytest configuration is never read; settings and plugins are those that the request names.
Pytest rewrites the assertions of requested tests only, because most of a short run of a long test file went into
rewriting the others; those keep plain assertions, which decide alike and explain less.
"""

from __future__ import annotations

import ast
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
from typing import Any, Dict, Iterator, List, Optional, Set

import pytest
from _pytest import config
from _pytest.assertion import rewrite

from .recorder import Recorder
from .start import enter, selectors
from .supervisor import Link

_INI = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytest.ini")
_UNUSED_PLUGINS = (
    "cacheprovider",
    "stepwise",
    "pastebin",
    "junitxml",
    "faulthandler",
    "setuponly",
    "setupplan",
    "terminalprogress",
    # The reports of these two depend on the time of garbage collection.
    "threadexception",
    "unraisableexception",
)
_WITHOUT = [part for name in _UNUSED_PLUGINS for part in ("-p", f"no:{name}")]


def _arguments(request: Dict[str, Any], testbed: str) -> Optional[List[str]]:
    """Return the arguments of pytest; None when no requested file exists."""
    paths = sorted({name.split("::")[0] for name in request["test_ids"]})
    existing = [path for path in paths if path and os.path.exists(os.path.join(testbed, path))]
    if paths and not existing:
        return None
    arguments = ["-q", "-c", _INI, f"--rootdir={testbed}", f"--confcutdir={testbed}"]
    arguments += ["--continue-on-collection-errors", "--tb=line", "--color=no"]
    # Tests of pytest itself ask for its plugins.
    arguments += _WITHOUT if request["runner"]["type"] == "pytest" else []
    for name in request["plugins"]:
        arguments += ["-p", name]
    for name, value in request["runner"].get("settings", ()):
        arguments += ["-o", f"{name}={value}"]
    return arguments + [os.path.join(testbed, path) for path in existing]


def run(request: Dict[str, Any], testbed: str, link: Link) -> int:
    """Run the requested tests and return pytest's exit status."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    enter(request, testbed, "pytest")
    arguments = _arguments(request, testbed)
    if arguments is None:
        sys.stdout.write("none of the requested test files exists\n")
        return int(pytest.ExitCode.USAGE_ERROR)
    rewrite_only(request["test_ids"], testbed)
    return int(pytest.main(arguments, plugins=[Recorder(request, testbed, link)]))


_WARM_UP_TESTS = """
import unittest.mock
import pytest

def test_pass(tmp_path, monkeypatch, capsys, recwarn, caplog):
    print(tmp_path)

@pytest.mark.parametrize("value", [1, 2])
def test_fail(value):
    assert {"a": [value]} == {"a": [3]}

class TestCase(unittest.TestCase):
    def test_method(self):
        with self.assertRaises(ValueError):
            raise ValueError
        self.assertEqual([1], [2])
"""


def warm_up(folder: str = "/tmp") -> None:
    """Run a small suite in this process and remove its traces, so that forks find pytest loaded."""
    path, environment, cwd = list(sys.path), dict(os.environ), os.getcwd()
    testbed = tempfile.mkdtemp(dir=folder)
    with open(os.path.join(testbed, "test_repairgym_warm_up.py"), "w") as file:
        file.write(_WARM_UP_TESTS)
    request = {"test_ids": [], "test_timeout_s": 60, "source_paths": [""], "plugins": [], "traced_paths": []}
    request.update(compiled_paths=[], imported_modules=[], is_sealed=False, runner={"type": "pytest"})
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        run(request, testbed, Link("", null.fileno()))
    sys.path[:] = path
    sys.modules.pop("test_repairgym_warm_up", None)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    shutil.rmtree(testbed, ignore_errors=True)
    _prepare_configuration()


def _prepare_configuration() -> None:
    """Register pytest's own plugins ahead, for the first run of this process or of a fork: an eighth of a short run."""
    get_config = getattr(config, "get_config", None)
    if get_config is None:
        return
    prepared = get_config(_WITHOUT)
    _keep_parser(prepared._parser)

    def give(args: Any = None, plugins: Any = None, **_: Any) -> Any:
        setattr(config, "get_config", get_config)  # noqa: B010 - private; tests that run pytest get their own
        own = {"args": tuple(args or ()), "plugins": plugins, "dir": pathlib.Path.cwd()}
        prepared.invocation_params = config.Config.InvocationParams(**own)
        return prepared

    setattr(config, "get_config", give)  # noqa: B010


def _keep_parser(parser: Any) -> None:
    """Make ``parser`` build its argparse parser again only where it has more options: pytest reads them six times."""
    make: Any = getattr(parser, "_getparser", None)
    kept: Dict[int, Any] = {}

    def give() -> Any:
        num_options = sum(len(group.options) for group in (parser._anonymous, *parser._groups))
        if num_options not in kept:
            kept[num_options] = make()
        return kept[num_options]

    if make is not None:
        parser._getparser = give


# --- assertions -------------------------------------------------------------------------------------------------------


def rewrite_only(test_ids: List[str], testbed: str) -> None:
    """Make pytest rewrite assertions in ``test_ids`` and outside of tests only; in all tests when there are no ids."""
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
    """Yield the test functions and methods of ``module`` that no wanted id selects."""
    for node in module.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{path}::{node.name}::" if isinstance(node, ast.ClassDef) else f"{path}::"
        for member in members:
            if not isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)) or not member.name.startswith("test"):
                continue
            if wanted.isdisjoint(selectors(prefix + member.name)):
                yield member
