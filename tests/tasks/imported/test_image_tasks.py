"""Tasks whose environment is a container image, made here from programs of this machine."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from repairgym.config.sandbox import LayersConfig
from repairgym.config.tasks import ImportedConfig
from repairgym.errors import InputError, TaskError
from repairgym.grading.agreement import compare_warm_and_cold
from repairgym.records import Task
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.conformance.host_image import ENVIRONMENT, make_image
from repairgym.tasks.audit.suite import read_suite
from repairgym.tasks.build.validation import imported_layers, task_layers
from repairgym.tasks.imported.build_imported import ImportedBuilder
from repairgym.tasks.imported.in_images import ImageBuilder
from repairgym.tasks.imported.outcomes import BuildOutcome
from repairgym.tasks.layers.images.installed import find_image, layers_of_id
from repairgym.tasks.layers.images.pull import IMAGES
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.statistics import package_statistics
from repairgym.tasks.store import TaskStore
from repairgym.tasks.unbuilt import UnbuiltTask
from repairgym.testing.image_archives import Layer, entry, layer, link, write_saved

CONFIG = {"Env": [f"VIRTUAL_ENV={ENVIRONMENT}"], "WorkingDir": "/app/"}
FIELDS = {"architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()], "config": CONFIG}
CODE, TEST = "src/calc/__init__.py", "tests/test_calc.py"
SITE = f"{ENVIRONMENT}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"[1:]


@pytest.fixture(scope="session")
def base_layer(tmp_path_factory: pytest.TempPathFactory, small_environment: Path) -> Layer:
    """The programs and packages of an image, as one layer."""
    root = make_image(tmp_path_factory.mktemp("image"), small_environment)
    content = b""
    for folder in root.layers:
        made = subprocess.run(["tar", "-C", folder, "-c", "."], check=True, capture_output=True)
        content = content.rstrip(b"\0") + bytes(-len(content.rstrip(b"\0")) % 512) + made.stdout
    return content, content


def repository(place: str, files: dict[str, str]) -> Layer:
    """Return the layer of the repository, installed as an editable project, with history and a way out."""
    return layer(
        *(entry(f"{place}/{path}", text.encode()) for path, text in files.items()),
        entry(f"{place}/.git/HEAD", b"ref: refs/heads/main"),
        entry(f"{place}/old.txt", b""),
        entry(f"{place}/kept.txt", b"kept"),
        link(f"{place}/passwd", "/etc/passwd"),
        entry(f"{SITE}/calc.pth", b"/" + place.encode() + b"/src\n"),
        entry(f"{SITE}/calc-1.0.dist-info/METADATA", b"Name: calc\nVersion: 1.0\n"),
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LayerStore:
    """A store that unpacks the large layer once."""
    return LayerStore(tmp_path_factory.mktemp("layers"), config=LayersConfig(is_index_allowed=False))


async def build(folder: Path, store: LayerStore, record: UnbuiltTask, **options: object) -> BuildOutcome:
    TaskStore(folder).save_unbuilt([record])
    config = ImportedConfig.model_validate({"images": f"{folder.parent}/{{docker_id}}.tar", **options})
    (outcome,) = await ImportedBuilder(folder, config, store).build()
    return outcome


@pytest.mark.asyncio
async def test_a_record_is_built_in_its_image_and_graded(
    image_record: UnbuiltTask,
    calc_files: dict[str, str],
    base_layer: Layer,
    store: LayerStore,
    tmp_path: Path,
    backend: SandboxBackend,
) -> None:
    layers = [base_layer, repository("testbed", calc_files), layer(entry("testbed/.wh.old.txt"))]
    write_saved(tmp_path / "acme_1776_calc-7.tar", layers, **FIELDS)
    folder = tmp_path / "tasks"
    outcome = await build(folder, store, image_record, num_certificate_runs=1)
    assert outcome.is_certified, outcome.reason
    assert outcome.python == platform.python_version()
    (task,) = TaskStore(folder).load()
    name = f"{TEST}::test_"
    assert (task.fail_to_pass, task.runner.type) == ((f"{name}double",), "pytest")
    assert set(task.pass_to_pass) == {f"{name}zero", f"{name}half", f"{name}words[a b]"}
    assert (task.source_paths, task.split) == (("src",), "test")
    used = task.environment.image
    assert used is not None
    assert (used.folder, used.repository) == (str(ENVIRONMENT), "/testbed")
    assert "calc==1.0\n" in task.environment.lock
    assert "pytest==" in task.environment.lock
    assert Task.model_validate_json(task.model_dump_json()) == task

    tree = imported_layers(task, store).tree
    assert sorted(path.name for path in tree.iterdir()) == ["kept.txt", "src", "tests"], (
        "no history, no whiteout, no way out"
    )
    assert "test_double" in (tree / "tests/test_calc.py").read_text()
    in_layer = store.root / layers_of_id(store.root, used.image_id)[1] / "testbed"
    assert (in_layer / TEST).read_text() == calc_files[TEST], "the layer is as it was pulled"
    assert (tree / "kept.txt").samefile(in_layer / "kept.txt")
    (row,) = package_statistics([task], [], store.root)
    assert row.layer_bytes is not None
    assert row.layer_bytes > len(base_layer[0]) / 2

    suite = await read_suite([task], store, backend, 1)
    assert suite.durations_s.keys() > {*task.fail_to_pass, *task.pass_to_pass}

    (pairs,) = [pairs async for pairs in compare_warm_and_cold([task], store=store)]
    assert [pair.difference for pair in pairs] == ["", "", ""]
    sandbox = await backend.create(task_layers(task, store).spec(dict(task.base_files)))
    await sandbox.write_file("new.txt", b"new")
    (child,) = await sandbox.fork()
    done = await child.exec(
        ("python", "-c", "import calc; print(calc.double(2), open('new.txt').read())"), timeout_s=60
    )
    assert done.stdout == b"6 new\n", done.stderr
    await sandbox.close()
    await child.close()

    assert await build(folder, store, image_record, num_certificate_runs=1) == outcome, "built once"
    store.release(IMAGES, used.image_id)
    with pytest.raises(InputError, match="is not on this machine; pull it: repairgym layers pull"):
        task_layers(task, store)


@pytest.mark.asyncio
async def test_a_repository_elsewhere_is_shown_there(
    image_record: UnbuiltTask,
    calc_files: dict[str, str],
    base_layer: Layer,
    store: LayerStore,
    tmp_path: Path,
    backend: SandboxBackend,
) -> None:
    path = tmp_path / "one.tar"
    write_saved(path, [base_layer, repository("app", calc_files)], **FIELDS)
    builder = ImageBuilder(store, ImportedConfig(images=str(path)))
    image = builder.find(image_record)
    pinned, tree = builder.tree(image_record, image)
    assert pinned.base_files[CODE] == calc_files[CODE]
    installed, interpreter = await builder.install(image, tree, backend)
    assert (interpreter.minor, installed.packages.has_pytest) == (sys.version_info[:2], True)
    sandbox = await backend.create(installed.layers.spec(dict(pinned.gold_files)))
    try:
        done = await sandbox.exec(("python", "-c", "import calc; print(calc.__file__, calc.double(2))"), timeout_s=60)
    finally:
        await sandbox.close()
    assert done.stdout.split()[1] == b"4", done.stderr
    assert find_image(store, str(path)) == image
    wrong = ImageBuilder(store, ImportedConfig(images=str(path), image_repository="/srv"))
    with pytest.raises(TaskError, match="has no folder /srv; set image_repository"):
        wrong.tree(image_record, image)


@pytest.mark.asyncio
async def test_an_old_python_needs_an_allowed_log(
    image_record: UnbuiltTask, calc_files: dict[str, str], base_layer: Layer, store: LayerStore, tmp_path: Path
) -> None:
    program = f"""#!/bin/sh
if [ "$1" = -c ]; then
echo '{{"version": "3.6.15", "packages": [], "plugins": [], "has_pytest": true, "sources": ["src"]}}'
else exec {ENVIRONMENT}/bin/python "$@"; fi
"""
    old = layer(*(entry(f"old/bin/{name}", program.encode(), mode=0o755) for name in ("python", "python3")))
    path = tmp_path / "acme_1776_calc-7.tar"
    write_saved(path, [base_layer, repository("testbed", calc_files), old], **FIELDS)
    options = {"num_certificate_runs": 1, "image_environment": "/old"}
    refused = await build(tmp_path / "tasks", store, image_record, **options)
    assert "need Python 3.8 or newer, and the image has 3.6.15; is_log_allowed=true" in refused.reason
    outcome = await build(tmp_path / "tasks", store, image_record, **options, is_log_allowed=True)
    assert outcome.task is not None, outcome.reason
    assert (outcome.task.runner.type, outcome.task.labels["results"]) == ("log", "unsigned log")
    assert outcome.task.fail_to_pass == ("tests/test_calc.py::test_double",)


@pytest.mark.parametrize(
    ("options", "extra", "image", "stage", "reason"),
    [
        ({"images": "{image}"}, {}, "", "environment", "the record names no image"),
        ({"images": "{image}"}, {"environment/Dockerfile": "FROM a\nRUN b\n"}, "a", "environment", "Dockerfile adds"),
        ({"images": "nowhere"}, {}, "", "environment", "expected HOST/NAME:TAG"),
        ({}, {}, "", "tree", "has no folder /testbed or /app"),
    ],
)
@pytest.mark.asyncio
async def test_what_cannot_be_used_has_a_reason(
    image_record: UnbuiltTask,
    store: LayerStore,
    tmp_path: Path,
    options: dict[str, str],
    extra: dict[str, str],
    image: str,
    stage: str,
    reason: str,
) -> None:
    write_saved(tmp_path / "acme_1776_calc-7.tar", [layer(entry("a"))], **FIELDS)
    record = image_record.model_copy(update={"extra": extra, "image": image})
    outcome = await build(tmp_path / "tasks", store, record, **options)
    assert (outcome.stage, outcome.is_certified) == (stage, False)
    assert reason in outcome.reason
