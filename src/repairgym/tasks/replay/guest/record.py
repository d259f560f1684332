"""The recording of tests: the real test framework over rewritten test modules.

Reads a request (test ids, folders of sources, plugins, bound on steps), runs the tests with pytest or unittest, makes
one script per passed test: the steps of its setup, call and teardown, preceded by the earlier steps that made what they
use. Guarantees: fixtures, parameters and ``conftest.py`` run as the project has them.
"""

import json
import os
import sys
import unittest
from typing import Any, Dict, Iterator, List, Set, Tuple

from .operands import Encoder
from .recorder import Recorder
from .rewrite import TestModuleFinder
from .steps import MAKERS, Step

_MAX_EARLIER_STEPS = 2000
_NO_PLUGINS = (
    "cacheprovider",
    "stepwise",
    "junitxml",
    "doctest",
    "faulthandler",
    "threadexception",
    "unraisableexception",
)


def _path(test_id: str) -> str:
    return test_id.partition("::")[0]


class Session:
    """A recording session: what runs, and what became of each test."""

    def __init__(self, request: Dict[str, Any], root: str) -> None:
        self.request = request
        self.wanted: Set[str] = set(request["test_ids"])
        self.files = sorted({_path(test_id) for test_id in self.wanted})
        self.failed: Dict[str, str] = {}
        self.passed: List[str] = []
        self.finder = TestModuleFinder(root, self.files)
        encoder = Encoder(self.finder.originals, self.finder.modules)
        encoder.roots = tuple({os.path.realpath(root) + os.sep, root + os.sep})
        encoder.is_test_file = self.finder.is_test
        self.recorder = Recorder(encoder, request["max_steps"])
        self.finder.set_recorder(self.recorder)

    def is_wanted(self, test_id: str) -> bool:
        """Return True for a requested test, or one of a requested function, class or file."""
        base, names = test_id.partition("[")[0], {test_id}
        while base:
            names.add(base)
            base = base.rpartition("::")[0]
        return not self.wanted.isdisjoint(names)

    def bounded(self, tests: List[Any]) -> List[Any]:
        """Return as many of ``tests`` as the request records, from all over."""
        return tests[:: max(1, -(-len(tests) // self.request["max_tests"]))]

    def note(self, test_id: str, problem: str) -> None:
        """Note the end of a phase of a test; an empty problem means that it passed."""
        if problem:
            self.failed.setdefault(test_id, problem)
        elif test_id not in self.passed:
            self.passed.append(test_id)


# --- pytest -----------------------------------------------------------------------------------------------------------


class _Plugin:
    """A pytest plugin that selects tests and tells the recorder which one runs."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def pytest_collection_modifyitems(self, config: Any, items: List[Any]) -> None:
        """Keep the requested tests."""
        chosen = self._session.bounded([item for item in items if self._session.is_wanted(item.nodeid)])
        kept = {item.nodeid for item in chosen}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
        items[:] = chosen

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin a test."""
        self._session.recorder.test = nodeid

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """End a test."""
        self._session.recorder.test = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note the outcome of a phase."""
        is_expected = hasattr(report, "wasxfail") and report.outcome != "failed"
        if report.outcome == "failed" or (report.outcome == "skipped" and not is_expected):
            self._session.note(report.nodeid, f"{report.outcome} when recorded: {str(report.longrepr)[-300:]}")
        elif report.when == "call" or is_expected:
            self._session.note(report.nodeid, "")

    def pytest_collectreport(self, report: Any) -> None:
        """Note files that cannot be collected."""
        if report.failed:
            self._session.note(report.nodeid, f"not collected: {str(report.longrepr)[-300:]}")


def _run_pytest(session: Session) -> None:
    import pytest

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    root = os.getcwd()
    arguments = ["-q", "-c", os.devnull, f"--rootdir={root}", f"--confcutdir={root}", "--import-mode=prepend"]
    arguments += ["--continue-on-collection-errors", "--tb=line", "--assert=plain"]
    plugins = session.request["plugins"]
    for name in _NO_PLUGINS:
        if name not in plugins:  # one that was switched off cannot be loaded again
            arguments += ["-p", f"no:{name}"]
    for name in plugins:
        arguments += ["-p", name]
    files = [path for path in session.files if os.path.exists(path)]
    pytest.main(arguments + files, plugins=[_Plugin(session)])


# --- unittest ---------------------------------------------------------------------------------------------------------


class _Result(unittest.TestResult):
    """A result that tells the recorder which test runs."""

    def __init__(self, session: Session, ids: Dict[Any, str]) -> None:
        super().__init__()
        self._session = session
        self._ids = ids

    def startTest(self, test: Any) -> None:
        """Begin a test."""
        super().startTest(test)
        self._session.recorder.test = self._ids[test]

    def stopTest(self, test: Any) -> None:
        """End a test."""
        super().stopTest(test)
        self._session.note(self._ids[test], "")
        self._session.recorder.test = ""

    def addError(self, test: Any, err: Any) -> None:
        """Note a failure."""
        self._session.note(self._ids.get(test, str(test)), f"failed when recorded: {err[0].__name__}: {err[1]}"[:300])

    def addFailure(self, test: Any, err: Any) -> None:
        """Note a failure."""
        self.addError(test, err)

    def addSkip(self, test: Any, reason: str) -> None:
        """Note a skip."""
        self._session.note(self._ids.get(test, str(test)), f"skipped when recorded: {reason}"[:300])

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        """Note a failing part."""
        if err is not None:
            self.addError(test, err)


def _cases(suite: Any) -> Iterator[unittest.TestCase]:
    for part in suite:
        if isinstance(part, unittest.TestCase):
            yield part
        else:
            yield from _cases(part)


def _run_unittest(session: Session) -> None:
    sys.path.append(os.getcwd())
    loader = unittest.TestLoader()
    ids: Dict[unittest.TestCase, str] = {}
    for path in session.files:
        name = path[: -len(".py")].replace("/", ".")
        try:
            __import__(name)
        except BaseException as error:
            session.note(path, f"not collected: {type(error).__name__}: {error}"[:300])
            continue
        for case in _cases(loader.loadTestsFromModule(sys.modules[name])):
            test_id = f"{path}::{type(case).__qualname__.replace('.', '::')}::{case._testMethodName}"
            if session.is_wanted(test_id):
                ids[case] = test_id
    loader.suiteClass(session.bounded(list(ids))).run(_Result(session, ids))


# --- scripts ----------------------------------------------------------------------------------------------------------


def used_handles(content: Any) -> Iterator[int]:
    """Yield the handles in an operand, or in a list or dictionary of operands."""
    if isinstance(content, dict):
        for part in content.values():
            yield from used_handles(part)
    elif isinstance(content, list):
        if len(content) == 2 and content[0] == "h" and isinstance(content[1], int):
            yield content[1]
        else:
            for part in content:
                yield from used_handles(part)


class _Library:
    """All recorded steps, from which the script of one test is chosen."""

    def __init__(self, steps: List[Step]) -> None:
        self._steps = steps
        self._uses = [set(used_handles([step["args"], step.get("kwargs", {})])) for step in steps]
        self._by_test: Dict[str, List[int]] = {}
        self._by_handle: Dict[int, List[int]] = {}
        """Handle -> steps that give it, fill it, or changed it while modules were imported."""
        self._by_module: Dict[str, List[int]] = {}
        """Module -> steps that set its globals."""
        for index, step in enumerate(steps):
            self._by_test.setdefault(step["test"], []).append(index)
            handles = [step["to"]] if "to" in step else []
            if step["op"] == "global":
                self._by_module.setdefault(step["module"], []).append(index)
            elif step["op"] == "fill":
                handles = [step["args"][0][1]]
            elif step["op"] in ("call", "method", "set_attribute", "set_item") and step["test"] == "":
                handles += step.get("after", ())
            for handle in handles:
                self._by_handle.setdefault(handle, []).append(index)

    def script(self, test_id: str) -> List[Step]:
        """Return the steps of a test and the earlier ones that it depends on."""
        own = self._by_test.get(test_id, [])
        if all(self._steps[index]["op"] in MAKERS for index in own):
            return []
        chosen, waiting, limit = set(own), list(own), len(own) + _MAX_EARLIER_STEPS
        while waiting and len(chosen) < limit:
            index = waiting.pop()
            earlier = [other for handle in self._uses[index] for other in self._by_handle.get(handle, ())]
            earlier += self._by_module.get(self._steps[index].get("module", ""), ())
            new = {other for other in earlier if other < own[-1]} - chosen
            chosen |= new
            waiting += new
        return [self._steps[index] for index in sorted(chosen)]


def _answer(session: Session) -> Dict[str, Any]:
    library, scripts = _Library(session.recorder.steps), []
    for test_id in session.passed:
        steps = library.script(test_id)
        if test_id in session.failed:
            continue
        if not steps:
            session.failed[test_id] = "no step of the package"
            continue
        lost: Dict[str, int] = session.recorder.lost.get(test_id, {})
        public = [{key: value for key, value in step.items() if key != "test"} for step in steps]
        scripts.append({"id": test_id, "steps": public, "lost": dict(lost), "imports": _imports(session, public)})
    for test_id in session.wanted:
        if not any(_selects(test_id, name) for name in (*session.passed, *session.failed)):
            session.failed[test_id] = session.failed.get(_path(test_id), "not run")
    return {"scripts": scripts, "failed": session.failed}


def _selects(wanted: str, test_id: str) -> bool:
    return test_id == wanted or test_id.startswith((wanted + "::", wanted + "["))


def _imports(session: Session, steps: List[Step]) -> List[str]:
    names: Set[str] = set()
    for module, path in _globals([step.get("args") for step in steps] + [step.get("kwargs") for step in steps]):
        names.add(f"{module}:{path}" if path else module)
    encoder = session.recorder.encoder
    return sorted(name for name in names if encoder.is_owned_module(name.partition(":")[0]))


def _globals(content: Any) -> Iterator[Tuple[str, str]]:
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list):
        if len(content) == 3 and content[0] == "g" and isinstance(content[1], str) and isinstance(content[2], str):
            yield content[1], content[2]
        elif len(content) == 2 and content[0] == "m" and isinstance(content[1], str):
            yield content[1], ""
        else:
            for part in content:
                yield from _globals(part)


def main(request: Dict[str, Any]) -> None:
    """Record the tests of ``request`` and write the answer to the standard output of the process."""
    target = os.dup(1)
    os.dup2(2, 1)
    root = os.getcwd()
    sources = [os.path.normpath(os.path.join(root, path)) for path in request["source_paths"]]
    os.environ["PYTHONPATH"] = os.pathsep.join(sources)
    sys.path[:] = sources + [path for path in sys.path if path]
    sys.argv[:] = [request["runner"]]
    sys.dont_write_bytecode = True
    session = Session(request, root)
    sys.meta_path.insert(0, session.finder)
    {"pytest": _run_pytest, "unittest": _run_unittest}[request["runner"]](session)
    session.recorder.stop()
    data = json.dumps(_answer(session)).encode()
    while data:
        data = data[os.write(target, data) :]
    os._exit(0)
