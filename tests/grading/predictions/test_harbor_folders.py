from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from repairgym.config.pipeline import GradingConfig
from repairgym.diffs.make import unified_diff
from repairgym.errors import InputError
from repairgym.grading.predictions.harbor_folders import grade_folders, read_folder_tasks
from repairgym.grading.predictions.pool import GradeAnswer
from repairgym.grading.predictions.reading import Prediction
from repairgym.grading.predictions.results import GradedPrediction
from repairgym.records import Verdict, VerdictKind
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.probe import probe_backend
from repairgym.tasks.audit.foreign.harbor_folder import read_harbor_folder
from repairgym.tasks.audit.foreign.place import Probe, environment_of, opened
from repairgym.tasks.layers.environments import describe_environment, read_lock
from repairgym.tasks.layers.store import LayerStore

BROKEN = "def double(x):\n    return x * 3\n"
RIGHT = BROKEN.replace("* 3", "* 2")
GOLD = f"#!/bin/bash\ncat > /app/calc.py <<'END'\n{RIGHT}END\n"
VERIFIER = """#!/bin/bash
echo 0 > /logs/verifier/reward.txt
cd /app
if python -m pytest -q /tests/test_calc.py; then echo 1 > /logs/verifier/reward.txt; fi
"""
FILES = {
    "task.toml": '[task]\nname = "acme/calc"\n[verifier]\ntimeout_sec = 60.0\n',
    "instruction.md": "double(2) in /app/calc.py is 6",
    "environment/Dockerfile": "FROM python:3.12\nWORKDIR /app\nCOPY calc.py /app/calc.py\nENV PYTHONPATH=/app\n",
    "environment/calc.py": BROKEN,
    "tests/test.sh": VERIFIER,
    "tests/test_calc.py": "import calc\n\n\ndef test_double():\n    assert calc.double(2) == 4\n",
    "solution/solve.sh": GOLD,
}
EXITING = "import os\nimport sys\n\nif 'pytest' in ' '.join(sys.orig_argv):\n    os._exit(0)\n"


def write(folder: Path, files: Mapping[str, str] = FILES) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def predicted(after: str, **more: str) -> Prediction:
    new = {"calc.py": after, **more}
    patch = unified_diff({"calc.py": BROKEN, **dict.fromkeys(more)}, new)
    return Prediction(instance_id="acme/calc", model_name_or_path="m", model_patch=patch)


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[SandboxBackend]:
    if not probe_backend("namespace").is_available:
        pytest.skip("needs the namespace back end")
    made = NamespaceBackend()
    yield made
    await made.close()


@pytest.fixture
def layers(tmp_path: Path, small_environment: Path) -> LayerStore:
    store = LayerStore(tmp_path / "layers")
    place = store.root / "environments" / describe_environment(read_lock(())).digest
    place.parent.mkdir(parents=True)
    place.symlink_to(small_environment)
    return store


async def graded(
    folder: Path, backend: SandboxBackend, layers: LayerStore, prediction: Prediction, ours: GradeAnswer | None = None
) -> GradedPrediction:
    answers = {prediction.instance_id: ours} if ours else {}
    config = GradingConfig(is_cold=True)
    tasks = read_folder_tasks(folder)
    (result,) = [one async for one in grade_folders(tasks, [prediction], answers, backend, config, 1, layers)]
    return result


@pytest.mark.asyncio
async def test_a_folder_gives_both_verdicts(tmp_path: Path, backend: SandboxBackend, layers: LayerStore) -> None:
    """The verifier is bought by a conftest.py, which our part leaves out."""
    folder = write(tmp_path / "one")
    kinds = {}
    submissions = {
        "right": predicted(RIGHT),
        "wrong": predicted(BROKEN.replace("* 3", "* 4")),
        "bought": predicted(BROKEN, **{"conftest.py": "import os\nos._exit(0)\n", "sitecustomize.py": EXITING}),
        "no diff": Prediction(instance_id="acme/calc", model_name_or_path="m", model_patch="no diff"),
    }
    for name, submission in submissions.items():
        result = await graded(folder, backend, layers, submission)
        kinds[name] = (result.official, result.verdict.kind.value, result.is_applied)
    assert kinds == {
        "right": ("resolved", "passed", True),
        "wrong": ("unresolved", "failed", True),
        "bought": ("resolved", "failed", True),
        "no diff": ("unresolved", "failed", False),
    }


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("tests/test.sh", "echo 1 > /logs/verifier/reward.txt\n", "rewards a submission that changes nothing"),
        ("solution/solve.sh", "echo no idea\n", "does not reward the solution here: "),
        ("environment/Dockerfile", "FROM golang:1.24\n", "cannot be run here: needs the image golang:1.24"),
    ],
)
async def test_a_folder_that_decides_nothing_is_invalid(
    tmp_path: Path, backend: SandboxBackend, layers: LayerStore, file: str, text: str, reason: str
) -> None:
    result = await graded(write(tmp_path / "one", {**FILES, file: text}), backend, layers, predicted(RIGHT))
    assert (result.verdict.kind, result.official) == (VerdictKind.INVALID, None)
    assert reason in result.verdict.reason


@pytest.mark.asyncio
async def test_a_patch_on_other_bytes_is_not_decided(
    tmp_path: Path, backend: SandboxBackend, layers: LayerStore
) -> None:
    folder = write(tmp_path / "one")
    (folder / "environment/calc.py").write_bytes(b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + BROKEN.encode())
    result = await graded(folder, backend, layers, predicted(RIGHT))
    assert (result.verdict.kind, result.official) == (VerdictKind.INVALID, None)
    assert "calc.py, which is no UTF-8" in result.verdict.reason


@pytest.mark.asyncio
async def test_the_verdict_of_the_grader_stands_beside_that_of_the_verifier(
    tmp_path: Path, backend: SandboxBackend, layers: LayerStore
) -> None:
    ours = GradeAnswer(Verdict(kind=VerdictKind.EXPLOITED, reason="forged", grader_version="1"))
    result = await graded(write(tmp_path / "one"), backend, layers, predicted(RIGHT), ours)
    assert (result.official, result.verdict) == ("resolved", ours.verdict)


def test_ids_are_those_of_the_folders_and_distinct(tmp_path: Path) -> None:
    write(tmp_path / "one")
    write(tmp_path / "two", {**FILES, "task.toml": ""})
    tasks = read_folder_tasks(tmp_path)
    assert tasks.keys() == {"acme/calc", "two"}
    key = tasks["two"].key("p", GradingConfig())
    write(tmp_path / "two", {"tests/test.sh": "exit 1\n"})
    assert read_folder_tasks(tmp_path)["two"].key("p", GradingConfig()) != key
    write(tmp_path / "two", {**FILES, "task.toml": "[verifier.env]\nMODE = 'a'\n"})
    key = read_folder_tasks(tmp_path)["two"].key("p", GradingConfig())
    assert read_folder_tasks(tmp_path)["two"].key("p", GradingConfig()) == key
    write(tmp_path / "two", {"task.toml": "[verifier.env]\nMODE = 'b'\n"})
    assert read_folder_tasks(tmp_path)["two"].key("p", GradingConfig()) != key
    write(tmp_path / "three")
    with pytest.raises(InputError, match="have one id, acme/calc"):
        read_folder_tasks(tmp_path)


@pytest.mark.asyncio
async def test_a_separate_verifier_gets_the_artifacts_only(
    tmp_path: Path, backend: SandboxBackend, layers: LayerStore
) -> None:
    """What the agent leaves outside of its artifacts, or removes from them, is as the folder says."""
    separate = 'artifacts = ["/app"]\n' + FILES["task.toml"] + 'environment_mode = "separate"\n'
    verifier = "#!/bin/bash\ntest ! -e /app/calc.py -a ! -e /srv/left\necho $((1 - $?)) > /logs/verifier/reward.txt\n"
    files = {**FILES, "task.toml": separate, "tests/test.sh": verifier, "environment/left": ""}
    files["environment/Dockerfile"] = "FROM python:3.12\nWORKDIR /app\nCOPY calc.py /app/\nRUN mkdir -p /srv\n"
    own_image = {**files, "tests/Dockerfile": "FROM python:3.12\n"}
    shared = {**files, "task.toml": FILES["task.toml"]}
    agent = Probe("agent", script="rm /app/calc.py; touch /srv/left")
    rewards = {}
    for name, chosen in {"own": own_image, "copy": files, "shared": shared}.items():
        folder = read_harbor_folder(write(tmp_path / name, chosen))
        assert (folder.is_separate, folder.artifacts) == ((False, ()) if name == "shared" else (True, ("/app",)))
        async with opened(folder, backend, environment_of(folder.path, layers)) as place:
            rewards[name] = (await place.run(agent)).reward.value
    # The copy of the agent's image has the removed file again; Harbor's has, too.
    assert rewards == {"own": 1.0, "copy": 0.0, "shared": 0.0}
