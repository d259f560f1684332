"""Runners for trees that hold their own test program, on hand-made ones of the same shape and a copy of pytest."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import pytest_asyncio

from repairgym.records import TestOutcome, TestRequest, TestRunner
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.probe import probe_backend
from repairgym.testing.environments import copy_environment

pytestmark = pytest.mark.asyncio(loop_scope="module")
DJANGO = TestRunner(type="django")
SYMPY = TestRunner(type="sympy")
FILES = {
    "django/__init__.py": "",
    "django/code.py": "def value():\n    return 1\n",
    "django/test/__init__.py": "",
    "django/test/runner.py": """
import unittest

class DiscoverRunner:
    def run_tests(self, labels):
        suite = unittest.TestLoader().loadTestsFromNames(labels)
        return self.run_suite(suite)

    def run_suite(self, suite, **kwargs):
        raise AssertionError("its own results do not count")
""",
    "django/test/cases.py": """
import sys
import unittest


class Case(unittest.TestCase):
    def __call__(self, result=None):
        if "around" in self._testMethodName:
            try:
                raise OSError("before")
            except OSError:
                result.addError(self, sys.exc_info())
            return
        super().__call__(result)
""",
    "tests/runtests.py": """
import os, sys
from django.test.runner import DiscoverRunner

assert os.getcwd() == os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
assert sys.argv[1:3] == ["--parallel=1", "--verbosity=0"]
if __name__ == "__main__":
    DiscoverRunner().run_tests(sys.argv[3:])
    sys.exit(1)
""",
    "tests/shop/__init__.py": "",
    "tests/shop/broken.py": "import no_such_module\n",
    "tests/shop/tests.py": '''
from django.code import value
from django.test.cases import Case


class Tests(Case):
    def test_right(self):
        """A value is one."""
        self.assertEqual(value(), 1)

    def test_wrong(self):
        self.assertEqual(value(), 2)

    def test_around(self):
        pass

    def test_unasked(self):
        pass
''',
    "sympy/__init__.py": "",
    "sympy/code.py": "def value():\n    return 1\n",
    "sympy/utilities/__init__.py": "",
    "sympy/utilities/exceptions.py": "class SymPyDeprecationWarning(DeprecationWarning):\n    pass\n",
    "sympy/utilities/runtests.py": "",
    "sympy/tests/test_code.py": """
import os
import warnings
from sympy.code import value
from sympy.utilities.exceptions import SymPyDeprecationWarning


class XFail(Exception):
    pass


def test_right():
    assert value() == 1
    assert os.environ["SYMPY_USE_CACHE"] == "no"


def test_wrong():
    assert value() == 2


def test_expected():
    raise XFail("known")


def test_warns():
    warnings.warn("old", SymPyDeprecationWarning)


def test_parts():
    yield int, 1
    yield int, "one"
""",
}
CASES = "tests/shop/tests.py::Tests"
FUNCTIONS = "sympy/tests/test_code.py"
EXPECTED = {
    DJANGO: {
        f"{CASES}::test_right": "passed",
        f"{CASES}::test_wrong": "failed",
        f"{CASES}::test_around": "error",
        f"{CASES}::test_gone": "missing",
        "tests/shop/broken.py::Tests::test_it": "error",
    },
    SYMPY: {
        f"{FUNCTIONS}::test_right": "passed",
        f"{FUNCTIONS}::test_wrong": "failed",
        f"{FUNCTIONS}::test_expected": "skipped",
        f"{FUNCTIONS}::test_warns": "failed",
        f"{FUNCTIONS}::test_parts": "failed",
        f"{FUNCTIONS}::test_gone": "missing",
    },
}
PASSED = {DJANGO: f"{CASES}::test_right", SYMPY: f"{FUNCTIONS}::test_right"}
PACKAGE = {DJANGO: "django", SYMPY: "sympy"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory, small_environment):
    """Runs a request in a fresh sandbox of the tree."""
    probe = probe_backend("namespace")
    if not probe.is_available:
        pytest.skip(f"namespace does not work here: {probe.reason}")
    tree = tmp_path_factory.mktemp("tree")
    for path, text in FILES.items():
        (tree / path).parent.mkdir(exist_ok=True, parents=True)
        (tree / path).write_text(text)
    backend = NamespaceBackend()

    async def run(files=None, **fields):
        sandbox = await backend.create(SandboxSpec(environment=small_environment, tree=tree, files=files or {}))
        try:
            return await sandbox.run_tests(TestRequest(**fields))
        finally:
            await sandbox.close()

    yield run
    await backend.close()


@pytest.mark.parametrize("runner", [DJANGO, SYMPY], ids=lambda runner: runner.type)
@pytest.mark.parametrize(("is_cold", "is_sealed"), [(False, False), (True, True)])
async def test_each_requested_test_has_its_outcome(run, runner, is_cold, is_sealed):
    expected = EXPECTED[runner]
    got = await run(test_ids=tuple(expected), runner=runner, is_cold=is_cold, is_sealed=is_sealed)
    assert {name: str(result.outcome) for name, result in got.results.items()} == expected, got.output_tail
    assert (got.exit_status, got.is_finished, got.num_forged_records) == (1, True, 0)


@pytest.mark.parametrize("runner", [DJANGO, SYMPY], ids=lambda runner: runner.type)
async def test_an_id_of_a_file_stands_for_its_tests(run, runner):
    path = PASSED[runner].partition("::")[0]
    got = await run(test_ids=(path,), runner=runner)
    known = {name for name in EXPECTED[runner] if name.startswith(path) and not name.endswith("gone")}
    assert known <= set(got.results)


@pytest.mark.parametrize("runner", [DJANGO, SYMPY], ids=lambda runner: runner.type)
@pytest.mark.parametrize(
    ("text", "outcomes"),
    [
        ("import os\nos._exit(0)\n", {TestOutcome.MISSING}),
        ("raise SystemExit(0)\n", {TestOutcome.ERROR}),
        ("def value(:\n", {TestOutcome.ERROR}),
    ],
)
async def test_code_that_ends_the_program_has_no_passed_test(run, runner, text, outcomes):
    name = PASSED[runner]
    got = await run({f"{PACKAGE[runner]}/code.py": text}, test_ids=(name,), runner=runner, is_sealed=True)
    assert {got.outcome(name)} == outcomes, got.output_tail


SKIPPING = """
import unittest

def value():
    raise unittest.SkipTest("nothing to see")
"""


@pytest.mark.parametrize("runner", [DJANGO, SYMPY], ids=lambda runner: runner.type)
async def test_code_that_skips_its_test_does_not_pass_it(run, runner):
    name = PASSED[runner]
    got = await run({f"{PACKAGE[runner]}/code.py": SKIPPING}, test_ids=(name,), runner=runner, is_sealed=True)
    assert got.outcome(name) is TestOutcome.SKIPPED


CLAIMING = """
import unittest

def call(self, method):
    try:
        method()
    except BaseException:
        pass

unittest.TestCase._callTestMethod = call

def value():
    raise OSError
"""


@pytest.mark.parametrize("runner", [DJANGO, SYMPY], ids=lambda runner: runner.type)
async def test_a_pass_without_the_end_of_the_body_is_forged(run, runner):
    name = PASSED[runner]
    got = await run({f"{PACKAGE[runner]}/code.py": CLAIMING}, test_ids=(name,), runner=runner, is_sealed=True)
    assert got.outcome(name) is TestOutcome.PASSED
    assert got.num_forged_records == 1


OWN = TestRunner(type="own_pytest")
OWN_FILE = "testing/test_own.py"
OWN_TESTS = """
import os
import sys

import _pytest


def test_right(doctest_namespace):
    assert _pytest.__file__ == os.path.realpath("src/_pytest/__init__.py")


def test_wrong():
    assert sys.version_info is None


def test_inner(pytester, request):
    assert request.config.pluginmanager.import_plugin("pastebin") is None
    assert request.config.pluginmanager.hasplugin("pastebin")
    pytester.makepyfile("def test_x(): assert [1] == [2]")
    pytester.runpytest_inprocess().assert_outcomes(failed=1)


def test_example(pytester):
    assert pytester.copy_example("one.py").read_text() == "def test_one(): pass"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run_own(tmp_path_factory):
    """Runs a request over a tree with pytest in it, in an environment without."""
    if not probe_backend("namespace").is_available:
        pytest.skip("needs the namespace back end")
    tree = tmp_path_factory.mktemp("own")
    for name in ("pytest", "_pytest"):
        shutil.copytree(Path(find_spec(name).origin).parent, tree / "src" / name)
    shutil.copy(find_spec("py").origin, tree / "src")
    (tree / "testing").mkdir()
    (tree / OWN_FILE).write_text(OWN_TESTS)
    (tree / "testing/examples").mkdir()
    (tree / "testing/examples/one.py").write_text("def test_one(): pass")
    environment = copy_environment(
        tmp_path_factory.mktemp("bare") / "env", ("pluggy", "iniconfig", "packaging", "pygments")
    )
    backend = NamespaceBackend()

    async def run(files=None, **fields):
        sandbox = await backend.create(SandboxSpec(environment=environment, tree=tree, files=files or {}))
        given = {"source_paths": ("src",), "plugins": ("pytester",), "is_sealed": True, "runner": OWN}
        try:
            return await sandbox.run_tests(TestRequest(**{**given, **fields}))
        finally:
            await sandbox.close()

    yield run
    await backend.close()


@pytest.mark.parametrize("is_cold", [False, True])
async def test_pytest_of_the_tree_runs_its_own_tests(run_own, is_cold):
    ids = tuple(f"{OWN_FILE}::test_{name}" for name in ("right", "wrong", "inner"))
    got = await run_own(test_ids=ids, is_cold=is_cold)
    assert [str(got.outcome(name)) for name in ids] == ["passed", "failed", "passed"], got.output_tail
    assert (got.exit_status, got.is_finished, got.num_forged_records) == (1, True, 0)


async def test_pytest_of_the_tree_that_passes_everything_is_forged(run_own):
    text = Path(find_spec("_pytest.python").origin).read_text()
    place = "    def runtest(self) -> None:\n"
    assert place in text
    lying = text.replace(place, place + "        return\n")
    got = await run_own({"src/_pytest/python.py": lying}, test_ids=(f"{OWN_FILE}::test_wrong",))
    assert got.outcome(f"{OWN_FILE}::test_wrong") is TestOutcome.PASSED
    assert got.num_forged_records == 1


async def test_settings_of_the_request_reach_pytest(run_own):
    name = f"{OWN_FILE}::test_example"
    assert (await run_own(test_ids=(name,))).outcome(name) is TestOutcome.FAILED
    runner = OWN.model_copy(update={"settings": (("pytester_example_dir", "testing/examples"),)})
    assert (await run_own(test_ids=(name,), runner=runner)).outcome(name) is TestOutcome.PASSED
