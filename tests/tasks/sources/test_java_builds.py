"""Tasks of Java builds, with the real toolchain: apt, a JDK and Maven in a sandbox."""

import shutil
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from repairgym.config.tasks import TasksConfig
from repairgym.grading.permitted import is_protected
from repairgym.records import TestOutcome
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import graded_files, run_fresh, task_layers, task_request
from repairgym.tasks.java.breaks import find_java_breaks
from repairgym.tasks.java.project import POM
from repairgym.tasks.layers.catalogue import JavaPackage
from repairgym.tasks.layers.package_index import Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.base import BuildContext, Drop
from repairgym.tasks.sources.java_builds import BUILD_TEST, JavaRun

SUITE_TEST = "repairgym_java/test_java.py::test_the_suite_passes"
pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt"),
]
SOURCES = {
    "src/main/java/org/example/Sum.java": "package org.example;\n\nimport java.util.List;\n\npublic class Sum {\n"
    "    public static int of(List<Integer> list) {\n        return list.stream().mapToInt(i -> i).sum();\n    }\n}\n",
    "src/test/java/org/example/SumTest.java": "package org.example;\n\nimport static org.junit.Assert.assertEquals;\n"
    "import java.util.Arrays;\nimport org.junit.Test;\n\npublic class SumTest {\n    @Test\n"
    "    public void sums() {\n        assertEquals(3, Sum.of(Arrays.asList(1, 2)));\n    }\n}\n",
}


class Archive:
    """An index of one archive."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        assert sdist.is_debian
        return self.path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[JavaPackage, LayerStore]:
    folder = tmp_path_factory.mktemp("java")
    for path, text in SOURCES.items():
        (folder / "tiny" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tiny" / path).write_text(text)
    with tarfile.open(folder / "tiny.tar.gz", "w:gz") as tar:
        tar.add(folder / "tiny", "tiny")
    pins = {"1.0-1": f"debian-{sha256_of(folder / 'tiny.tar.gz')}"}
    package = JavaPackage(
        name="tiny", split="train", group="org.example", artifact="tiny", version="1.0-1", sdists=pins
    )
    return package, LayerStore(index=Archive(folder / "tiny.tar.gz"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[SandboxBackend]:
    made = create_backend(TasksConfig().sandbox)
    yield made
    await made.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_wrong_version_and_a_missing_import_become_certified_tasks(
    project: tuple[JavaPackage, LayerStore], backend: SandboxBackend
) -> None:
    package, store = project
    run = await JavaRun.set_up(package, BuildContext(store, backend, TasksConfig(num_certificate_runs=1), quota=2))
    assert not isinstance(run, Drop), run
    assert await run.check_gold() is None
    assert '"org/example/Sum.class"' in run.pinned_files["repairgym_java/expected.json"]
    chosen = [
        next(edit for edit in find_java_breaks(run.spec.tree, path) if edit.operator == operator)
        for path, operator in ((POM, "wrong_version"), ("src/main/java/org/example/Sum.java", "missing_import"))
    ]
    for edit in chosen:
        task = await run.try_edit(edit)
        assert not isinstance(task, Drop), task
        assert task.certificate.is_valid
        assert BUILD_TEST in task.fail_to_pass
        assert not is_protected(task, edit.path)
        assert is_protected(task, "repairgym_java/expected.json")
        # Sources that leave a class out build, and are no repair.
        if edit.path != POM:
            other = {"src/main/java/org/example/Other.java": "package org.example;\n\npublic class Other {\n}\n"}
            files = {edit.path: None, **other, **_without_tests()}
            spec = task_layers(task, store).spec(graded_files(task, files))
            emptied = await run_fresh(backend, spec, task_request(task))
            assert emptied.outcome(BUILD_TEST) is TestOutcome.PASSED
            assert not emptied.passes(task.fail_to_pass)
    sources = SOURCES["src/main/java/org/example/Sum.java"].replace("mapToInt(i -> i).sum()", "mapToInt(i -> 0).sum()")
    for name, files in forgeries(sources).items():
        run_of = await run_fresh(backend, task_layers(task, store).spec(graded_files(task, files)), task_request(task))
        assert run_of.outcome(BUILD_TEST) is TestOutcome.PASSED, name
        assert run_of.outcome(SUITE_TEST) is not TestOutcome.PASSED, name


def forgeries(wrong: str) -> dict[str, dict[str, str | None]]:
    """Sources whose suite fails and which pretend that it passes: by its output, its exit, or JUnit itself."""
    place = "src/main/java/org/example/Sum.java"

    def with_code(code: str) -> dict[str, str | None]:
        return {place: wrong.replace("public class Sum {", f"public class Sum {{\n    static {{ {code} }}")}

    return {
        "exit": with_code(r'System.out.println("\nOK (1 test)"); Runtime.getRuntime().halt(0);'),
        "silence": with_code(
            "System.setOut(new java.io.PrintStream(new java.io.OutputStream() { public void write(int b) {} }));"
        ),
        "junit": {
            place: wrong,
            "src/main/java/org/junit/runner/JUnitCore.java": "package org.junit.runner;\n\npublic class JUnitCore {\n"
            '    public static void main(String[] names) {\n        System.out.println("OK (1 test)");\n    }\n}\n',
        },
    }


def _without_tests() -> dict[str, str | None]:
    return {path: None for path in SOURCES if "/test/" in path}
