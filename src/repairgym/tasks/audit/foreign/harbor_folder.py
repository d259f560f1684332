"""Harbor task folders as an audit reads them: scripts, settings and the simple part of a Dockerfile.

Reads a folder. Makes a `HarborFolder` with an `ImagePlan`, the steps that make the agent's starting state. Instructions
without an effect on files (CMD, LABEL, ...) are ignored, here-documents are named and not read; nothing is executed
here. InputError for a folder that is no task.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from repairgym.errors import InputError

TASK_FILE, TEST_SCRIPT, SOLUTION_SCRIPT = "task.toml", "test.sh", "solve.sh"
DEFAULT_PATH = "/opt/env/bin:/usr/local/bin:/usr/bin:/bin"
_DEFAULT_FOLDER = "/"
_IGNORE = ".dockerignore"
_MAX_BYTES = 64 << 20
_HEREDOC = re.compile(r"\d*<<-?(?P<quote>['\"]?)(?P<end>[A-Za-z_][\w.-]*)(?P=quote)")
_MKDIR = re.compile(r"\bmkdir\s+([^;&|<>]+)")
_FOLDERS = (
    *("/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/media", "/mnt", "/opt", "/root", "/run", "/sbin", "/srv"),
    *("/tmp", "/usr/bin", "/usr/lib", "/usr/local/bin", "/usr/local/lib", "/usr/local/share", "/usr/sbin"),
    *("/usr/share", "/usr/src", "/var/cache", "/var/lib", "/var/log", "/var/tmp"),
)
"""Folders of every base image, into which a file is copied."""
_PLAIN_IMAGES = re.compile(r"(?:.*/)?(python|debian|ubuntu|alpine|bash|buildpack-deps|uv)\b|scratch$|.*python")
"""Base images of which the machine that runs the audit has the programs."""


@dataclass(frozen=True)
class TaskFile:
    """One file of a folder."""

    content: bytes
    mode: int

    @property
    def text(self) -> str:
        """The content, odd bytes replaced."""
        return self.content.decode("utf-8", "replace")


Files = Mapping[str, TaskFile]


@dataclass(frozen=True)
class Copy:
    """A COPY or ADD instruction: files of the build context by target path."""

    files: Files


@dataclass(frozen=True)
class Run:
    """A RUN instruction."""

    command: str
    folder: str


@dataclass
class ImagePlan:
    """The steps of a Dockerfile."""

    base: str = ""
    folder: str = _DEFAULT_FOLDER
    """Working folder at the end."""
    environment: dict[str, str] = field(default_factory=dict)
    steps: list[Copy | Run] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Sources of COPY that the build context does not have."""
    heredoc: str = ""
    """Start of the first instruction with a here-document, whose effect is not known here."""
    folders: set[str] = field(default_factory=lambda: {"/"}.union(*map(_with_parents, _FOLDERS)))
    """Folders that are there, as far as instructions tell."""

    @property
    def copied(self) -> dict[str, TaskFile]:
        """All files that COPY puts into the image, by absolute path."""
        return {path: file for step in self.steps if isinstance(step, Copy) for path, file in step.files.items()}


@dataclass(frozen=True)
class HarborFolder:
    """A task folder."""

    path: Path
    settings: Mapping[str, Any]
    instruction: str
    environment: Files
    tests: Files
    solution: Files
    image: ImagePlan

    @property
    def scripts(self) -> dict[str, str]:
        """The text of every file in tests/ that is no data, by relative path."""
        return {name: file.text for name, file in self.tests.items() if name.endswith((".sh", ".py", ".bash"))}

    @property
    def is_separate(self) -> bool:
        """True where the verifier runs in an environment of its own, with the artifacts of the agent's."""
        verifier = self.settings.get("verifier", {})
        default = "separate" if "environment" in verifier else "shared"
        return bool(verifier.get("environment_mode", default) == "separate")

    @property
    def artifacts(self) -> tuple[str, ...]:
        """Paths that a separate verifier gets from the agent's environment."""
        entries = self.settings.get("artifacts", ())
        return tuple(str(entry.get("source", "") if isinstance(entry, dict) else entry) for entry in entries)

    @property
    def test_script(self) -> str:
        """The text of tests/test.sh."""
        return self.tests[TEST_SCRIPT].text


def holds_task_folders(path: Path) -> bool:
    """Return True where ``path`` is a task folder or holds some."""
    return (path / TASK_FILE).is_file() or any(path.glob(f"*/{TASK_FILE}"))


def find_folders(path: Path) -> list[Path]:
    """Return ``path`` if it is a task folder, else the task folders in it; InputError without any."""
    if (path / TASK_FILE).is_file():
        return [path]
    folders = sorted(file.parent for file in path.glob(f"*/{TASK_FILE}")) if path.is_dir() else []
    if not folders:
        raise InputError(f"got {path}, expected a folder with {TASK_FILE}, or a folder of such folders")
    return folders


def read_harbor_folder(path: Path) -> HarborFolder:
    """Read the task folder ``path``; InputError without a verifier or with a broken ``task.toml``."""
    try:
        settings = tomllib.loads((path / TASK_FILE).read_text(encoding="utf-8"))
        instruction = path / "instruction.md"
        parts = {name: _read_files(path / name) for name in ("environment", "tests", "solution")}
        text = instruction.read_text(encoding="utf-8") if instruction.is_file() else ""
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a Harbor task: {error}") from error
    if TEST_SCRIPT not in parts["tests"]:
        raise InputError(f"{path} has no tests/{TEST_SCRIPT}, so that nothing decides its reward")
    image = _plan(parts["environment"], str(settings.get("environment", {}).get("docker_image", "")))
    return HarborFolder(path, settings, text, image=image, **parts)


def missing_image(folder: HarborFolder) -> str:
    """Return what the image has and this machine lacks as a whole; empty when a run can be tried."""
    if any(name.rsplit("/")[-1].startswith(("docker-compose", "compose.y")) for name in folder.environment):
        return "the services of its compose file"
    if folder.image.heredoc:
        return f"what the here-document of `{folder.image.heredoc}` makes"
    if "Dockerfile" not in folder.environment:
        return f"the image {folder.image.base}" if folder.image.base else "a Dockerfile"
    return "" if _PLAIN_IMAGES.match(folder.image.base) else f"the image {folder.image.base}"


def _read_files(folder: Path) -> dict[str, TaskFile]:
    files, num_bytes = {}, 0
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            num_bytes += len(content)
            if num_bytes > _MAX_BYTES:
                raise InputError(f"{folder} has more than {_MAX_BYTES >> 20} MiB, too much to audit")
            files[path.relative_to(folder).as_posix()] = TaskFile(content, path.stat().st_mode & 0o777)
    return files


# --- the Dockerfile ------------------------------------------------------------------------------------------------


def _instructions(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (name in capitals, arguments, has a here-document); comments and line continuations are resolved.

    The lines of here-documents are left out.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\s*\n", " ", "\n".join(lines))
    pending = [line.strip() for line in joined.splitlines()]
    while pending:
        name, _, arguments = pending.pop(0).partition(" ")
        if not (name.isalpha() and name.isupper()):
            continue
        words = arguments.split() if name in ("RUN", "COPY", "ADD") else []
        ends = [match["end"] for word in words if (match := _HEREDOC.match(word)) and match["end"] in pending]
        for end in ends:
            pending = pending[pending.index(end) + 1 :] if end in pending else pending
        yield name, arguments.strip(), bool(ends)


def _with_parents(path: str) -> set[str]:
    """Return the path of a folder and those of the folders in which it lies."""
    return {path, *map(str, PurePosixPath(path).parents)}


def _plan(context: Files, image: str) -> ImagePlan:
    plan = ImagePlan(base=image)
    if "Dockerfile" not in context:
        return plan
    dockerfile, context = context["Dockerfile"].text, _without_ignored(context)
    values = {"PATH": DEFAULT_PATH, "HOME": "/root"}
    for name, raw, has_heredoc in _instructions(dockerfile):
        arguments = _expand(raw, {**values, **plan.environment}) if name != "RUN" else raw
        if name == "FROM":
            words = [word for word in arguments.split() if not word.startswith("--")]
            plan = ImagePlan(base=words[0] if words else "")  # only the last stage becomes the image
        elif has_heredoc:
            plan.heredoc = plan.heredoc or f"{name} {raw}"[:80]
        elif name == "WORKDIR":
            plan.folder = _join(plan.folder, arguments.strip("\"'"))
            plan.folders |= _with_parents(plan.folder)
        elif name in ("ENV", "ARG"):
            (values if name == "ARG" else plan.environment).update(_assignments(arguments))
        elif name in ("COPY", "ADD"):
            _copy(plan, context, arguments)
        elif name == "RUN":
            plan.steps.append(Run(re.sub(r"^(--\S+\s+)+", "", arguments), plan.folder))
            made = [path for text in _MKDIR.findall(arguments) for path in _words(text) if not path.startswith("-")]
            plan.folders = plan.folders.union(*(_with_parents(_join(plan.folder, path)) for path in made))
    return plan


def _without_ignored(context: Files) -> Files:
    """Return ``context`` without what its ``.dockerignore`` names; files with exceptions (``!``) are not read."""
    lines = [line.strip().strip("/") for line in context[_IGNORE].text.splitlines()] if _IGNORE in context else []
    patterns = [line for line in lines if line and not line.startswith("#")]
    if any(pattern.startswith("!") for pattern in patterns):
        return context
    return {
        path: file
        for path, file in context.items()
        if not any(fnmatchcase(path, pattern) or path.startswith(f"{pattern}/") for pattern in patterns)
    }


def _expand(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values.get(match[1], ""), text)


def _assignments(arguments: str) -> dict[str, str]:
    words = _words(arguments)
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return dict(word.split("=", 1) for word in words if "=" in word)


def _words(arguments: str) -> list[str]:
    try:
        return [str(word) for word in json.loads(arguments)] if arguments.startswith("[") else shlex.split(arguments)
    except ValueError:
        return arguments.split()


def _join(folder: str, path: str) -> str:
    parts: list[str] = []
    for part in PurePosixPath(folder, path).parts[1:]:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/" + "/".join(parts)


def _copy(plan: ImagePlan, context: Files, arguments: str) -> None:
    flags = re.match(r"((?:--\S+\s+)*)", arguments)
    options, words = (flags[1] if flags else ""), _words(arguments[flags.end() if flags else 0 :])
    if "--from" in options or len(words) < 2 or "://" in words[0]:
        return
    mode = re.search(r"--chmod=([0-7]+)", options)
    *sources, last = words
    target = _join(plan.folder, last)
    is_folder = last.endswith(("/", "/.")) or last == "." or len(sources) > 1 or target in plan.folders
    files = {}
    for source in sources:
        name = _join("/", source).strip("/")
        matched = list(_matching(context, name))
        if not matched:
            plan.missing.append(source)
        for path, relative in matched:
            is_file = not relative
            place = _join(target, PurePosixPath(path).name if is_file and is_folder else relative)
            files[place] = TaskFile(context[path].content, int(mode[1], 8) if mode else context[path].mode)
    plan.steps.append(Copy(files))
    plan.folders = plan.folders.union(*(_with_parents(str(PurePosixPath(path).parent)) for path in files))


def _matching(context: Files, name: str) -> Iterator[tuple[str, str]]:
    """Yield the files of ``context`` that the source ``name`` means, and their paths below a folder."""
    for path in context:
        is_match = "*" in name and path.count("/") == name.count("/") and PurePosixPath(path).match(name)
        if path == name or is_match:
            yield path, ""
        elif not name or path.startswith(f"{name}/"):
            yield path, path[len(name) :].lstrip("/")
