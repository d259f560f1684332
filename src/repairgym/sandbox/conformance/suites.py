"""Test runs: outcomes, ids, deadlines, tracing, and that warm agrees with cold."""

from repairgym.records import TestOutcome, TestRequest, TestRun
from repairgym.sandbox.base import Sandbox
from repairgym.sandbox.conformance.runs import require
from repairgym.sandbox.conformance.site import Site, on_sandbox, on_site

_FILE = "tests/test_prices.py"
_SLOW = tuple(f"tests/test_slow.py::test_{name}" for name in ("first", "endless", "last"))
_EXPECTED: dict[str, tuple[TestOutcome, str]] = {
    f"{_FILE}::test_total": (TestOutcome.PASSED, ""),
    f"{_FILE}::test_wrong": (TestOutcome.FAILED, "assert 3 == 4"),
    f"{_FILE}::test_raises": (TestOutcome.FAILED, "TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'"),
    f"{_FILE}::test_error": (TestOutcome.ERROR, "OSError: no fixture"),
    f"{_FILE}::test_skipped": (TestOutcome.SKIPPED, "Skipped: not today"),
    f"{_FILE}::test_expected": (TestOutcome.PASSED, ""),
    f"{_FILE}::test_words[two words]": (TestOutcome.PASSED, ""),
    f"{_FILE}::test_words[br[ack]et]": (TestOutcome.PASSED, ""),
    f"{_FILE}::test_words[a::b]": (TestOutcome.PASSED, ""),
    f"{_FILE}::test_words[caf\\xe9]": (TestOutcome.PASSED, ""),
    f"{_FILE}::test_fixtures": (TestOutcome.PASSED, ""),
    f"{_FILE}::TestCase::test_method": (TestOutcome.PASSED, ""),
    f"{_FILE}::test_no_such": (TestOutcome.MISSING, ""),
    f"{_FILE}::test_words[no such]": (TestOutcome.MISSING, ""),
    "tests/no_such_file.py::test_x": (TestOutcome.MISSING, ""),
    "tests/test_import.py::test_never": (
        TestOutcome.ERROR,
        "ModuleNotFoundError: No module named 'no_such_module'",
    ),
}
_OTHERS = """
def test_called():
    values = [1]
    assert values == [2]


def test_calls():
    test_called()


class TestNamed:
    def test_it(self):
        values = [1]
        assert values == [2]
"""


async def _run(sandbox: Sandbox, *test_ids: str, **options: object) -> TestRun:
    return await sandbox.run_tests(TestRequest.model_validate({"test_ids": test_ids, **options}))


def _summary(run: TestRun) -> dict[str, tuple[TestOutcome, str]]:
    return {test_id: (result.outcome, result.message) for test_id, result in run.results.items()}


def _require_outcomes(run: TestRun, expected: dict[str, TestOutcome]) -> None:
    got = {test_id: run.outcome(test_id) for test_id in expected}
    require(got == expected, f"{expected}", got)


@on_sandbox()
async def outcomes(sandbox: Sandbox) -> None:
    """Each requested test has its outcome and message, whatever the others do."""
    got = _summary(await _run(sandbox, *_EXPECTED))
    for test_id, expected in _EXPECTED.items():
        require(got.get(test_id) == expected, f"{test_id}: {expected}", got.get(test_id))
    require(set(got) == set(_EXPECTED), "the requested ids only", set(got) ^ set(_EXPECTED))


@on_site()
async def warm_equals_cold(site: Site) -> None:
    """A run in a fork of the warm interpreter agrees with a new interpreter."""
    async with site.sandbox() as first, site.sandbox() as second:
        warm, cold = await _run(first, *_EXPECTED), await _run(second, *_EXPECTED, is_cold=True)
    require(_summary(warm) == _summary(cold), "equal outcomes", (_summary(warm), _summary(cold)))
    require(warm.exit_status == cold.exit_status == 1, "exit status 1", (warm.exit_status, cold.exit_status))


@on_sandbox({"tests/test_crash.py": None, "tests/test_slow.py": None})
async def whole_suite(sandbox: Sandbox) -> None:
    """Without ids every collected test has a result, and a file that cannot be imported has one too."""
    run = await _run(sandbox)
    requested = {test_id for test_id, (outcome, _) in _EXPECTED.items() if outcome is not TestOutcome.MISSING}
    expected = requested - {"tests/test_import.py::test_never"} | {"tests/test_import.py"}
    require(set(run.results) == expected, f"{expected}", set(run.results))
    _require_outcomes(run, {f"{_FILE}::test_total": TestOutcome.PASSED, "tests/test_import.py": TestOutcome.ERROR})


@on_sandbox()
async def selectors(sandbox: Sandbox) -> None:
    """The id of a file, class or parametrized function stands for its tests."""
    expected = dict.fromkeys((f"{_FILE}::test_words", f"{_FILE}::TestCase"), TestOutcome.PASSED)
    expected["tests/test_import.py"] = TestOutcome.ERROR
    run = await _run(sandbox, *expected)
    _require_outcomes(run, expected)
    require(f"{_FILE}::test_words[a::b]" in run.results, "the members too", run.results)
    require(f"{_FILE}::test_total" not in run.results, "no other test", run.results)


@on_sandbox()
async def test_deadline(sandbox: Sandbox) -> None:
    """A test that does not end fails, and the next one runs."""
    run = await _run(sandbox, *_SLOW, test_timeout_s=0.3)
    got = [_summary(run)[name] for name in _SLOW]
    expected = [(TestOutcome.PASSED, ""), (TestOutcome.FAILED, "timed out"), (TestOutcome.PASSED, "")]
    require(got == expected, f"{expected}", got)


@on_sandbox()
async def run_deadline(sandbox: Sandbox) -> None:
    """A stopped run keeps its results."""
    for timeout_s in (0.5, 2.0, 10.0, 40.0):
        run = await _run(sandbox, *_SLOW, timeout_s=timeout_s)
        # On a busy machine a new interpreter may need longer than that to come to the first test.
        if run.outcome(_SLOW[0]) is not TestOutcome.MISSING:
            break
    require(run.is_timed_out and run.exit_status is None, "a timeout", run)
    _require_outcomes(run, {**dict.fromkeys(_SLOW, TestOutcome.MISSING), _SLOW[0]: TestOutcome.PASSED})


@on_sandbox()
async def stop_at_failure(sandbox: Sandbox) -> None:
    """A run ends after the first failure of a test that is to stop it; other failures do not."""
    names = [f"{_FILE}::{name}" for name in ("test_total", "test_wrong", "test_raises", "test_expected")]
    outcomes = [TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.FAILED, TestOutcome.MISSING]
    run = await _run(sandbox, *names, stop_ids=(names[0], *names[2:]))
    require(run.is_stopped and run.exit_status is None and run.signal is None, "a stop", run)
    _require_outcomes(run, dict(zip(names, outcomes, strict=True)))
    run = await _run(sandbox, *names, stop_ids=(names[0], names[3]))
    require(not run.is_stopped and run.exit_status == 1, "no stop", run)
    _require_outcomes(run, dict(zip(names, [*outcomes[:3], TestOutcome.PASSED], strict=True)))


@on_sandbox()
async def crash(sandbox: Sandbox) -> None:
    """A test that kills the interpreter is missing; earlier results count."""
    file = "tests/test_crash.py"
    expected = {f"{file}::test_before": TestOutcome.PASSED, f"{file}::test_crash": TestOutcome.MISSING}
    run = await _run(sandbox, *expected)
    require(run.signal == 6, "signal 6", run)
    _require_outcomes(run, expected)


@on_sandbox()
async def traced_functions(sandbox: Sandbox) -> None:
    """Functions of the named files are reported for the tests that executed them."""
    names = (f"{_FILE}::test_total", f"{_FILE}::test_expected")
    run = await _run(sandbox, *names, traced_paths=("shop/prices.py",))
    expected = {names[0]: ("shop/prices.py::1",), names[1]: ()}
    require(run.executed_functions == expected, f"{expected}", run.executed_functions)


@on_sandbox()
async def changes_are_seen(sandbox: Sandbox) -> None:
    """A test run sees earlier changes, also when the same sandbox ran tests already."""
    name = f"{_FILE}::test_wrong"
    first = await _run(sandbox, name)
    await sandbox.write_file("shop/prices.py", b"def total(values):\n    return 4\n")
    second = await _run(sandbox, name)
    require(not first.passes((name,)) and second.passes((name,)), "failed, passed", (first, second))


@on_site()
async def broken_files(site: Site) -> None:
    """A conftest or test file that cannot be imported is an error of the requested tests, with the exception."""
    name = f"{_FILE}::test_total"
    for path, text, expected in (
        ("tests/conftest.py", "raise KeyError('boom')\n", "KeyError: 'boom'"),
        (_FILE, "def broken(:\n    pass\n", "SyntaxError: invalid syntax"),
        ("shop/prices.py", "import os\n", "ImportError: cannot import name 'total' from 'shop.prices' "),
    ):
        async with site.sandbox({path: text}) as sandbox:
            got = (await _run(sandbox, name)).results[name]
            is_named = got.outcome is TestOutcome.ERROR and got.message.startswith(expected)
            require(is_named, f"error {expected}", got)


@on_sandbox({"tests/test_others.py": _OTHERS})
async def other_tests(sandbox: Sandbox) -> None:
    """An unrequested test decides alike when another calls it, unexplained; a requested one is explained."""
    names = ("tests/test_others.py::test_calls", "tests/test_others.py::TestNamed::test_it")
    got = _summary(await _run(sandbox, *names))
    failed = [(TestOutcome.FAILED, "AssertionError"), (TestOutcome.FAILED, "assert [1] == [2]")]
    require([got[name] for name in names] == failed, f"{failed}", got)
