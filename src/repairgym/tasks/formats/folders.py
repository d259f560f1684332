"""Task folders: one folder of files per task (SWE-bench 5, Harbor), and shell lines that run its tests in a container.

Reads and makes folders. As `Fields`, a file is its relative path and its text, or a table where text is not enough:
``{"base64": ...}`` for bytes that are no UTF-8, ``{"text": ..., "is_executable": true}`` for a program. Guarantees:
links are not followed; nothing is written outside the folder; a folder read and written again has the same bytes.
Scripts first restore every deciding file and name each test. They lack most of our grader's checks
(forged reports). Links, files that cannot be read and paths that leave the folder raise `RecordError`.
"""

import base64
import os
import shlex
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from repairgym.diffs.parse import PatchError, changed_paths
from repairgym.tasks.formats.base import Fields, RecordError
from repairgym.tasks.unbuilt import UnbuiltTask

MAX_DEPTH = 6
"""Folders below the given one that are searched for tasks."""
MARKERS = ("task.yaml", "task.toml")
"""Files that make a folder a task: SWE-bench 5, Harbor."""


def find_task_folders(folder: Path) -> list[Path]:
    """Return the task folders in ``folder``, itself included, sorted; without hidden folders and links."""
    folders = []
    for place, names, files in os.walk(folder):
        here = Path(place)
        is_task = not set(MARKERS).isdisjoint(files)
        if is_task:
            folders.append(here)
        is_deep = len(here.relative_to(folder).parts) >= MAX_DEPTH
        names[:] = [] if is_deep or is_task else [name for name in names if not name.startswith(".")]
    return sorted(folders)


def read_folder(folder: Path) -> Fields:
    """Read the files of a task folder."""
    fields: Fields = {}
    try:
        for place, folders, names in os.walk(folder, onerror=_raise):
            for path in (Path(place, name) for name in sorted((*folders, *names))):
                if path.is_symlink():
                    raise RecordError(f"{path.relative_to(folder)} is a link; replace it by the file")
            for path in (Path(place, name) for name in sorted(names)):
                fields[path.relative_to(folder).as_posix()] = _read_file(path)
    except OSError as error:
        raise RecordError(f"{error.filename} cannot be read: {error.strerror}") from error
    return dict(sorted(fields.items()))


def _raise(error: OSError) -> None:
    raise error


def _read_file(path: Path) -> Any:
    content = path.read_bytes()
    try:
        value: Any = content.decode()
    except UnicodeDecodeError:
        value = {"base64": base64.b64encode(content).decode()}
    if not path.stat().st_mode & 0o100:
        return value
    return {**(value if isinstance(value, dict) else {"text": value}), "is_executable": True}


def write_folder(folder: Path, fields: Fields) -> None:
    """Write ``fields`` as files below ``folder``, which must not exist."""
    files = {_safe_path(name): _content(name, value) for name, value in fields.items()}
    folder.mkdir(parents=True)
    for name, (content, is_executable) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if is_executable:
            path.chmod(0o755)


def _safe_path(name: str) -> str:
    """Return ``name`` if it stays inside its folder: not absolute, not empty, not up."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name or not path.parts:
        raise RecordError(f"the path {name!r} does not stay in its folder")
    return name


def _content(name: str, value: Any) -> tuple[bytes, bool]:
    table = value if isinstance(value, dict) else {"text": value}
    is_executable = table.get("is_executable") is True
    if isinstance(table.get("text"), str):
        return table["text"].encode(), is_executable
    if isinstance(table.get("base64"), str):
        try:
            return base64.b64decode(table["base64"], validate=True), is_executable
        except ValueError as error:
            raise RecordError(f"the file {name!r} is no base64: {error}") from error
    raise RecordError(f"the file {name!r} has neither text nor base64")


def program(text: str) -> Fields:
    """Return the value of an executable file."""
    return {"text": text, "is_executable": True}


def get_file(fields: Fields, name: str, default: str | None = "") -> str:
    """Return the text of a file, or ``default`` for a missing one (None: it is required)."""
    value = fields.get(name)
    if isinstance(value, dict):
        value = value.get("text")
    if isinstance(value, str):
        return value
    if default is None or name in fields:
        raise RecordError(f"the file {name} {'is no text' if name in fields else 'is missing'}")
    return default


def parse_file(fields: Fields, name: str, parse: Callable[[str], Any]) -> Fields:
    """Return the fields that ``parse`` reads from the text of a required file."""
    try:
        table = parse(get_file(fields, name, None))
    except (ValueError, yaml.YAMLError) as error:
        raise RecordError(f"{name} cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise RecordError(f"{name} holds no fields")
    return table


WORK_FOLDER = "/testbed"
"""Place of the repository in images of SWE-bench and its descendants."""
PYTEST = "python -m pytest -q -rA -p no:cacheprovider"


def restore_lines(task: UnbuiltTask) -> str:
    """Restore the test files of the base commit, and remove those that it does not have.

    An image whose history was squashed lacks the commit. Its first one is taken then: an agent can add others.
    """
    try:
        patched = changed_paths(task.test_patch)
    except PatchError as error:
        raise RecordError(f"a container needs a readable patch of tests: {error}") from error
    names = (name.partition("::")[0] for name in task.fail_to_pass + task.pass_to_pass if "::" in name)
    paths = " ".join(map(shlex.quote, sorted({*patched, *names})))
    loop = f"""base={shlex.quote(task.base_commit or "HEAD")}
git cat-file -e "$base^{{commit}}" 2>/dev/null || base=$(git rev-list --max-parents=0 HEAD | tail -n 1)
for path in {paths}; do
  if git cat-file -e "$base:$path" 2>/dev/null; then git checkout -q "$base" -- "$path"; else rm -f "$path"; fi
done
"""
    return f"cd {WORK_FOLDER}\n{loop if paths else ''}"


def command_of(task: UnbuiltTask) -> str:
    """Return the command to append test names to: the record's own, or pytest."""
    return task.test_command or PYTEST


def dockerfile(task: UnbuiltTask) -> dict[str, str]:
    """Return the Dockerfile, and the patch that adds the bug to an image without it."""
    text = f"FROM {task.image}\nWORKDIR {WORK_FOLDER}\n"
    if not task.bug_patch:
        return {"Dockerfile": text}
    text += "COPY bug.patch /tmp/bug.patch\nRUN git apply --whitespace=nowarn /tmp/bug.patch && rm /tmp/bug.patch\n"
    return {"Dockerfile": text, "bug.patch": task.bug_patch}
