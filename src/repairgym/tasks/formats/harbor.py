"""Task folders of Harbor (``task.toml`` schema 1.0 to 1.4): an instruction, an environment, a verifier, a solution.

Harbor runs any container task, so that a folder says little about repository, patches and tests. Adapters of SWE-bench
put the whole record into ``tests/config.json``; it is read if present, as is a reference patch in a here-document of
``solution/solve.sh``. Written folders hold both, and a verifier that runs the tests by name and writes its reward to
``/logs/verifier/reward.txt``. A certified task runs without this project: its image is built from the locked packages
and the agent's tree, without hidden tests and without the repair; its verifier has an image of its own, gets the
agent's tree as an artifact, and restores every pinned test file first.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from repairgym.config.loading import to_toml
from repairgym.records import Record, Task
from repairgym.tasks.formats.base import (
    Fields,
    Format,
    RecordError,
    get_scores,
    get_table,
    has,
    keep_filled,
    text_or_empty,
)
from repairgym.tasks.formats.folders import (
    PYTEST,
    WORK_FOLDER,
    command_of,
    dockerfile,
    get_file,
    parse_file,
    program,
    read_folder,
    restore_lines,
)
from repairgym.tasks.formats.swe_bench import read_core, write_swe_bench
from repairgym.tasks.unbuilt import UnbuiltTask

TASK_FILE, RECORD_FILE, SOLUTION_FILE = "task.toml", "tests/config.json", "solution/solve.sh"
_HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?\n)\2\s*(?:\n|$)", re.DOTALL)


class _TaskFile(Record):
    """The written part of ``task.toml`` (schema 1.1); missing limits are Harbor's own."""

    schema_version: str = "1.1"
    artifacts: tuple[str, ...] = ()
    """Paths that a separate verifier gets from the agent's environment."""
    task: dict[str, str]
    metadata: dict[str, str]
    verifier: dict[str, float | str] = {"timeout_sec": 1800.0}  # the bound of SWE-bench's harness
    agent: dict[str, float] = {"timeout_sec": 3000.0}
    environment: dict[str, float] = {"build_timeout_sec": 600.0}


class Harbor(Format):
    """Task folders of Harbor."""

    name = "harbor"
    is_folder = True
    required = (TASK_FILE,)

    def _read(self, fields: Fields) -> UnbuiltTask:
        settings = parse_file(fields, TASK_FILE, tomllib.loads)
        environment = get_table(settings, "environment")
        image = text_or_empty(environment.get("docker_image")) or _base_image(
            get_file(fields, "environment/Dockerfile")
        )
        issue = get_file(fields, "instruction.md", None)
        record = _record(fields)
        if record is not None:
            core = read_core(record) | {"issue": issue}
            return UnbuiltTask(format=self.name, image=image, **core)
        name = text_or_empty(get_table(settings, "task").get("name"))
        if not name:
            raise RecordError(f"{TASK_FILE} has no task.name and there is no {RECORD_FILE}: the task has no id")
        return UnbuiltTask(
            id=name,
            format=self.name,
            issue=issue,
            gold_patch=_patch_in(get_file(fields, SOLUTION_FILE)),
            image=image,
            quality_scores=get_scores(get_table(settings, "metadata")),
        )

    def _write(self, task: UnbuiltTask) -> Fields:
        if not task.image:
            raise RecordError("harbor needs a container image, and the record names none")
        metadata = {"repository": task.repository, "base_commit": task.base_commit, "created_at": task.created_at}
        settings = _TaskFile(task=_task_table(task.id, task.repository), metadata=keep_filled(metadata))
        return {
            TASK_FILE: to_toml(settings),
            "instruction.md": task.issue,
            **{f"environment/{name}": text for name, text in dockerfile(task).items()},
            RECORD_FILE: json.dumps(write_swe_bench(task), indent=2, ensure_ascii=False) + "\n",
            "tests/test.patch": task.test_patch,
            "tests/test_ids.txt": "".join(f"{name}\n" for name in task.fail_to_pass + task.pass_to_pass),
            "tests/test.sh": program(_verifier(_patched_tests(task), command_of(task))),
            "solution/gold.patch": task.gold_patch,
            SOLUTION_FILE: program(_SOLUTION_HEAD + _APPLY_GOLD),
        }


def _task_table(task_id: str, repository: str) -> dict[str, str]:
    """Return the table ``[task]``; Harbor wants a name of the form OWNER/NAME, in a few characters."""
    owner, _, _ = repository.rpartition("/")
    parts = (re.sub(r"[^\w.-]|\.\.+", "-", part, flags=re.ASCII).lstrip("._-") for part in (owner, task_id))
    return {"name": "/".join(part or "repairgym" for part in parts), "description": ""}


def _record(fields: Fields) -> Fields | None:
    """Return the record in ``tests/config.json``; None without one of SWE-bench's form."""
    if RECORD_FILE not in fields:
        return None
    try:
        record = json.loads(get_file(fields, RECORD_FILE))
    except ValueError as error:
        raise RecordError(f"{RECORD_FILE} is no JSON: {error}") from error
    is_known = isinstance(record, dict) and has(record, "instance_id", "repo", "base_commit", "patch", "FAIL_TO_PASS")
    return record if is_known else None


def _base_image(dockerfile: str) -> str:
    images = re.findall(r"(?mi)^FROM\s+(?:--\S+\s+)*(\S+)", dockerfile)
    return images[-1] if images else ""


def _patch_in(script: str) -> str:
    """Return the patch in a solution's here-document; empty without one."""
    texts = (match[3] for match in _HERE_DOCUMENT.finditer(script))
    return next((text for text in texts if text.startswith(("diff --git ", "--- "))), "")


_FOLDER_OF_SCRIPT = '"$(dirname "$(readlink -f "$0")")'
_SOLUTION_HEAD = "#!/bin/bash\nset -euo pipefail\n"
_APPLY_GOLD = f'cd {WORK_FOLDER}\ngit apply --whitespace=nowarn {_FOLDER_OF_SCRIPT}/gold.patch"\n'


_COUNT_PASSED = """
python -I - "$report" "${#ids[@]}" <<'END' || status=1
import sys
import xml.etree.ElementTree as tree

def is_passed(case):
    return all(part.tag not in ("failure", "error") and part.get("type") != "pytest.skip" for part in case)

sys.exit(sum(map(is_passed, tree.parse(sys.argv[1]).iter("testcase"))) < int(sys.argv[2]))
END"""
"""Lines that fail unless the report has as many passed tests as there are ids: a skip or an early exit is no pass."""


def _verifier(setup: str, command: str) -> str:
    """Return a script that runs every test by name after ``setup`` and writes a reward of 1 if all passed."""
    is_pytest = bool(re.match(r"(?:python3? -m )?pytest\b", command))
    return f"""#!/bin/bash
set -uo pipefail
tests={_FOLDER_OF_SCRIPT}"
mkdir -p /logs/verifier
rm -f /logs/verifier/reward.*
echo 0 > /logs/verifier/reward.txt
report=$(mktemp -d)/report.xml
{setup}mapfile -t ids < "$tests/test_ids.txt"
{command}{' --junitxml="$report"' if is_pytest else ""} "${{ids[@]}}"
status=$?{_COUNT_PASSED if is_pytest else ""}
if [ $status -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; fi
"""


def _patched_tests(task: UnbuiltTask) -> str:
    patch = 'if [ -s "$tests/test.patch" ]; then git apply --whitespace=nowarn "$tests/test.patch"; fi\n'
    return restore_lines(task) + patch


# --- certified tasks -----------------------------------------------------------------------------------------------


def base_image(task: Task) -> str:
    """Return the base image of the environment of ``task``: its own image, or one with its Python."""
    if task.environment.image:
        return task.environment.image.name
    return f"python:{task.environment.python}-slim"


def certified_files(task: Task, tree: Path) -> Fields:
    """Return environment, verifier and solution of ``task`` with the pinned ``tree``, which must hold no link."""
    pinned = read_folder(tree)
    base = {path: value for path, value in {**pinned, **task.base_files}.items() if value is not None}
    loaded = {path for path in pinned if PurePosixPath(path).name in _LOADED_NAMES} - task.gold_files.keys()
    tests = {path: pinned[path] for path in sorted({*task.test_paths, *loaded}) if path in pinned}
    gold = {path: text for path, text in task.gold_files.items() if text is not None}
    removed = "".join(f"rm -f {shlex.quote(path)}\n" for path, text in task.gold_files.items() if text is None)
    copy_gold = f'cp -r {_FOLDER_OF_SCRIPT}/files/." {WORK_FOLDER}/\ncd {WORK_FOLDER}\n'
    settings = _TaskFile(
        artifacts=(WORK_FOLDER,),
        task=_task_table(task.id, task.provenance.package),
        metadata=keep_filled({"repository": task.provenance.package, "created_at": task.created_at}),
        verifier={"timeout_sec": 1800.0, "environment_mode": "separate"},
    )
    return {
        TASK_FILE: to_toml(settings),
        "environment/Dockerfile": _dockerfile(task, f"COPY base {WORK_FOLDER}"),
        "environment/requirements.txt": task.environment.lock,
        **_below("environment/base", base),
        "tests/Dockerfile": _dockerfile(task, f"COPY . /tests\nRUN mkdir -p {WORK_FOLDER}"),
        "tests/requirements.txt": task.environment.lock,
        "tests/test.sh": program(_certified_verifier(task)),
        **_below("tests/files", tests),
        SOLUTION_FILE: program(_SOLUTION_HEAD + copy_gold + removed),
        **_below("solution/files", gold),
    }


def _below(folder: str, files: Mapping[str, Any]) -> Fields:
    return {f"{folder}/{path}": value for path, value in files.items()}


def _search_path(task: Task) -> str:
    return ":".join(f"{WORK_FOLDER}/{path}".rstrip("/") for path in task.source_paths)


def _dockerfile(task: Task, content: str) -> str:
    packages = """COPY requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/requirements.txt
"""
    if image := task.environment.image:
        link = "" if image.repository == WORK_FOLDER else f" && ln -s {WORK_FOLDER} {image.repository}"
        packages = f"ENV PATH={image.folder.rstrip('/')}/bin:$PATH\nRUN rm -rf {image.repository}{link}\n"
    return f"""FROM {base_image(task)}
{packages}{content}
WORKDIR {WORK_FOLDER}
ENV PYTHONPATH={_search_path(task)} PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONDONTWRITEBYTECODE=1
"""


_LOADED_NAMES = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml"),
    *("sitecustomize.py", "usercustomize.py", "pytest.py"),
)
"""Files that pytest or Python loads by itself; the verifier removes them and restores the pinned ones."""


def _certified_verifier(task: Task) -> str:
    names = " -o ".join(f"-name {name}" for name in _LOADED_NAMES)
    kept = [f"{WORK_FOLDER}/{path}" for path in sorted(task.gold_files) if PurePosixPath(path).name in _LOADED_NAMES]
    repaired = "".join(f" -not -path {shlex.quote(path)}" for path in kept)
    setup = f"""find {WORK_FOLDER} \\( {names} \\){repaired} -delete
cp -r "$tests/files/." {WORK_FOLDER}/
cd {WORK_FOLDER}
export PYTHONPATH={shlex.quote(_search_path(task))} PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONDONTWRITEBYTECODE=1
"""
    plugins = "".join(f" -p {shlex.quote(name)}" for name in task.plugins)
    return _verifier(setup, PYTEST + plugins)
