"""The supervisor in a real sandbox: what tested code sees of the tests, and which of its claims count."""

import pytest
import pytest_asyncio

from repairgym.records import TestOutcome, TestRequest, TestRunner
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.probe import probe_backend

pytestmark = pytest.mark.asyncio(loop_scope="module")
TESTS = """import unittest

import m


class TestM(unittest.TestCase):
    def test_first(self):
        self.assertEqual(m.look("a late " + "secret"), [])

    def test_late(self):
        self.assertEqual(m.value(), "a late secret")
"""
LOOKING = """import gc, glob, os, types

def value():
    return "a late secret"[:6] + " secret"

def look(text):
    files = [path for path in glob.glob("/testbed/**", recursive=True) if os.path.isfile(path) and "/m.py" not in path]
    found = [path for path in files if text in open(path, errors="replace").read()]
    codes = [part.__code__ for part in gc.get_objects() if isinstance(part, types.FunctionType)]
    return found + [code for code in codes if text in code.co_consts and code.co_name == "test_late"]
"""
# Turns every failure, at the place where records leave.
TURNING = """import gc

def value():
    return "wrong"

def look(text):
    return ["wrong"]

def turned(write):
    return lambda record: write({**record, **({"outcome": "passed"} if record.get("phase") == "call" else {})})

for part in gc.get_objects():
    name = {"Recorder": "_write", "RecordingResult": "write"}.get(type(part).__name__)
    if name:
        setattr(part, name, turned(getattr(part, name)))
"""
INHERITING = """import unittest

from tests import base, test_m


class TestInherited(test_m.TestM):
    def test_other(self):
        self.assertEqual(1, 1)


class TestCalling(unittest.TestCase):
    def test_called(self):
        test_m.TestCalled("test_by_name").test_by_name()


class TestOfBase(base.Base):
    pass


class TestLike(unittest.TestCase):
    def test_of_base(self):
        self.assertEqual(1, 1)
"""
BASE = """import unittest


class Base(unittest.TestCase):
    def test_of_base(self):
        self.assertEqual(3, 3)
"""
FIRST, LATE = (f"tests/test_m.py::TestM::test_{name}" for name in ("first", "late"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory, small_environment):
    """Runs the sealed tests over a module in a fresh sandbox."""
    probe = probe_backend("namespace")
    if not probe.is_available:
        pytest.skip(f"namespace does not work here: {probe.reason}")
    tree = tmp_path_factory.mktemp("tree")
    (tree / "tests").mkdir()
    (tree / "tests/test_m.py").write_text(TESTS)
    (tree / "m.py").write_text("")
    backend = NamespaceBackend()

    async def run(module, files=None, **fields):
        files = {"m.py": module, "tests/test_m.py": TESTS, **(files or {})}
        sandbox = await backend.create(SandboxSpec(environment=small_environment, tree=tree, files=files))
        try:
            return await sandbox.run_tests(TestRequest(**{"test_ids": (FIRST, LATE), "is_sealed": True, **fields}))
        finally:
            await sandbox.close()

    yield run
    await backend.close()


@pytest.mark.parametrize(("runner", "is_cold"), [("pytest", False), ("pytest", True), ("unittest", False)])
async def test_a_body_is_in_no_file_and_in_no_function_before_its_test(run, runner, is_cold):
    got = await run(LOOKING, runner=TestRunner(type=runner), is_cold=is_cold)
    assert {name: result.outcome for name, result in got.results.items()} == dict.fromkeys(
        (FIRST, LATE), TestOutcome.PASSED
    )
    assert (got.num_forged_records, got.is_finished, got.exit_status) == (0, True, 0)


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
async def test_bodies_are_inherited_and_called_across_files(run, runner):
    called = "\n\nclass TestCalled(unittest.TestCase):\n    def test_by_name(self):\n        self.assertEqual(2, 2)\n"
    files = {
        "tests/test_m.py": TESTS + called,
        "tests/test_n.py": INHERITING,
        "tests/base.py": BASE,
        "tests/__init__.py": "",
    }
    inherited = "tests/test_n.py::TestInherited::test_late"
    ids = (LATE, "tests/test_m.py::TestCalled::test_by_name", inherited, "tests/test_n.py::TestCalling::test_called")
    # One from a file that is not sealed, whose name another class of its own file has, too.
    ids += ("tests/test_n.py::TestOfBase::test_of_base", "tests/test_n.py::TestLike::test_of_base")
    got = await run(LOOKING, runner=TestRunner(type=runner), test_ids=ids, files=files)
    assert {name: result.outcome for name, result in got.results.items()} == dict.fromkeys(ids, TestOutcome.PASSED)
    assert got.num_forged_records == 0
    turned = await run(TURNING, runner=TestRunner(type=runner), test_ids=(LATE, inherited), files=files)
    assert turned.num_forged_records == 2


async def test_without_the_seal_it_would_be_seen(run):
    got = await run(LOOKING, is_sealed=False)
    assert got.outcome(FIRST) is TestOutcome.FAILED


FLOODING = """import gc

def value():
    return "a late secret"

def look(text):
    return []

for part in gc.get_objects():
    if type(part).__name__ == "Link" and hasattr(part, "fetch"):
        for _ in range(NUM):
            part.write({"id": "x", "message": "y" * SIZE})
"""


@pytest.mark.parametrize(
    ("num", "size", "is_heard"), [(1, 60_000, True), (1, 1 << 20, True), (1, 9 << 20, True), (700, 60_000, False)]
)
async def test_long_records_are_forged_and_too_many_of_them_end_the_hearing(run, num, size, is_heard):
    got = await run(FLOODING.replace("NUM", str(num)).replace("SIZE", str(size)))
    assert (got.num_forged_records > 0) == (size > 60_000 or not is_heard)
    outcome = TestOutcome.PASSED if is_heard and size < 8 << 20 else TestOutcome.MISSING
    assert {got.outcome(FIRST), got.outcome(LATE)} == {outcome}


@pytest.mark.parametrize("is_cold", [False, True])
async def test_a_configuration_serves_one_run(run, is_cold):
    conftest = "def pytest_addoption(parser):\n    parser.addoption('--size', default=3)\n"
    tests = """import pytest

INNER = "def test_it(pytestconfig):\\n    assert not hasattr(pytestconfig.option, 'size')"

def test_option(pytestconfig):
    assert pytestconfig.getoption("--size") == 3

def test_another_run(tmp_path):
    (tmp_path / "test_inner.py").write_text(INNER)
    assert pytest.main(["-q", f"--rootdir={tmp_path}", "-p", "no:cacheprovider", str(tmp_path)]) == 0
"""
    files = {"tests/conftest.py": conftest, "tests/test_o.py": tests, "tests/test_broken.py": "raise SystemExit"}
    ids = ("tests/test_o.py::test_option", "tests/test_o.py::test_another_run")
    got = await run("", test_ids=ids, files=files, is_cold=is_cold)
    assert {name: result.outcome for name, result in got.results.items()} == dict.fromkeys(ids, TestOutcome.PASSED)
    assert got.is_finished


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
async def test_a_claimed_pass_without_the_end_of_the_body_is_forged(run, runner):
    got = await run(TURNING, runner=TestRunner(type=runner))
    assert got.outcome(LATE) is TestOutcome.PASSED
    assert got.num_forged_records == 2


async def test_the_supervisor_is_out_of_reach(run):
    module = """import os

def value():
    return "a late secret"

def look(text):
    parent, found = os.getppid(), []
    for name in ("mem", "maps", "environ", "fd/3"):
        try:
            open(f"/proc/{parent}/{name}", "rb").read(1)
            found.append(name)
        except OSError:
            pass
    return found + ([] if parent != 1 else ["no supervisor"])
"""
    got = await run(module)
    assert got.outcome(FIRST) is TestOutcome.PASSED, got.results[FIRST].message


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
async def test_the_runner_is_not_found_by_name(run, runner):
    module = """import io, pickle

def value():
    return "a late secret"

def look(text):
    found = []
    for name in ("start", "supervisor"):
        try:
            found.append(pickle.Unpickler(io.BytesIO()).find_class("repairgym_guest.runners", name))
        except ImportError:
            pass
    return found
"""
    got = await run(module, runner=TestRunner(type=runner))
    assert got.outcome(FIRST) is TestOutcome.PASSED, got.results[FIRST].message


async def test_without_the_supervisor_there_are_no_results(run):
    got = await run("import os\n\ndef look(text):\n    os.kill(os.getppid(), 9)\n")
    assert {result.outcome for result in got.results.values()} == {TestOutcome.MISSING}
    assert not got.is_finished


# Each says in a way of its own that the test which failed, with `record`, has passed.
CLAIMS = {
    "with a count that takes the forged record back": """
def claim(record, write):
    write({"num_forged": -1})
    write({**record, "outcome": "passed"})
""",
    "outside of a phase": """
def claim(record, write):
    write({"id": record["id"], "outcome": "passed", "message": "", "duration_s": 0.0})
""",
    "without a call": """
def claim(record, write):
    pass
""",
    "as a list of tests": """
def claim(record, write):
    write({"selected": 5})
    write({"selected": [record["id"]]})
    write({"phase": "call", "outcome": "passed"})
""",
}
CLAIMING = """import gc

passing_by = []

def value():
    return "wrong"

def look(text):
    return [] if passing_by else ["no record came by, so that nothing is tried here"]

def turned(write):
    def told(record):
        passing_by.append(record)
        claim(record, write) if record.get("outcome") == "failed" else write(record)
    return told

for part in gc.get_objects():
    if type(part).__name__ == "Recorder":
        part._write = turned(part._write)
"""


@pytest.mark.parametrize("how", CLAIMS)
async def test_a_pass_is_claimed_in_no_other_way(run, how):
    got = await run(CLAIMS[how] + CLAIMING)
    assert got.outcome(FIRST) is TestOutcome.PASSED, "the attack did not reach the records"
    assert got.num_forged_records or got.outcome(LATE) is not TestOutcome.PASSED, got


LOOKING_AHEAD = """import gc

def value():
    return "a late secret"

def look(text):
    return found

def turned(link, write):
    def told(record):
        if "selected" in record:
            names = [name.rpartition("::")[2] for name in record["selected"]]
            peeks = [f"tests/test_m.py::Peek{number}::{name}" for number, name in enumerate(names)]
            write({"selected": [*peeks, *record["selected"]]})
            found.extend(code for peek in peeks for _, _, code in link.fetch(peek) if text in code.co_consts)
        else:
            write(record)
    return told

found, text = [], "a late " "secret"
for part in gc.get_objects():
    if type(part).__name__ == "Recorder":
        part._write = turned(part._opener._link, part._write)
"""


async def test_no_body_is_handed_out_for_a_test_that_nobody_asked_for(run):
    got = await run(LOOKING_AHEAD)
    # Without an announced order no test gets its body, and the claims count.
    assert not got.passes((FIRST, LATE))
    assert got.num_forged_records
