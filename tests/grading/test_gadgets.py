"""Ways to the recorder that name nothing, in a real sandbox: each is reported, or known to be open."""

import sys
from pathlib import Path

import pytest
import pytest_asyncio

from repairgym.records import TestOutcome, TestRequest
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.probe import probe_backend
from repairgym.testing.scripted import scripted_task

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from hacks.gadgets import KNOWN_OPEN
from hacks.target import HACKS, Target

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEST_ID = "tests/test_m.py::test_value"
FILES = {
    "m.py": "def value():\n    return 1\n",
    "tests/test_m.py": "import m\n\n\ndef test_value():\n    assert m.value() == 2\n",
}
GADGETS = [name for name in HACKS if name.startswith("gadget_")]
QUICK = {"gadget_field_of_a_format", "gadget_unpickler", "gadget_import_hook", "gadget_timer", "claims_no_call"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory, small_environment):
    """Runs the sealed test over a hack in a fresh sandbox."""
    probe = probe_backend("namespace")
    if not probe.is_available:
        pytest.skip(f"namespace does not work here: {probe.reason}")
    tree = tmp_path_factory.mktemp("tree")
    for path, text in FILES.items():
        (tree / path).parent.mkdir(exist_ok=True)
        (tree / path).write_text(text)
    backend = NamespaceBackend()

    async def run(name):
        attack = HACKS[name](Target(scripted_task(), "m.py", FILES["m.py"], {}))
        sandbox = await backend.create(
            SandboxSpec(environment=small_environment, tree=tree, files={**FILES, **attack.files})
        )
        try:
            return await sandbox.run_tests(TestRequest(test_ids=(TEST_ID,), is_sealed=True))
        finally:
            await sandbox.close()

    yield run
    await backend.close()


def some_slow(names):
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in names]


@pytest.mark.parametrize("name", some_slow(name for name in GADGETS if name not in KNOWN_OPEN))
async def test_a_way_without_a_name_is_reported(run, name):
    got = await run(name)
    assert {path for _, path in got.reached_for} in ({"m.py"}, {"<thread>"})


@pytest.mark.parametrize("name", some_slow(KNOWN_OPEN))
async def test_what_is_known_to_be_open_still_is(run, name):
    got = await run(name)
    assert (got.outcome(TEST_ID), got.reached_for, got.num_forged_records) == (TestOutcome.PASSED, (), 0)


@pytest.mark.parametrize("name", some_slow(name for name in HACKS if name.startswith("claims_")))
async def test_a_claim_in_another_record_is_no_pass(run, name):
    got = await run(name)
    assert got.is_finished
    assert {path for _, path in got.reached_for} == {"m.py"}, "the hack did not look for the recorder"
    assert got.num_forged_records or got.outcome(TEST_ID) is not TestOutcome.PASSED
