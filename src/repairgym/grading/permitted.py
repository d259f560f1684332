"""The permitted part of a submission: every file except those that decide the verdict.

Reads the agent's changed files; makes the permitted part and a finding per file that is left out (a *note*: agents may
add tests; the detectors report changes that weaken something). Guarantees: a protected file of the graded tree always
comes from the pinned tree (design decision 4); names are compared without regard to case.
"""

from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from repairgym.records import Finding, Task
from repairgym.sandbox.base import can_be_path
from repairgym.tasks.build.wheel_check import CHECK_FOLDER, is_wheel_check
from repairgym.tasks.javascript.package_check import NPM_CHECK_FOLDER
from repairgym.tasks.mutation.settings_operators import SETTINGS_FILES

MAX_SUBMISSION_BYTES = 8 << 20
MAX_SUBMISSION_FILES = 5000
PROTECTED_NAMES = (
    # Code that runs before or around the tests.
    "conftest.py", "sitecustomize.py", "usercustomize.py", "*.pth", "*.pyc", "*.so", "*.pyd",
    # Configuration of test runners.
    "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "tox.toml", "noxfile.py", "nose.cfg",
    ".noserc", ".coveragerc", "karma.conf*", "jest.config*",
    # Build and dependencies.
    "setup.cfg", "setup.py", "pyproject.toml", "MANIFEST.in", "Makefile", "GNUmakefile", "*.mk", "CMakeLists.txt",
    "meson.build", "*.lock", "requirements*.txt", "requirements*.in", "constraints*.txt", "environment*.yml",
    "Pipfile", "package.json", "package-lock.json", "pnpm-lock.yaml", "go.mod", "go.sum", "Cargo.toml", "pom.xml",
    "build.gradle*", "Dockerfile*", "pip.conf", "uv.toml", ".python-version",
    # Lint and types.
    "ruff.toml", ".ruff.toml", "mypy.ini", ".mypy.ini", ".flake8", ".pylintrc", "pylintrc", "pyrightconfig.json",
    ".pre-commit-config.yaml",
    # Continuous integration and version control.
    ".gitlab-ci.yml", ".travis.yml", "azure-pipelines*.yml", "appveyor.yml", "Jenkinsfile", ".gitattributes",
    ".gitmodules",
)  # fmt: skip
PROTECTED_OF_NODE = (
    # Configuration of test frameworks and of what transforms tests; snapshots are expected values.
    ".mocharc*", "vitest.*", "vite.config*", "babel.config*", ".babelrc*", ".swcrc", "tsconfig*.json", "jsconfig.json",
    "postcss.config*", ".npmrc", ".yarnrc*", ".pnpmfile*", ".taprc", ".c8rc*", ".nycrc*", ".env*", "*.snap",
    "*.node", "*.wasm", "*.test.*", "*.spec.*", "*-test.*", "test.*", "tests.*",
)  # fmt: skip
FOLDERS_OF_NODE = frozenset({"node_modules", "__tests__", "__mocks__", "__snapshots__", "__fixtures__", "spec"})
"""Folders, in addition to `PROTECTED_FOLDERS`, whose files are tests, stand for modules or shadow the framework."""
PROTECTED_FOLDERS = frozenset(
    {".github", ".gitlab", ".circleci", ".buildkite", ".git", ".dist", ".ci", "test", "tests", "testing", "__pycache__"}
)


def is_protected(task: Task, path: str) -> bool:
    """Return True when grading restores ``path`` from the pinned tree.

    A file that the repair itself changes is not restored, unless it holds tests, nor are the settings of the build
    where the wheel is checked: a broken build may be repaired in each of them, and they are read in its sandbox only.
    """
    is_settings = path in SETTINGS_FILES and is_wheel_check(task.fail_to_pass)
    if (path in task.gold_files or is_settings) and path not in task.test_paths:
        return False
    pure = PurePosixPath(path)
    is_node = task.runner.is_node
    names = (*PROTECTED_NAMES, *(PROTECTED_OF_NODE if is_node else ()))
    folders = PROTECTED_FOLDERS | (FOLDERS_OF_NODE if is_node else frozenset())
    return (
        path in task.test_paths
        or pure.parts[:1] in ((CHECK_FOLDER,), (NPM_CHECK_FOLDER,))
        or bool(folders & set(pure.parts[:-1]))
        or pure.name.startswith("test_")
        or pure.name.endswith("_test.py")
        or any(fnmatchcase(pure.name.lower(), pattern.lower()) for pattern in names)
    )


def permitted_part(task: Task, files: dict[str, str | None]) -> tuple[dict[str, str | None], tuple[Finding, ...]]:
    """Return the files that grading applies, and a finding for each other one."""
    permitted = {path: text for path, text in files.items() if not is_protected(task, path)}
    findings = tuple(
        Finding(detector="protected_file", severity="note", path=path, detail="change not applied: restored")
        for path in files
        if path not in permitted
    )
    return permitted, findings


def check_applicable(files: dict[str, str | None]) -> str:
    """Return the reason why a submission cannot be applied; empty when it can.

    A path may leave the repository or be no path, one file may lie below another, a text may be no text, or the
    submission may be larger than any repair. Nothing of it runs then: the verdict is a failure of the submission, not
    of the sandbox.
    """
    if len(files) > MAX_SUBMISSION_FILES:
        return f"{len(files)} files, at most {MAX_SUBMISSION_FILES} can be graded"
    num_bytes = 0
    folders = set[str]()
    for path in files:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders and len(folders) <= MAX_SUBMISSION_FILES:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    if len(folders) > MAX_SUBMISSION_FILES:
        return f"more than {MAX_SUBMISSION_FILES} folders can not be graded"
    for path, text in files.items():
        is_path = can_be_path(path) and PurePosixPath(path).as_posix() == path  # no second name for one file
        if not is_path or len(path.encode(errors="replace")) > 1024:
            return f"got the path {path[:80]!r}, expected one below the repository"
        if text is None:
            continue
        if any(files.get(parent.as_posix()) is not None for parent in PurePosixPath(path).parents):
            return f"{path[:80]!r} lies below another file of the submission"
        content = text.encode(errors="replace")
        if "\0" in text or content.decode() != text:
            return f"{path[:80]!r} is binary"
        num_bytes += len(content)
    is_large = num_bytes > MAX_SUBMISSION_BYTES
    return f"{num_bytes} bytes, at most {MAX_SUBMISSION_BYTES} can be graded" if is_large else ""
