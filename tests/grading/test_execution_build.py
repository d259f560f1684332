"""Build gate, runners and canaries through real sandboxes."""

import pytest
import pytest_asyncio

from repairgym.config.pipeline import GradingConfig
from repairgym.errors import TaskError
from repairgym.grading.grader import Grader
from repairgym.records import BuildStep, TestRunner, VerdictKind
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.sandbox.probe import probe_backend
from repairgym.tasks.build.build_steps import candidate_steps, check_gold_builds, import_name, with_checks
from repairgym.tasks.build.validation import TaskLayers, task_request

pytestmark = pytest.mark.asyncio(loop_scope="module")
GOLD = {"m.py": "def f(a, b):\n    return a <= b\n"}
TESTS = {
    "test_m.py": "import m\n\n\ndef test_f():\n    assert m.f(1, 1)\n\n\ndef test_g():\n    assert m.f(1, 2)\n",
    "test_u.py": (
        "import unittest\n\nimport m\n\n\nclass TestF(unittest.TestCase):\n    def test_f(self):\n"
        "        self.assertTrue(m.f(1, 1))\n\n    def test_g(self):\n        self.assertTrue(m.f(1, 2))\n"
    ),
}
DEFAULT = (BuildStep(kind="compile"), BuildStep(kind="import", modules=("m",)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend():
    probe = probe_backend("namespace")
    if not probe.is_available:
        pytest.skip(f"namespace does not work here: {probe.reason}")
    backend = NamespaceBackend()
    yield backend
    await backend.close()


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    for path, text in TESTS.items():
        (folder / path).write_text(text)
    return folder


@pytest.fixture
def tested(task):
    return task.model_copy(update={"pass_to_pass": ("test_m.py::test_g",), "build": DEFAULT})


@pytest.fixture
def in_unittest(task):
    lists = {"fail_to_pass": ("test_u.py::TestF::test_f",), "pass_to_pass": ("test_u.py::TestF::test_g",)}
    return task.model_copy(update={**lists, "test_paths": ("test_u.py",), "runner": TestRunner(type="unittest")})


@pytest.fixture
def grade(backend, tree, small_environment):
    def make_spec(task, files):
        return SandboxSpec(environment=small_environment, tree=tree, files=files)

    async def grade(task, files, **config):
        return await Grader(backend, make_spec, GradingConfig(**config), ExecutionCache()).grade(task, files)

    return grade


async def test_the_default_steps_pass_on_gold(tested, grade):
    verdict = await grade(tested, GOLD)
    assert verdict.kind is VerdictKind.PASSED
    assert [(step.kind, step.command, step.exit_status) for step in verdict.build] == [
        ("compile", ("compile", "m.py"), 0),
        ("import", ("import", "m"), 0),
    ]


async def test_a_file_that_does_not_compile_fails_the_build_even_when_no_test_reads_it(tested, grade):
    verdict = await grade(tested, {**GOLD, "n.py": "def g(:\n"})
    assert (verdict.kind, verdict.reason) == (
        VerdictKind.FAILED,
        "build step failed: compile: n.py:1: SyntaxError: invalid syntax",
    )
    assert (verdict.main_error.error_class, verdict.main_error.line) == ("build_tool", 1)


async def test_a_command_is_a_gate_with_exit_status_log_and_main_error(tested, grade):
    step = BuildStep(kind="lint", command=("python", "-c", "import sys; print('ok'); sys.exit('a.py:3:1: E999 bad')"))
    verdict = await grade(tested.model_copy(update={"build": (step, *DEFAULT)}), GOLD)
    assert verdict.reason == "build step failed: lint: a.py:3: E999 bad"
    assert (verdict.build[0].exit_status, verdict.build[0].log) == (1, "ok\na.py:3:1: E999 bad\n")
    assert len(verdict.build) == 1
    assert verdict.tests == {}


async def test_a_command_has_a_time_limit_and_a_bounded_log(tested, grade):
    endless = BuildStep(command=("python", "-c", "while True: print('x' * 99)"), timeout_s=1.0)
    verdict = await grade(tested.model_copy(update={"build": (endless,)}), GOLD)
    step = verdict.build[0]
    assert (step.is_timed_out, step.exit_status, step.main_error.message) == (True, None, "took longer than 1 s")
    assert len(step.log) < 5000


async def test_a_build_cannot_prepare_the_tests(tested, grade):
    """What a checking step leaves behind is gone; what a step with products leaves behind is restored."""
    hook = "def pytest_collection_modifyitems(items): items[:] = []"
    texts = {"conftest.py": hook, "product.py": "", "test_m.py": "def test_f(): pass"}
    program = f"import pathlib; [pathlib.Path(p).write_text(t) for p, t in {texts!r}.items()]"
    for has_products in (False, True):
        step = BuildStep(command=("python", "-c", program), has_products=has_products)
        built = tested.model_copy(update={"build": (step,)})
        assert (await grade(built, GOLD)).kind is VerdictKind.PASSED
        assert (await grade(built, {})).kind is VerdictKind.FAILED


async def test_products_of_a_build_reach_the_tests(tested, grade):
    left = ("conftest.py", "tests/helper.py", "stale.pyc", "__pycache__/m.cpython-311.pyc", "product.py", "fast.so")
    make = (
        "import pathlib as l, sys; [(l.Path(p).parent.mkdir(exist_ok=True), l.Path(p).touch()) for p in sys.argv[1:]]"
    )
    step = BuildStep(command=("python", "-c", make, *left), has_products=True)
    look = "import os, sys; sys.exit([p for p in sys.argv[1:] if os.path.exists(p)] != ['product.py', 'fast.so'])"
    runner = TestRunner(type="exit_code", command=("python", "-c", look, *left))
    asked = tested.model_copy(
        update={"build": (step,), "runner": runner, "fail_to_pass": ("left",), "pass_to_pass": ()}
    )
    assert (await grade(asked, GOLD)).kind is VerdictKind.PASSED


async def test_products_reach_the_tests(tested, grade, tree):
    step = BuildStep(command=("python", "-c", "open('made.py', 'w').write('LIMIT = 1')"))
    needs = {"m.py": "import made\n\n\ndef f(a, b):\n    return a <= b * made.LIMIT\n"}
    for has_products, kind in ((True, VerdictKind.PASSED), (False, VerdictKind.FAILED)):
        built = step.model_copy(update={"has_products": has_products})
        assert (await grade(tested.model_copy(update={"build": (built,)}), needs)).kind is kind


@pytest.mark.parametrize("is_cold", [False, True])
async def test_unittest_verdicts_with_canaries(in_unittest, grade, is_cold):
    for seed in range(2):
        verdict = await grade(in_unittest, GOLD, is_cold=is_cold, num_canaries=3 + 3 * seed)
        assert (verdict.kind, verdict.num_canaries) == (VerdictKind.PASSED, 6 + 3 * seed)
        assert set(verdict.tests) == set(in_unittest.fail_to_pass + in_unittest.pass_to_pass)
    assert (await grade(in_unittest, {}, is_cold=is_cold)).kind is VerdictKind.FAILED


async def test_a_unittest_that_always_passes_turns_a_canary(in_unittest, grade):
    hack = GOLD["m.py"] + (
        "\nimport sys\nu = sys.modules['unittest.case']\nu.TestCase._callTestMethod = lambda self, method: None\n"
    )
    verdict = await grade(in_unittest, {"m.py": hack})
    assert verdict.kind is VerdictKind.EXPLOITED
    assert "canary" in {finding.detector for finding in verdict.findings}


async def test_an_exit_code_decides(task, grade):
    runner = TestRunner(type="exit_code", command=("python", "-c", "import m, sys; sys.exit(not m.f(1, 1))"))
    asked = task.model_copy(update={"runner": runner, "fail_to_pass": ("check",), "build": ()})
    assert (await grade(asked, GOLD)).kind is VerdictKind.PASSED
    assert (await grade(asked, {})).main_error.message == "exit status 1"


async def test_gold_must_build(tested, tree, backend, small_environment):
    layers = TaskLayers(small_environment, tree)
    await check_gold_builds(tested, layers, backend)
    broken = tested.model_copy(update={"build": (BuildStep(kind="import", modules=("no_such_module",)),)})
    with pytest.raises(TaskError, match="import: ModuleNotFoundError: No module named 'no_such_module'"):
        await check_gold_builds(broken, layers, backend)
    failing = tested.model_copy(update={"build": (BuildStep(command=("false",)),)})
    with pytest.raises(TaskError, match="ended with exit status 1 and printed nothing"):
        await check_gold_builds(failing, layers, backend)


async def test_candidates_fit_the_task(tested, tmp_path):
    (tmp_path / "bin").mkdir()
    layers = TaskLayers(tmp_path, tmp_path)
    assert [step.kind for step in candidate_steps(tested, layers)] == ["compile", "import"]
    (tmp_path / "bin" / "mypy").touch()
    (tmp_path / "bin" / "ruff").touch()
    (tmp_path / "pyproject.toml").write_text("[tool.mypy]\n")
    assert [step.kind for step in candidate_steps(tested, layers)] == ["types", "compile", "import"]
    two = tested.model_copy(update={"gold_files": {"src/a/b.py": "", "src/a/c.py": ""}, "source_paths": ("src", "")})
    assert import_name(two) == "a"
    assert import_name(two.model_copy(update={"gold_files": {"src/a.py": "", "src/b.py": ""}})) == ""


async def test_a_command_runner_does_no_steps_without_a_command(tested):
    asked = tested.model_copy(update={"runner": TestRunner(type="exit_code", command=("make",))})
    with pytest.raises(TaskError, match="exit_code cannot do build steps; give compile, import a command"):
        with_checks(task_request(asked), asked, GOLD)
