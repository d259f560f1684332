"""Packages with files in another encoding, with a byte order mark or with odd line ends, and requests for no tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from repairgym.config.tasks import PlanConfig, RebuildConfig, TasksConfig
from repairgym.errors import TaskError
from repairgym.records import Certificate, Location, TestRequest, TestRun
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.build.assembly import files_without
from repairgym.tasks.build.test_files import SuiteMap
from repairgym.tasks.build.validation import check_tests
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.environments import describe_environment, read_lock
from repairgym.tasks.layers.package_index import Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest, content_digest
from repairgym.tasks.manifest.rebuild import rebuild_manifest
from repairgym.tasks.mutation.plan import Plan
from repairgym.tasks.sources.base import BuildContext, SourceResult
from repairgym.tasks.sources.evolved import LeftBug, Order, make_evolved
from repairgym.tasks.sources.mutations import MutationRun, make_mutations
from repairgym.testing.scripted import Files, ScriptedBackend, scripted_task

CODE = """def largest(values):
    best = values[0]
    for value in values:
        if value > best:
            best = value
    return best


def count(values, low):
    number = 0
    for value in values:
        if value >= low:
            number += 1
    return number
"""
TESTS = """from odd import NAME


def test_largest():
    assert NAME.largest([1, 3, 2]) == 3


def test_largest_of_one():
    assert NAME.largest([5]) == 5


def test_last_is_largest():
    assert NAME.largest([1, 2]) == 2


def test_count():
    assert NAME.count([1, 2, 3], 2) == 2


def test_count_of_none():
    assert NAME.count([], 1) == 0


def test_count_of_the_bound():
    assert NAME.count([2], 2) == 1


def test_that_reads_itself():
    assert NAME.largest([2]) == NAME.count([2, 3], 2)
    assert "NAME.largest([1, 3, 2]) == 3" in open("tests/test_NAME.py").read()
"""
CRLF = "src/odd/crlf.py"
MODULES = {
    "plain": CODE.encode(),
    "latin": f"# -*- coding: latin-1 -*-\n# é\n{CODE}".encode("latin-1"),
    "mark": f"\n\n\n{CODE}".encode("utf-8-sig"),
    "crlf": f"# \x0c\n{CODE}".replace("\n", "\r\n").encode(),
}


class FileIndex:
    def __init__(self, path: Path) -> None:
        self.path = path

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        return self.path


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, Path]:
    files = {"src/odd/__init__.py": b"", "tests/__init__.py": b""}
    for name, content in MODULES.items():
        files[f"src/odd/{name}.py"] = content
        files[f"tests/test_{name}.py"] = TESTS.replace("NAME", name).encode()
    files["tests/test_latin.py"] = b"# -*- coding: latin-1 -*-\n# \xe9\n" + files["tests/test_latin.py"]
    files["tests/test_again.py"] = TESTS.replace("NAME", "latin").encode()
    archive = tmp_path_factory.mktemp("odd") / "odd-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(f"odd-1.0/{path}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    places = {"sources": ("src/odd/*.py",), "tests": ("tests/test_*.py",), "root": "src"}
    return Package(name="odd", split="train", version="1.0", sdists={"1.0": sha256_of(archive)}, **places), archive


@pytest.fixture
def context(
    package: tuple[Package, Path],
    seeded_layers: LayerStore,
    backend: SandboxBackend,
    write_config: Callable[..., TasksConfig],
) -> BuildContext:
    LayerStore(seeded_layers.root, FileIndex(package[1])).tree(package[0].sdist())
    return BuildContext(seeded_layers, backend, write_config(package[0]), 4)


@pytest.mark.asyncio
async def test_a_package_with_odd_files_gives_tasks_of_its_other_files(
    package: tuple[Package, Path], context: BuildContext
) -> None:
    few = context.config.mutations.model_copy(update={"num_passing_kept": 1, "min_edits": 1})
    context = replace(context, config=context.config.model_copy(update={"mutations": few}))
    result = await make_mutations(package[0], context)
    assert {path for task in result.tasks for path in task.gold_files} == {"src/odd/plain.py"}
    rows = {"files_no_utf8": 1, "files_with_byte_order_mark": 1, "files_with_odd_line_ends": 1}
    assert {name: result.funnel[name] for name in rows} == rows
    for task in result.tasks:
        check_tests(task)  # each visible test is one of the task, however few passing ones are kept
        # A test that no grading can seal is unstable, too.
        left_out = ("test_latin", "test_that_reads_itself")
        assert not any(name in test_id for test_id in task.fail_to_pass + task.pass_to_pass for name in left_out)


@pytest.mark.asyncio
async def test_a_failed_repair_in_a_file_with_odd_line_ends_becomes_a_task(
    package: tuple[Package, Path], context: BuildContext, tmp_path: Path
) -> None:
    source = MODULES["crlf"].decode()
    broken = source.replace("value > best", "value < best")
    origin = scripted_task().provenance.model_copy(update={"sdist_sha256": package[0].sdist().sha256})
    place = Location(path=CRLF, name="largest", first_line=2, last_line=7)
    task = scripted_task(provenance=origin, location=place, base_files={CRLF: broken})
    left = LeftBug(task, broken.replace("best = value\r", "best = values[0]\r"))
    order = Order(Plan(generation=1), PlanConfig(), num_tries=0, known=frozenset(), left=(left,))
    result, rejected = await make_evolved(package[0], context, order)
    (made,) = result.tasks
    assert (made.base_files[CRLF], rejected) == (left.text, [])
    (tmp_path / "manifest.toml").write_text('entries = "real"\n')
    manifest = TaskManifest(tmp_path / "manifest.toml")
    manifest.add([made], {"odd": package[0]})
    (again,) = rebuild_manifest(manifest, tmp_path / "rebuilt", RebuildConfig(), context.store).load()
    assert content_digest(again) == content_digest(manifest.with_deadlines(made))


def test_a_hidden_test_in_a_file_of_another_encoding_makes_no_task(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_bytes(b"# \xe9\ndef test_a(): pass\n")
    with pytest.raises(TaskError, match=r"no UTF-8: test_a\.py"):
        files_without(tmp_path, ["test_a.py::test_a"])


def unasked(files: Files, request: TestRequest) -> TestRun:
    raise AssertionError(f"a run of {request.test_ids}")


@pytest.mark.asyncio
async def test_without_tests_nothing_is_run(tinycalc: Package, context: BuildContext) -> None:
    context = replace(context, backend=ScriptedBackend(unasked))
    environment = describe_environment(read_lock(()))
    spec = SandboxSpec(environment=context.store.root, tree=context.store.root)
    assert await MutationRun(tinycalc, context, environment, spec, SuiteMap({}, {})).certify([]) == []
    small = context.config.mutations.model_copy(update={"max_file_bytes": 1})
    context = replace(context, config=context.config.model_copy(update={"mutations": small}))
    with pytest.raises(TaskError, match=r"larger than mutations\.max_file_bytes = 1"):
        await MutationRun.set_up(tinycalc, context)


def test_a_task_without_a_valid_certificate_is_a_drop() -> None:
    result = SourceResult()
    forged = Certificate(num_empty_runs=3, num_empty_failed=3, num_gold_runs=3, num_gold_passed=1)
    result.add(scripted_task(certificate=forged))
    result.add(scripted_task("tiny-2"))
    assert [task.id for task in result.tasks] == ["tiny-2"]
    assert result.funnel == {"not_certified": 1, "kept": 1}
    assert '"num_gold_passed":1' in result.logs["not_certified"]
