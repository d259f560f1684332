from __future__ import annotations

import errno
import platform
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tasks.imported.conftest import OLD_TESTS

from repairgym.config.sandbox import LayersConfig, SandboxConfig, SandboxLimits
from repairgym.config.tasks import ImportedConfig
from repairgym.diffs.make import unified_diff
from repairgym.errors import DiskFullError, InputError, SandboxContentError, SandboxLostError, TaskError
from repairgym.grading.decision import channel_findings
from repairgym.records import Task, TestOutcome, TestResult, TestRun
from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.build.validation import TaskLayers, imported_layers
from repairgym.tasks.imported.build_imported import ImportedBuilder
from repairgym.tasks.imported.building import BuildError, ProjectBuilder
from repairgym.tasks.imported.certifying import Certifier, network_failures
from repairgym.tasks.imported.environments import Wanted, packages_of
from repairgym.tasks.imported.harness import HarnessFiles
from repairgym.tasks.imported.installation import Installed, graded_tree, install
from repairgym.tasks.imported.interpreters import Interpreter
from repairgym.tasks.imported.named_tests import log_runner
from repairgym.tasks.imported.outcomes import OutcomeFolder
from repairgym.tasks.imported.recipes import find_recipe
from repairgym.tasks.layers.environments import base_python
from repairgym.tasks.layers.repositories import GitRepository
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import FUNNEL_FILE, TaskStore
from repairgym.tasks.unbuilt import UnbuiltTask

CODE = "src/calc/__init__.py"
HERE = Interpreter(base_python(), platform.python_version())


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "layers", config=LayersConfig(is_index_allowed=False))


@pytest.mark.asyncio
async def test_an_installation_gives_environment_and_tree(
    record: UnbuiltTask, clones: Path, store: LayerStore, backend: SandboxBackend
) -> None:
    recipe = find_recipe(record, HarnessFiles())
    builder = ProjectBuilder(store, HERE, backend)
    base = await builder.environments.build(Wanted(()))
    tree = graded_tree(store, GitRepository(clones / "acme__calc"), record)
    assert "x * 3" in (tree / "src/calc/__init__.py").read_text()
    assert "test_double" in (tree / "tests/test_calc.py").read_text()
    assert not (tree / ".git").exists()
    done = await install(store, builder, recipe, base.folder, tree, "0.9")
    assert done.packages.lock == "calc==1.0\n"
    assert packages_of(base.folder).lock == ""
    assert done.source_paths == ("src",)
    assert (done.tree / "src/calc/_version.py").read_text() == "version = '0.9'"
    assert not list(done.tree.glob(".repairgym*"))
    assert await install(store, builder, recipe, base.folder, tree, "0.9") == done


@pytest.mark.asyncio
async def test_a_failing_build_names_its_last_line(
    record: UnbuiltTask, store: LayerStore, backend: SandboxBackend, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "backend").mkdir(parents=True)
    (tree / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "b"\nbackend-path = ["backend"]'
    )
    (tree / "backend/b.py").write_text("def build_editable(*_):\n    raise RuntimeError('no compiler')\n")
    with pytest.raises(BuildError, match="stage build: RuntimeError: no compiler"):
        await ProjectBuilder(store, HERE, backend).build(tree, "editable")


@pytest.mark.asyncio
async def test_lists_come_from_runs_and_differences_are_counted(
    record: UnbuiltTask, clones: Path, store: LayerStore, backend: SandboxBackend, small_environment: Path
) -> None:
    tree = graded_tree(store, GitRepository(clones / "acme__calc"), record)
    installed = Installed(TaskLayers(small_environment, tree), ("src",), packages_of(small_environment))
    config = ImportedConfig(repos=str(clones), num_certificate_runs=1)
    task, counts = await Certifier(record, installed, HERE, backend, config).certify()
    name = "tests/test_calc.py::test_"
    assert task.fail_to_pass == (f"{name}double",)
    assert set(task.pass_to_pass) == {f"{name}zero", f"{name}half", f"{name}words[a b]"}
    assert (counts.passed_before, counts.unmatched) == ((f"{name}zero",), (f"{name}gone",))
    assert (counts.num_official_fail_to_pass, counts.num_fail_to_pass) == (2, 1)
    certificate = task.certificate
    assert (certificate.passed_before, certificate.undecided) == ((f"{name}zero",), (f"{name}gone",))
    assert task.visible_tests == (f"{name}half",), "the agent's tree has only the old tests"
    assert task.test_paths == ("tests/test_calc.py",)
    assert task.base_files["tests/test_calc.py"] == record.base_files["tests/test_calc.py"]
    use = task.certificate.use
    assert use is not None
    assert 1 << 20 < use.peak_memory_bytes < use.memory_limit_bytes < 1 << 30
    assert 0 < use.disk_bytes < use.disk_limit_bytes <= 64 << 20
    with pytest.raises(TaskError, match="the environment of acme__calc-7 is not on this machine"):
        imported_layers(task, store)
    same = record.model_copy(update={"gold_files": {}})
    with pytest.raises(TaskError, match="1 pass before the repair, 1 do not pass with the repair"):
        await Certifier(same, installed, HERE, backend, config).certify()


@pytest.mark.asyncio
async def test_bounds_that_are_too_tight_for_gold_are_those_of_the_certifying_runs(
    record: UnbuiltTask, clones: Path, store: LayerStore, backend: SandboxBackend, small_environment: Path
) -> None:
    """Gold reserves more address space than a default sandbox has, and uses none of it."""
    gold = f"import mmap\n\nroom = mmap.mmap(-1, 3 << 30)\n{record.gold_files[CODE]}"
    greedy = record.model_copy(update={"gold_files": {CODE: gold}})
    tree = graded_tree(store, GitRepository(clones / "acme__calc"), record)
    installed = Installed(TaskLayers(small_environment, tree), ("src",), packages_of(small_environment))
    wide = SandboxConfig(limits=SandboxLimits(memory_bytes=5 << 30))
    config = ImportedConfig(repos=str(clones), num_certificate_runs=1, sandbox=wide)
    task, _ = await Certifier(greedy, installed, HERE, backend, config).certify()
    use = task.certificate.use
    assert use is not None
    assert use.peak_memory_bytes < 1 << 30
    assert use.memory_limit_bytes == 5 << 30
    raised = replace(installed.layers, use=use).spec({}, SandboxLimits(disk_bytes=1 << 30)).limits
    assert (raised.memory_bytes, raised.disk_bytes) == (5 << 30, 1 << 30)


@pytest.mark.asyncio
async def test_a_log_decides_where_it_is_allowed_and_the_task_says_so(
    record: UnbuiltTask, clones: Path, store: LayerStore, backend: SandboxBackend, small_environment: Path
) -> None:
    tree = graded_tree(store, GitRepository(clones / "acme__calc"), record)
    installed = Installed(
        TaskLayers(small_environment, tree), (), packages_of(small_environment)
    )  # without its sources, signed runs certify nothing
    config = ImportedConfig(repos=str(clones), num_certificate_runs=1)
    command = "PYTHONPATH=src python -m pytest -p no:cacheprovider -rA"
    log = log_runner("pytest", command, ("tests/test_calc.py",))
    with pytest.raises(TaskError, match="no test of the record passes"):
        await Certifier(record, installed, HERE, backend, config).certify_or_log(command)
    allowed = config.model_copy(update={"is_log_allowed": True})
    task, counts = await Certifier(record, installed, HERE, backend, allowed).certify_or_log(command)
    assert task.fail_to_pass == ("tests/test_calc.py::test_double",)
    assert "tests/test_calc.py::test_words[a b]" in task.pass_to_pass
    assert counts.unmatched == ("tests/test_calc.py::test_gone",)
    assert (task.runner, task.runner.is_signed, task.labels["results"]) == (log, False, "unsigned log")
    assert task.test_paths == ("tests/test_calc.py",)
    assert [finding.detector for finding in channel_findings(task, None)] == ["unsigned_results"]


@pytest.mark.asyncio
async def test_every_record_that_is_not_built_has_a_reason(record: UnbuiltTask, clones: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    tests = record.model_copy(update={"id": "a", "fail_to_pass": ("ModelTests: saves",), "pass_to_pass": ()})
    python = record.model_copy(update={"id": "b", "python": "3.1"})
    TaskStore(folder).save_unbuilt([record, tests, python])
    config = ImportedConfig(repos=str(clones), ids=("a", "b"), num_workers=1)
    outcomes = await ImportedBuilder(folder, config, LayerStore(tmp_path / "layers")).build()
    assert {done.id: done.stage for done in outcomes} == {"a": "recipe", "b": "interpreter"}
    assert all(done.reason and not done.is_certified for done in outcomes)
    funnel = TaskStore(folder).load_document(FUNNEL_FILE)
    assert funnel["total"]["imported"] == {"records": 2, "stopped_at_recipe": 1, "stopped_at_interpreter": 1}
    assert "no Python 3.1" in funnel["units"]["b"]["reason"]
    stored = OutcomeFolder(folder).load("a")
    assert stored is not None
    (finished,) = (done for done in outcomes if done.id == "a")
    assert stored == finished
    with pytest.raises(InputError, match="no imported record c"):
        ImportedBuilder(folder, config.model_copy(update={"ids": ("c",)})).chosen()
    with pytest.raises(InputError, match="repos=FOLDER"):
        ImportedBuilder(folder, ImportedConfig())


@pytest.mark.asyncio
async def test_a_task_that_no_longer_certifies_leaves_the_folder_also_as_the_last(
    record: UnbuiltTask, clones: Path, tmp_path: Path, task: Task
) -> None:
    store = TaskStore(tmp_path / "tasks")
    store.save_unbuilt([record.model_copy(update={"python": "3.1"})])
    store.save([task.model_copy(update={"id": record.id, "source": "imported"})], {}, {})
    config = ImportedConfig(repos=str(clones), num_workers=1)
    (outcome,) = await ImportedBuilder(store.folder, config, LayerStore(tmp_path / "layers")).build()
    assert (outcome.stage, outcome.is_certified) == ("interpreter", False)
    assert store.load_certified() == ()
    assert [left.id for left in store.iter_left_unbuilt()] == [record.id]


class FailingStore(LayerStore):
    """A store in which nothing is found because of an error."""

    def __init__(self, root: Path, error: Exception) -> None:
        super().__init__(root)
        self.error = error

    def find(self, kind: str, digest: str) -> Path | None:
        raise self.error


@pytest.mark.asyncio
async def test_failures_of_the_machine_are_tried_again_and_those_of_the_record_stay(
    record: UnbuiltTask, clones: Path, tmp_path: Path
) -> None:
    folder, config = tmp_path / "tasks", ImportedConfig(repos=str(clones), num_workers=1)
    TaskStore(folder).save_unbuilt([record])

    async def build(error: Exception) -> str:
        (outcome,) = await ImportedBuilder(folder, config, FailingStore(tmp_path / "layers", error)).build()
        return outcome.reason

    assert await build(OSError(errno.EIO, "broken")) == "[Errno 5] broken"
    assert await build(SandboxLostError("lost")) == "lost"
    with pytest.raises(DiskFullError, match=tempfile.gettempdir()):
        await build(OSError(errno.ENOSPC, "full"))
    assert await build(SandboxContentError("too many files")) == "too many files"
    assert await build(SandboxLostError("lost")) == "too many files"


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_record_becomes_a_task_and_is_not_built_twice(
    record: UnbuiltTask, clones: Path, tmp_path: Path
) -> None:
    folder, layers = tmp_path / "tasks", LayerStore(tmp_path / "layers")
    TaskStore(folder).save_unbuilt([record])
    config = ImportedConfig(repos=str(clones), uploaded_before="2024-11-01")
    (first,) = await ImportedBuilder(folder, config, layers).build()
    assert first.is_certified, first.reason
    (again,) = await ImportedBuilder(folder, config, layers).build()
    assert again == first
    (task,) = TaskStore(folder).load()
    assert list(TaskStore(folder).iter_left_unbuilt()) == []
    assert imported_layers(task, layers).tree.name == task.base_tree


@pytest.mark.parametrize(
    ("message", "is_network"),
    [
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", True),
        ("ConnectionError: HTTPConnectionPool(host='httpbin.org', port=80): Max retries exceeded with url: /get", True),
        ("OSError: [Errno 101] Network is unreachable", True),
        ("AssertionError: assert ConnectionRefusedError == OSError", False),
    ],
)
def test_failures_without_a_network_are_known_by_their_message(message: str, is_network: bool) -> None:
    result = TestResult(outcome=TestOutcome.FAILED, message=message)
    run = TestRun(results={"a": result, "b": TestResult(outcome=TestOutcome.PASSED)}, exit_status=1)
    assert network_failures(run, ("a", "b", "gone")) == (("a",) if is_network else ())


@pytest.mark.asyncio
async def test_a_record_whose_tests_need_a_network_says_so(
    record: UnbuiltTask, clones: Path, store: LayerStore, backend: SandboxBackend, small_environment: Path
) -> None:
    asking = "import socket\n\n\ndef test_double():\n    socket.getaddrinfo('httpbin.invalid', 80)\n"
    files = {"test_patch": unified_diff({"tests/test_calc.py": OLD_TESTS}, {"tests/test_calc.py": asking})}
    lists = {"fail_to_pass": record.fail_to_pass[:1], "pass_to_pass": ()}
    asked = record.model_copy(update={**files, **lists})
    tree = graded_tree(store, GitRepository(clones / "acme__calc"), asked)
    installed = Installed(TaskLayers(small_environment, tree), ("src",), packages_of(small_environment))
    config = ImportedConfig(repos=str(clones), num_certificate_runs=1)
    with pytest.raises(TaskError, match="; need a network, which sandboxes lack: 1"):
        await Certifier(asked, installed, HERE, backend, config).certify()
