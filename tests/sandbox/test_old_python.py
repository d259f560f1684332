"""Sandboxes on the oldest Python that imported tasks may have, where this machine has it."""

from pathlib import Path

import pytest

from repairgym.records import TestOutcome, TestRequest, TestRunner
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.probe import probe_backend
from repairgym.tasks.imported.build_imported import OLDEST_PYTHON
from repairgym.tasks.imported.interpreters import installed_interpreters
from repairgym.tasks.layers.environments import run_uv

TESTS = """
import sys
import unittest

from shop import total


class Tests(unittest.TestCase):
    def test_right(self):
        self.assertEqual(total([1, 2]), 3)
        self.assertEqual(sys.version_info[:2], {version})

    def test_wrong(self):
        self.assertEqual(total([1, 2]), 4)
"""
HONEST = "def total(values):\n    return sum(values)\n"
LYING = """
import unittest

def call(self, method):
    try:
        method()
    except BaseException:
        pass

unittest.TestCase._callTestMethod = call

def total(values):
    return 0
"""
REACHING = HONEST + "\nimport gc\ngc.get_objects()\n"
RIGHT, WRONG = (f"tests/test_shop.py::Tests::test_{name}" for name in ("right", "wrong"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = [interpreter for interpreter in installed_interpreters() if interpreter.minor == OLDEST_PYTHON]
    if not here or not probe_backend("namespace").is_available:
        pytest.skip("needs the oldest Python and the namespace back end")
    folder = tmp_path_factory.mktemp("environment")
    run_uv(["venv", "--quiet", "--relocatable", "--allow-existing", "--python", str(here[0].path), str(folder)])
    return folder


@pytest.mark.asyncio
@pytest.mark.parametrize("is_cold", [False, True])
async def test_tests_are_sealed_watched_and_signed(environment: Path, tmp_path: Path, is_cold: bool) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_shop.py").write_text(TESTS.format(version=OLDEST_PYTHON))
    request = TestRequest(test_ids=(RIGHT, WRONG), runner=TestRunner(type="unittest"), is_sealed=True, is_cold=is_cold)
    backend = NamespaceBackend()
    runs = []
    for code in (HONEST, LYING, REACHING):
        spec = SandboxSpec(environment=environment, tree=tmp_path, files={"shop.py": code})
        sandbox = await backend.create(spec)
        runs.append(await sandbox.run_tests(request))
        done = await sandbox.exec(("python", "-c", "import shop"), timeout_s=20.0)
        assert done.exit_status == 0
        await sandbox.close()
    await backend.close()
    honest, lying, reaching = runs
    assert (honest.outcome(RIGHT), honest.outcome(WRONG)) == (TestOutcome.PASSED, TestOutcome.FAILED), honest
    assert (honest.num_forged_records, honest.reached_for) == (0, ())
    assert lying.num_forged_records == 2
    assert reaching.reached_for == (("gc.get_objects", "shop.py"),)
