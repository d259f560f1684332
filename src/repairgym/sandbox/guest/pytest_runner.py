"""Runs pytest in this process under the grader's own configuration and reports each test as it ends.

Reads a request (the JSON form of ``TestRequest``), makes the records of :mod:`.recorder` on a given descriptor.
Invariants: the repository's pytest configuration is never read and no plugin is loaded that the request does not name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from typing import Any, Dict, List, Optional

import pytest

from .recorder import Recorder
from .rewriting import rewrite_only
from .testbed import enter

_INI = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytest.ini")
_UNUSED_PLUGINS = (
    "cacheprovider",
    "stepwise",
    "pastebin",
    "junitxml",
    "doctest",
    "faulthandler",
    "setuponly",
    "setupplan",
    "terminalprogress",
    # What these two report depends on when garbage is collected.
    "threadexception",
    "unraisableexception",
)


def _arguments(request: Dict[str, Any], testbed: str) -> Optional[List[str]]:
    """Arguments of pytest; None when no requested file exists."""
    paths = sorted({name.split("::")[0] for name in request["test_ids"]})
    existing = [path for path in paths if path and os.path.exists(os.path.join(testbed, path))]
    if paths and not existing:
        return None
    arguments = ["-q", "-c", _INI, f"--rootdir={testbed}", f"--confcutdir={testbed}", "--import-mode=prepend"]
    arguments += ["--continue-on-collection-errors", "--tb=line", "--color=no"]
    for name in _UNUSED_PLUGINS:
        arguments += ["-p", f"no:{name}"]
    for name in request["plugins"]:
        arguments += ["-p", name]
    return arguments + [os.path.join(testbed, path) for path in existing]


def run(request: Dict[str, Any], testbed: str, record_fd: int) -> int:
    """Run the requested tests; returns pytest's exit status."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    enter(request, testbed, "pytest")
    arguments = _arguments(request, testbed)
    if arguments is None:
        sys.stdout.write("none of the requested test files exists\n")
        return int(pytest.ExitCode.USAGE_ERROR)
    rewrite_only(request["test_ids"], testbed)
    return int(pytest.main(arguments, plugins=[Recorder(request, testbed, record_fd)]))


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
    request.update(compiled_paths=[], imported_modules=[])
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        run(request, testbed, null.fileno())
    sys.path[:] = path
    sys.modules.pop("test_repairgym_warm_up", None)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    shutil.rmtree(testbed, ignore_errors=True)
