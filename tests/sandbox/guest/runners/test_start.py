"""The runners inside a real sandbox: unittest as pytest, warm as cold, and the checks before the tests."""

import runpy

import pytest
import pytest_asyncio

from repairgym.records import TestRequest, TestRunner
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.guest.deadlines import scheduled
from repairgym.sandbox.guest.runners.start import FunctionTracer
from repairgym.sandbox.probe import probe_backend

pytestmark = pytest.mark.asyncio(loop_scope="module")
FILES = {
    "shop/__init__.py": "",
    "shop/prices.py": "def total(values):\n    return sum(values)\n",
    "tests/test_prices.py": """
import time
import unittest

from shop.prices import total


class TestTotal(unittest.TestCase):
    def test_right(self):
        self.assertEqual(total([1, 2]), 3)

    def test_wrong(self):
        self.assertEqual(total([1, 2]), 4)

    def test_raises(self):
        total([None])

    @unittest.skip("not today")
    def test_skipped(self):
        pass

    @unittest.expectedFailure
    def test_expected(self):
        self.fail()

    @unittest.expectedFailure
    def test_unexpected(self):
        pass

    def test_parts(self):
        for value in range(3):
            with self.subTest(value=value):
                self.assertNotEqual(value, 1)

    def test_endless(self):
        while True:
            try:
                time.sleep(60)
            except Exception:
                pass

    class TestInner(unittest.TestCase):
        def test_never_collected(self):
            pass


class TestSetUp(unittest.TestCase):
    def setUp(self):
        raise OSError("no shop")

    def test_it(self):
        pass


class TestSetUpClass(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise OSError("no class")

    def test_it(self):
        pass


class TestTearDown(unittest.TestCase):
    def tearDown(self):
        raise OSError("not gone")

    def test_it(self):
        pass
""",
    "tests/test_broken.py": "import no_such_module\n",
}
FILE = "tests/test_prices.py"
EXPECTED = {
    f"{FILE}::TestTotal::test_right": ("passed", ""),
    f"{FILE}::TestTotal::test_wrong": ("failed", "AssertionError: 3 != 4"),
    f"{FILE}::TestTotal::test_raises": ("failed", "TypeError: unsupported operand"),
    f"{FILE}::TestTotal::test_skipped": ("skipped", "Skipped: not today"),
    f"{FILE}::TestTotal::test_expected": ("passed", ""),
    f"{FILE}::TestTotal::test_unexpected": ("failed", "Unexpected success"),
    f"{FILE}::TestTotal::test_parts": ("failed", "AssertionError: 1 == 1"),
    f"{FILE}::TestTotal::test_endless": ("failed", "timed out"),
    f"{FILE}::TestSetUp::test_it": ("error", "OSError: no shop"),
    f"{FILE}::TestSetUpClass::test_it": ("error", "OSError: no class"),
    f"{FILE}::TestTearDown::test_it": ("error", "OSError: not gone"),
    f"{FILE}::TestTotal::test_gone": ("missing", ""),
    "tests/test_broken.py::TestNever::test_it": ("error", "ModuleNotFoundError: No module named 'no_such_module'"),
    "tests/no_such_file.py::TestNever::test_it": ("missing", ""),
}
UNITTEST = TestRunner(type="unittest")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory, small_environment):
    """Runs a request in a fresh sandbox of the tree."""
    probe = probe_backend("namespace")
    if not probe.is_available:
        pytest.skip(f"namespace does not work here: {probe.reason}")
    tree = tmp_path_factory.mktemp("tree")
    for path, text in FILES.items():
        (tree / path).parent.mkdir(exist_ok=True)
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


@pytest.mark.parametrize("is_cold", [False, True])
async def test_unittest_outcomes(run, is_cold):
    got = await run(test_ids=tuple(EXPECTED), runner=UNITTEST, is_cold=is_cold, test_timeout_s=1.0)
    assert {name: result.outcome for name, result in got.results.items()} == {
        name: outcome for name, (outcome, _) in EXPECTED.items()
    }
    for name, (_, message) in EXPECTED.items():
        assert got.results[name].message.startswith(message), name
    assert (got.exit_status, got.is_finished, got.num_forged_records) == (1, True, 0)


async def test_unittest_selects_by_class_and_traces(run):
    name = f"{FILE}::TestTotal::test_right"
    got = await run(test_ids=(name,), runner=UNITTEST, traced_paths=("shop/prices.py",))
    assert (got.exit_status, set(got.results)) == (0, {name})
    assert got.executed_functions == {name: ("shop/prices.py::1",)}


STARVED = """
import os
import time


def test_starved():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    others = [spin() for _ in range(3)]
    start, end_s = time.monotonic(), time.process_time() + 0.1
    while time.process_time() < end_s:
        pass
    clock_s = time.monotonic() - start
    for child in others:
        os.kill(child, 9)
        os.waitpid(child, 0)
    raise ValueError(clock_s)


def spin():
    child = os.fork()
    end_s = time.monotonic() + 20
    while not child and time.monotonic() < end_s:
        pass
    return child or os._exit(0)
"""


@pytest.mark.skipif(not scheduled(["self"]).running_s, reason="this kernel keeps no counts of the scheduler")
async def test_waits_for_a_processor_are_no_time_of_a_test(run):
    """Four processes on one processor: 0.1 s of work takes four times as long by the clock."""
    name = "tests/test_starved.py::test_starved"
    got = await run(files={"tests/test_starved.py": STARVED}, test_ids=(name,), test_timeout_s=5.0)
    result = got.results[name]
    assert 0.0 < result.duration_s < 0.7 * float(result.message.removeprefix("ValueError: ")), result


@pytest.mark.parametrize("runner", [TestRunner(), UNITTEST])
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {"compile": ("passed", ""), "import": ("passed", "")}),
        (
            {"shop/prices.py": "def total(:\n"},
            {"compile": ("failed", "shop/prices.py:1: SyntaxError: invalid syntax"), "import": ("passed", "")},
        ),
        (
            {"shop/__init__.py": "import no_such_module\n"},
            {
                "compile": ("passed", ""),
                "import": ("failed", "shop/__init__.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
            },
        ),
        (
            {"shop/__init__.py": "raise SystemExit(0)\n"},
            {"compile": ("passed", ""), "import": ("failed", "shop/__init__.py:1: SystemExit: 0")},
        ),
    ],
)
async def test_checks_before_the_tests(run, runner, files, expected):
    got = await run(
        files,
        test_ids=(f"{FILE}::TestTotal::test_right",),
        runner=runner,
        compiled_paths=("shop/__init__.py", "shop/prices.py"),
        imported_modules=("shop",),
    )
    assert {name: (result.outcome, result.message) for name, result in got.checks.items()} == expected


async def test_equal_functions_of_two_files_are_two(tmp_path):
    """Code objects compare equal where name, line and text are, whatever their file is."""
    functions = []
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text("def f():\n    return 1\n")
        functions.append(runpy.run_path(str(tmp_path / name))["f"])
    tracer = FunctionTracer(str(tmp_path), ("first.py", "second.py"))
    seen = []
    for function in (*functions, *reversed(functions)):
        tracer.start()
        function()
        seen.append(tracer.stop())
    assert seen == [["first.py::1"], ["second.py::1"], ["second.py::1"], ["first.py::1"]]
