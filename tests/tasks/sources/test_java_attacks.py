"""Attacks on the check of Java builds: tested code, settings of Maven, scripts of Gradle; with the real toolchains."""

import shutil
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
import pytest_asyncio
from tests.tasks.java.attacks import MAIN, RIGHT, SUITE, TEST, WRONG, Files, gradle_builds, maven_builds, tested_code

from repairgym.config.tasks import TasksConfig
from repairgym.records import TestRun
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import run_fresh
from repairgym.tasks.java.project import JAVA_TEST, settings_files
from repairgym.tasks.layers.catalogue import JavaPackage
from repairgym.tasks.layers.package_index import Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.base import BuildContext, Drop
from repairgym.tasks.sources.build_checks import build_request
from repairgym.tasks.sources.java_builds import JavaRun

Tool = Literal["maven", "gradle"]
pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt"),
    pytest.mark.asyncio(loop_scope="module"),
]
CONFIG = TasksConfig.model_validate({"num_certificate_runs": 1, "breakages": {"max_build_s": 300}})


class Archive(NamedTuple):
    """An index of one archive."""

    path: Path

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        assert sdist.is_debian
        return self.path


class Project(NamedTuple):
    """The library with its check, and the runs of what is submitted for it."""

    run: JavaRun
    backend: SandboxBackend

    async def grade(self, files: Files) -> TestRun:
        """Run the check on the library with ``files``."""
        spec = self.run.spec.model_copy(update={"files": files})
        return await run_fresh(self.backend, spec, build_request(self.run.package, self.run.context, JAVA_TEST))


def tiny(tool: Tool, digest: str = "") -> JavaPackage:
    pins = {"1.0-1": f"debian-{digest}"}
    return JavaPackage(
        name="tiny", split="train", group="org.example", artifact="tiny", tool=tool, version="1.0-1", sdists=pins
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[SandboxBackend]:
    made = create_backend(CONFIG.sandbox)
    yield made
    await made.close()


async def set_up(tool: Tool, backend: SandboxBackend, folder: Path) -> Project:
    """Build the library; the right one passes, the wrong one fails."""
    for path, text in {MAIN: RIGHT, TEST: SUITE}.items():
        (folder / "tiny" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tiny" / path).write_text(text)
    with tarfile.open(folder / "tiny.tar.gz", "w:gz") as tar:
        tar.add(folder / "tiny", "tiny")
    store = LayerStore(index=Archive(folder / "tiny.tar.gz"))
    package = tiny(tool, sha256_of(folder / "tiny.tar.gz"))
    run = await JavaRun.set_up(package, BuildContext(store, backend, CONFIG, quota=1))
    assert not isinstance(run, Drop), run
    assert await run.check_gold() is None
    project = Project(run, backend)
    assert not (await project.grade({MAIN: WRONG})).passes(run.test_ids)
    return project


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def maven(backend: SandboxBackend, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return await set_up("maven", backend, tmp_path_factory.mktemp("maven"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gradle(backend: SandboxBackend, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return await set_up("gradle", backend, tmp_path_factory.mktemp("gradle"))


async def assert_fails(project: Project, files: Files) -> None:
    run = await project.grade(files)
    print({name: (result.outcome, result.message) for name, result in run.results.items()}, run.output_tail)
    assert not run.passes(project.run.test_ids)


@pytest.mark.parametrize("kind", sorted(tested_code()))
async def test_tested_code_passes_nothing(maven: Project, kind: str) -> None:
    await assert_fails(maven, tested_code()[kind])


POM = settings_files(tiny("maven"))["pom.xml"]
SCRIPT = settings_files(tiny("gradle"))["build.gradle"]


@pytest.mark.parametrize("kind", sorted(maven_builds(POM)))
async def test_settings_of_maven_pass_nothing(maven: Project, kind: str) -> None:
    await assert_fails(maven, maven_builds(POM)[kind])


@pytest.mark.parametrize("kind", sorted(gradle_builds(SCRIPT)))
async def test_scripts_of_gradle_pass_nothing(gradle: Project, kind: str) -> None:
    await assert_fails(gradle, gradle_builds(SCRIPT)[kind])


async def test_builds_that_differ_in_settings_only_pass(maven: Project) -> None:
    files: Files = {"pom.xml": POM.replace("source>8", "source>11").replace("target>8", "target>11")}
    run = await maven.grade(files)
    assert run.passes(maven.run.test_ids)
