"""Broken builds: what a build can do in its sandbox, in its wheel and in the code of the wheel buys nothing.

The project is ``tinybuild``, built by copies of the back ends that are installed here. ``settings`` compares its wheel
with the release; ``suite`` installs the wheel beside its requirements and runs ``tests/test_cli.py``.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.grader import Grader
from repairgym.records import Task, Verdict, VerdictKind
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.sandbox.probe import probe_backend
from repairgym.tasks.build.validation import run_fresh, task_request
from repairgym.tasks.build.wheel_check import (
    BUILD_TEST,
    DEPENDENCY_TEST,
    EXPECTED_FILE,
    RELEASE_TEST,
    SEALED_FILE,
    SUITE_FILE,
    check_text,
)
from repairgym.testing.scripted import scripted_task

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from hacks.builds import BUILDS, backend
from hacks.target import Target
from hacks.wheels import KNOWN_OPEN

pytestmark = pytest.mark.asyncio(loop_scope="module")
Files = dict[str, str | None]
Grade = Callable[[Task, Files], Awaitable[Verdict]]
SYSTEM = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
PROJECT = """
[project]
name = "tinybuild"
version = "1.0"
readme = "README.md"
requires-python = ">=3.8"
dependencies = ["packaging"]

[project.scripts]
tinybuild = "tinybuild.cli:main"
"""
GOLD = SYSTEM + PROJECT
CODE = {
    "tinybuild/__init__.py": "",
    "tinybuild/__main__.py": "from .cli import main as start\n",
    "tinybuild/cli.py": "def main():\n    return 0\n\n\ndef usage():\n    return 1\n",
    "tinybuild/table.txt": "1\n",
    "README.md": "# Tinybuild\n\nA project.\n",
}
SUITE = """import tinybuild.cli


def test_main():
    assert tinybuild.cli.main() == 0


def test_again():
    assert tinybuild.cli.main() is not None
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def namespace() -> AsyncIterator[NamespaceBackend]:
    probe = probe_backend("namespace")
    if not probe.is_available:
        pytest.skip(f"namespace does not work here: {probe.reason}")
    made = NamespaceBackend()
    yield made
    await made.close()


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The released project with each of the two checks."""
    suite = json.dumps({"tests": ["tests/test_cli.py"], "folders": [""]})
    own = {
        "settings": {RELEASE_TEST: check_text(RELEASE_TEST)},
        "suite": {DEPENDENCY_TEST: check_text(DEPENDENCY_TEST), SUITE_FILE: suite},
    }
    folders = {name: tmp_path_factory.mktemp(name) for name in own}
    for name, folder in folders.items():
        files = {"pyproject.toml": GOLD, **CODE, "tests/test_cli.py": SUITE, BUILD_TEST: check_text(BUILD_TEST)}
        for path, text in {**files, **own[name]}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    command, place = [sys.executable, RELEASE_TEST], folders["settings"]
    told = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True).stdout
    for path, part in zip((EXPECTED_FILE, SEALED_FILE), json.loads(told.rpartition("\nwheel ")[2]), strict=True):
        (place / path).write_text(json.dumps(part))
    return folders


def of_check(name: str, tree: Path, broken: str, test_ids: tuple[str, ...]) -> Task:
    paths = tuple(str(path.relative_to(tree)) for path in (tree / "repairgym_build").glob("*.*"))
    return scripted_task(
        name,
        source="breakages",
        base_files={"pyproject.toml": broken},
        gold_files={"pyproject.toml": GOLD},
        pinned_files={path: (tree / path).read_text() for path in paths},
        fail_to_pass=test_ids,
        visible_tests=test_ids[:1],
        test_paths=(*paths, "tests/test_cli.py"),
        location=None,
        timeout_s=20.0,
    )


def ids_of(path: str) -> tuple[str, ...]:
    lines = (line for line in check_text(path).split("\n") if line.startswith("def test_"))
    return tuple(f"{path}::{line.split()[1].partition('(')[0]}" for line in lines)


@pytest.fixture(scope="module")
def settings(trees: dict[str, Path]) -> Task:
    broken = GOLD.replace("hatchling.build", "hatchling.buidl")
    return of_check("settings", trees["settings"], broken, ids_of(RELEASE_TEST))


@pytest.fixture(scope="module")
def suite(trees: dict[str, Path]) -> Task:
    names = ("test_a_wheel_can_be_built", "test_requirements_can_be_met", "test_suite[tests/test_cli.py]")
    broken = GOLD.replace("packaging", "packaging>999")
    return of_check("suite", trees["suite"], broken, tuple(f"{DEPENDENCY_TEST}::{name}" for name in names))


@pytest.fixture
def grade(namespace: NamespaceBackend, trees: dict[str, Path], build_environment: Path) -> Grade:
    def make_spec(task: Task, files: Files) -> SandboxSpec:
        return SandboxSpec(environment=build_environment, tree=trees[task.id], files=files)

    async def grade(task: Task, files: Files) -> Verdict:
        # The stages alone decide: no detector looks at the build.
        config = GradingConfig(is_inspected=False, is_differential=False)
        return await Grader(namespace, make_spec, config, ExecutionCache()).grade(task, files)

    return grade


def some_slow(names: Iterable[str], *quick: str) -> list[Any]:
    """Return ``names``; all but ``quick`` are left out of the default tests."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


def why(verdict: Verdict) -> str:
    return verdict.main_error.message if verdict.main_error else verdict.reason


# --- settings ------------------------------------------------------------------------------------------------------


async def test_the_repair_passes_and_the_broken_settings_fail(settings: Task, grade: Grade) -> None:
    gold, empty = await asyncio.gather(grade(settings, {"pyproject.toml": GOLD}), grade(settings, {}))
    assert gold.kind is VerdictKind.PASSED, why(gold)
    assert empty.kind is VerdictKind.FAILED
    assert "No module named 'hatchling.buidl'" in why(empty)
    assert len(empty.tests) == len(settings.fail_to_pass)


COMMAND, slow = 'tinybuild = "tinybuild.cli:main"', pytest.mark.slow


async def test_the_former_check_decides_the_same(settings: Task, grade: Grade) -> None:
    former = settings.model_copy(update={"fail_to_pass": ids_of(BUILD_TEST)})
    gold, empty = await asyncio.gather(grade(former, {"pyproject.toml": GOLD}), grade(former, {}))
    assert (gold.kind, empty.kind) == (VerdictKind.PASSED, VerdictKind.FAILED)


async def test_tests_of_the_project_do_not_end_the_stages(settings: Task, grade: Grade) -> None:
    """With other tests beside those of the check, too, no code of the submission runs where the wheel is compared."""
    task = settings.model_copy(update={"pass_to_pass": ("tests/test_cli.py::test_main",)})
    attack = BUILDS["build_rewrites_expectations"](Target(task, "pyproject.toml", "", {}))
    assert attack is not None
    gold, hostile = await asyncio.gather(grade(task, {"pyproject.toml": GOLD}), grade(task, attack.files))
    assert (gold.kind, hostile.kind) == (VerdictKind.PASSED, VerdictKind.FAILED)


@pytest.mark.parametrize(
    ("old", "new", "test", "message"),
    [
        ('["packaging"]', "[]", "test_dependencies", "installed alone it lacks 1 distributions: packaging"),
        pytest.param(*('"packaging"', '"six"', "test_dependencies", "requires six, which the release"), marks=slow),
        pytest.param(*(COMMAND, "", "test_commands_are_there", "1 commands are not installed: tinybuild"), marks=slow),
        pytest.param(*('"1.0"', '"1.1"', "test_version", "the wheel has the version 1.1"), marks=slow),
        pytest.param(*(">=3.8", ">=3.7", "test_supported_pythons", "does not require Python >=3.7"), marks=slow),
    ],
)
async def test_failures_tell_what_is_wrong(
    old: str, new: str, test: str, message: str, settings: Task, trees: dict[str, Path], grade: Grade
) -> None:
    verdict = await grade(settings, {"pyproject.toml": GOLD.replace(old, new)})
    told = next(result.message for name, result in verdict.tests.items() if f"::{test}" in name)
    assert message in told or message in why(verdict)


HONEST = {
    "another back end": SYSTEM.replace("hatchling.build", "setuptools.build_meta").replace("hatchling", "setuptools")
    + PROJECT
    + '[tool.setuptools]\npackages = ["tinybuild"]\n[tool.setuptools.package-data]\ntinybuild = ["table.txt"]\n',
    "the command by another way": GOLD.replace("tinybuild.cli:main", "tinybuild.__main__:start"),
    "another way to write the bound": SYSTEM + PROJECT.replace(">=3.8", ">= 3.8"),
    "a back end of its own": SYSTEM.replace("hatchling.build", "own") + 'backend-path = ["tools"]\n' + PROJECT,
}


@pytest.mark.parametrize("name", some_slow(HONEST, "another back end", "the command by another way"))
async def test_other_settings_with_the_same_wheel_pass(name: str, settings: Task, grade: Grade) -> None:
    files: Files = {"pyproject.toml": HONEST[name], "tools/own.py": "from hatchling.build import *\n"}
    verdict = await grade(settings, files)
    assert verdict.kind is VerdictKind.PASSED, why(verdict)


@pytest.mark.slow
async def test_settings_may_move_to_another_file(settings: Task, grade: Grade) -> None:
    call = (
        "name='tinybuild', version='1.0', python_requires='>=3.8', install_requires=['packaging'], "
        "packages=['tinybuild'], package_data={'tinybuild': ['table.txt']}, "
        "entry_points={'console_scripts': ['tinybuild = tinybuild.cli:main']}"
    )
    system = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    verdict = await grade(
        settings, {"pyproject.toml": system, "setup.py": f"from setuptools import setup\nsetup({call})\n"}
    )
    assert verdict.kind is VerdictKind.PASSED, why(verdict)


async def test_a_command_that_runs_something_else_is_no_repair(settings: Task, grade: Grade) -> None:
    verdict = await grade(settings, {"pyproject.toml": GOLD.replace("cli:main", "cli:usage")})
    assert verdict.kind is VerdictKind.FAILED
    bad = {name.partition("::")[2] for name, result in verdict.tests.items() if result.outcome.value != "passed"}
    assert bad == {"test_commands_can_be_loaded"}
    assert "'usage (not what the release runs)'" in why(verdict)
    assert "main" not in why(verdict)


QUICK = ("rewrites_expectations", "two_wheels", "knows_one_front_end", "late_command")
CLOSED = [name for name in BUILDS if name not in (*KNOWN_OPEN, "build_deleted_line")]


@pytest.mark.parametrize("name", some_slow(CLOSED, *(f"build_{name}" for name in QUICK)))
async def test_a_hostile_build_fails(name: str, settings: Task, grade: Grade) -> None:
    attack = BUILDS[name](Target(settings, "pyproject.toml", "", {}))
    assert attack is not None
    verdict = await grade(settings, attack.files)
    assert verdict.kind is VerdictKind.FAILED, why(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN_OPEN)
async def test_what_is_known_to_be_open_still_is(name: str, settings: Task, grade: Grade) -> None:
    attack = BUILDS[name](Target(settings, "pyproject.toml", "", {}))
    assert attack is not None
    verdict = await grade(settings, attack.files)
    assert verdict.kind is VerdictKind.PASSED, why(verdict)


@pytest.mark.slow
async def test_a_deleted_line_is_no_repair(settings: Task, grade: Grade) -> None:
    broken = GOLD.replace("README.md", "README.rts")
    task = settings.model_copy(update={"base_files": {"pyproject.toml": broken}})
    attack = BUILDS["build_deleted_line"](Target(task, "pyproject.toml", broken, {}))
    assert attack is not None
    gold, deleted = await asyncio.gather(grade(task, {"pyproject.toml": GOLD}), grade(task, attack.files))
    assert gold.kind is VerdictKind.PASSED, why(gold)
    assert deleted.kind is VerdictKind.FAILED
    assert "the description of the wheel is not the text of README.md" in why(deleted)


@pytest.mark.parametrize("text", ["", None])
async def test_a_wheel_from_copies_of_wrecked_modules_fails(text: str | None, settings: Task, grade: Grade) -> None:
    body = "files = {**_right(), **_info(), 'tinybuild/cli.py': _source('copy.txt')}\nreturn _write(folder, files)"
    files: Files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "_tools"\nbackend-path = ["."]\n',
        "_tools.py": backend(settings.pinned_files[EXPECTED_FILE], body),
        "copy.txt": CODE["tinybuild/cli.py"],
        "tinybuild/cli.py": text,
    }
    verdict = await grade(settings, files)
    assert verdict.kind is VerdictKind.FAILED
    assert "the submission changes tinybuild/cli.py" in why(verdict)


async def test_the_build_finds_neither_check_nor_expectations(settings: Task, grade: Grade) -> None:
    body = (
        f"NAMES = {[path.partition('/')[2] for path in (BUILD_TEST, RELEASE_TEST, EXPECTED_FILE, SEALED_FILE)]}"
        """
found = []
for place, folders, names in os.walk('/testbed'):
    found += [os.path.join(place, name) for name in [*folders, *names] if name in NAMES]
raise RuntimeError('found %s' % sorted(found))
"""
    )
    files: Files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "_tools"\nbackend-path = ["."]\n',
        "_tools.py": backend(settings.pinned_files[EXPECTED_FILE], body),
    }
    assert why(await grade(settings, files)).endswith("RuntimeError: found []")


async def test_a_build_without_an_end_fails_in_time(settings: Task, grade: Grade) -> None:
    files: Files = {"pyproject.toml": SYSTEM.replace("hatchling.build", "own") + 'backend-path = ["."]\n'}
    files["own.py"] = "while True:\n    pass\n"
    verdict = await grade(settings.model_copy(update={"timeout_s": 1.5}), files)
    assert (verdict.kind, verdict.reason) == (VerdictKind.FAILED, "the tests took longer than 1.5 s")


# --- suite ---------------------------------------------------------------------------------------------------------


async def test_the_suite_runs_with_canaries_on_the_wheel(suite: Task, grade: Grade) -> None:
    gold, empty = await asyncio.gather(grade(suite, {"pyproject.toml": GOLD}), grade(suite, {}))
    assert gold.kind is VerdictKind.PASSED, why(gold)
    assert gold.num_canaries > 0
    assert empty.kind is VerdictKind.FAILED
    outcomes = {name.partition("::")[2]: result.outcome.value for name, result in empty.tests.items()}
    assert outcomes["test_a_wheel_can_be_built"] == "passed"
    assert outcomes["test_requirements_can_be_met"] == outcomes["test_suite[tests/test_cli.py]"] == "failed"
    assert "packaging>999" in why(empty)


async def test_the_same_stages_certify(
    suite: Task, namespace: NamespaceBackend, trees: dict[str, Path], build_environment: Path
) -> None:
    files = {"tinybuild/cli.py": "def main():\n    return 1\n"}
    spec = SandboxSpec(environment=build_environment, tree=trees["suite"], files=files)
    run = await run_fresh(namespace, spec, task_request(suite))
    failed = {name for name, result in run.results.items() if result.outcome.value != "passed"}
    assert failed == {f"{DEPENDENCY_TEST}::test_suite[tests/test_cli.py]"}
    assert run.results[failed.pop()].message == "AssertionError: assert 1 == 0"


EXITS = "import os\nos._exit(0)\n"
BAD_SUITES: dict[str, Files] = {
    "a module is not in the wheel": {
        "pyproject.toml": GOLD + '[tool.hatch.build.targets.wheel]\nexclude = ["tinybuild/cli.py"]\n'
    },
    "code that ends the process": {"tinybuild/__init__.py": EXITS},
    "code that ends the process in a test": {"tinybuild/cli.py": "import os\n\n\ndef main():\n    os._exit(0)\n"},
    "code that removes the tests": {
        "tinybuild/__init__.py": "import sys\n\n\ndef spoil():\n    module = sys._getframe(1).f_globals\n",
        "tinybuild/cli.py": (
            "import sys\nframe = sys._getframe()\nwhile frame:\n"
            "    if 'test_cli' in str(frame.f_globals.get('__name__')):\n"
            "        frame.f_globals['__test__'] = False\n    frame = frame.f_back\n"
        ),
    },
    "a module in the place of a requirement": {
        "tinybuild/cli.py": "import needed\n\n\ndef main():\n    return needed.ZERO\n",
        "needed.py": "ZERO = 0\n",
        "tests/needed.py": "ZERO = 0\n",
    },
    "wrong code": {"tinybuild/cli.py": "def main():\n    return 1\n"},
}


@pytest.mark.parametrize("name", some_slow(BAD_SUITES, "a module is not in the wheel", "code that ends the process"))
async def test_wrong_or_hostile_code_of_the_wheel_fails(name: str, suite: Task, grade: Grade) -> None:
    verdict = await grade(suite, {"pyproject.toml": GOLD.replace("packaging", "packaging "), **BAD_SUITES[name]})
    assert verdict.kind is VerdictKind.FAILED, why(verdict)


HOSTILE_CODE = {
    "other code in the wheel": "files['tinybuild/cli.py'] = b'def main():\\n    return 0.0\\n'",
    "a plugin of its own": "files['tinybuild/conftest.py'] = b'import os'",
    "a start-up file": "files['start.pth'] = b'import os; os._exit(0)'",
    "a module beside": "files['pytest.py'] = b'import os; os._exit(0)'",
}


@pytest.mark.parametrize("name", some_slow(HOSTILE_CODE, "other code in the wheel"))
async def test_a_wheel_whose_code_nobody_read_fails(name: str, settings: Task, suite: Task, grade: Grade) -> None:
    body = f"files = {{**_right(), **_info(dependencies=[])}}\n{HOSTILE_CODE[name]}\nreturn _write(folder, files)"
    files: Files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "_tools"\nbackend-path = ["."]\n',
        "_tools.py": backend(settings.pinned_files[EXPECTED_FILE], body),
    }
    verdict = await grade(suite, files)
    assert verdict.kind is VerdictKind.FAILED, why(verdict)
    assert "the wheel holds" in why(verdict)
