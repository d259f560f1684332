"""A plain repository with a failing command, as a task: its files, its environment, what fails, and where.

Reads a folder, a virtual environment and a test command; makes layers and a `Task` without hidden tests and without a
known repair. Guarantees: code of the project runs in a sandbox only; the folder is never written; equal files,
environment and command give an equal task; tests whose outcome differs between two runs decide nothing.
"""

import ast
import asyncio
import hashlib
import os
import random
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from repairgym.config.rollout import RolloutConfig
from repairgym.errors import InputError, SandboxError, TaskError
from repairgym.records import (
    Certificate,
    Environment,
    Location,
    Provenance,
    Task,
    TestOutcome,
    TestRequest,
    TestRun,
    TestRunner,
)
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.probe import create_backend
from repairgym.sandbox.runs import containers
from repairgym.tasks.build.assembly import NUM_VISIBLE_PASSING, first_line, mutation_issue
from repairgym.tasks.build.test_files import conftest_paths, file_of, first_lines, walk_functions
from repairgym.tasks.build.validation import run_fresh
from repairgym.tasks.layers.environments import build_environment, read_lock
from repairgym.tasks.layers.store import LayerStore

MAX_TREE_BYTES = 512 << 20
SUITE_TIMEOUT_S = 600.0
TEST_TIMEOUT_S = 30.0
COMMAND_ID = "command"
"""Test id of a command that is no pytest call: its exit status decides."""
_ENVIRONMENTS = (".venv", "venv")
_IGNORED = frozenset({".git", ".hg", *_ENVIRONMENTS, "__pycache__", "node_modules", ".tox", ".mypy_cache", "runs"})
_QUIET = re.compile(r"-([qvxsl]+|-quiet|-verbose|-exitfirst|-tb=\w+|ra|rA)")
"""Options of pytest that change no outcome."""
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_BAD = (TestOutcome.FAILED, TestOutcome.ERROR)


@dataclass(frozen=True)
class Repair:
    """The request of a user: what to repair, and how to see that it is broken."""

    folder: Path
    test: str
    """Command that fails."""
    issue: str = ""
    """Text for the agent; empty: made from the failure."""
    python: str = ""
    """Virtual environment; empty: one in the folder, else pytest alone."""
    run: Path | None = None
    """Folder of the run: no part of the project, also where it is within its folder."""


@dataclass(frozen=True)
class _Pinned:
    """The layers of a repository, and the tests to run."""

    tree: Path
    environment: Path
    request: TestRequest


def pin_repository(repair: Repair, config: RolloutConfig) -> Task:
    """Return the task of ``repair``; its command has run twice in sandboxes.

    Raises:
        InputError: the folder is none, or nothing fails and there is no issue text.
        TaskError: its environment cannot be used, or its command does not run in it.
    """
    store = LayerStore(config=config.layers)
    tree = pin_files(repair.folder, store, repair.run)
    environment = pin_environment(repair, store)
    pinned = _Pinned(tree, environment, _request(repair.test, tree))
    runs = asyncio.run(_run_twice(pinned, config))
    _check_runs(runs, pinned)
    named = containers(runs[0].results)  # by the command; their tests are there too
    stable = [
        id_ for id_, result in runs[0].results.items() if id_ not in named and result.outcome is runs[1].outcome(id_)
    ]
    failing = tuple(id_ for id_ in stable if runs[0].outcome(id_) in _BAD)
    passing = tuple(id_ for id_ in stable if runs[0].outcome(id_) is TestOutcome.PASSED)
    if not failing and not (repair.issue and passing):
        raise InputError(f"nothing fails in {repair.test!r} here, so there is nothing to repair by; add --issue TEXT")
    return _task(repair, pinned, runs[0], failing, passing)


# --- layers --------------------------------------------------------------------------------------------------------


def pin_files(folder: Path, store: LayerStore, run: Path | None = None) -> Path:
    """Return the layer of the files of ``folder`` as they are now, without those below ``run``.

    Where git is used, it decides which; but environments, caches and runs that are not in it are no part of a project.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; name a task folder, or a Python repository")
    own = f"{os.path.relpath(run.resolve(), folder.resolve())}/" if run else ""
    listed = [path for path in _listed(folder) if not own or not path.startswith(own)]
    paths = [path for path in listed if (folder / path).is_file() and not (folder / path).is_symlink()]
    num_bytes = sum((folder / path).stat().st_size for path in paths)
    if num_bytes > MAX_TREE_BYTES:
        raise InputError(f"{folder} has {num_bytes >> 20} MiB of files, at most {MAX_TREE_BYTES >> 20} can be used")
    digest = _files_digest(folder, paths)

    def build(place: Path) -> None:
        for path in paths:
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                shutil.copy(folder / path, place / path)
        kept = [path for path in paths if (place / path).is_file()]
        if _files_digest(place, kept) != digest:
            raise InputError(f"files of {folder} changed while they were copied; run the command again")

    return store.build_once("trees", digest, build)


def _files_digest(folder: Path, paths: Sequence[str]) -> str:
    content = hashlib.sha256(b"repository-files:1")
    for path in paths:
        content.update(f"\0{path}\0{(folder / path).stat().st_mode & 0o111}\0".encode("utf-8", "surrogateescape"))
        content.update(hashlib.sha256((folder / path).read_bytes()).digest())
    return content.hexdigest()


def _listed(folder: Path) -> list[str]:
    """Return the relative paths of the project's files, sorted."""
    if (folder / ".git").exists() and shutil.which("git"):
        kept, others = _git_files(folder, "--cached"), _git_files(folder, "--others", "--exclude-standard")
        if kept is not None and others is not None:
            return sorted(kept | {path for path in others if _IGNORED.isdisjoint(Path(path).parts[:-1])})
    return sorted(_walk(folder))


def _git_files(folder: Path, *options: str) -> set[str] | None:
    """Return the paths that ``git ls-files`` lists; None where it fails."""
    done = subprocess.run(["git", "-C", str(folder), "ls-files", "-z", *options], capture_output=True, timeout=120)
    return None if done.returncode else {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}


def _walk(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _IGNORED and not name.endswith(".egg-info")]
        for name in files:
            yield (Path(place) / name).relative_to(folder).as_posix()


def pin_environment(repair: Repair, store: LayerStore) -> Path:
    """Return a copy of the user's environment, or one with pytest alone; TaskError where it cannot be used."""
    own = next((repair.folder / name for name in _ENVIRONMENTS if (repair.folder / name / "bin/python").exists()), None)
    named = Path(repair.python).expanduser() if repair.python else own
    if named is None:
        return build_environment(store, read_lock(()))[1]
    home = named.absolute().parents[1] if named.is_file() else named.absolute()
    python, sites = home / "bin" / "python", sorted(home.glob("lib/python*/site-packages"))
    if not python.exists() or not sites or not (home / "pyvenv.cfg").is_file():
        raise TaskError(f"{named} is no virtual environment (bin/python, pyvenv.cfg); make one: python -m venv FOLDER")
    known = sorted(map(_pin_of, metadata.distributions(path=[str(sites[0])])))
    if not (sites[0] / "_pytest").is_dir():
        raise TaskError(f"{home} has no pytest, which the runner of tests needs; install it there: pip install pytest")
    key = "\n".join(["user-environment:2", str(home), str(python.resolve()), *known])

    def build(place: Path) -> None:
        ignored = shutil.ignore_patterns("*.pth", "__editable__*")  # they name folders of this machine, or hooks
        shutil.copytree(home, place, symlinks=True, dirs_exist_ok=True, ignore=ignored)
        for name in ("python", "python3"):
            (place / "bin" / name).unlink(missing_ok=True)
            (place / "bin" / name).symlink_to(python.resolve())

    return store.build_once("environments", hashlib.sha256(key.encode()).hexdigest(), build)


def _pin_of(dist: metadata.Distribution) -> str:
    """Return name, version and digest of the list of files: one version can be installed from other sources."""
    files = hashlib.sha256((dist.read_text("RECORD") or "").encode()).hexdigest()
    return f"{dist.name}=={dist.version} {files}"


# --- what fails ----------------------------------------------------------------------------------------------------


def _request(command: str, tree: Path) -> TestRequest:
    """Return the request that ``command`` means: our own runner for pytest on files, else the command itself."""
    words = shlex.split(command)
    if words[:2] in (["python", "-m"], ["python3", "-m"]):
        words = words[2:]
    named = [word for word in words[1:] if not _QUIET.fullmatch(word)]
    is_pytest = words[:1] in (["pytest"], ["py.test"]) and all((tree / file_of(word)).exists() for word in named)
    sources = tuple(path for path in ("", "src", "lib") if (tree / path).is_dir())
    bounds = {"timeout_s": SUITE_TIMEOUT_S, "test_timeout_s": TEST_TIMEOUT_S, "source_paths": sources}
    if is_pytest:
        traced = tuple(path for path in _python_files(tree) if not _is_test(path))
        return TestRequest(test_ids=tuple(named), traced_paths=traced, **bounds)
    runner = TestRunner(type="exit_code", command=("/bin/sh", "-c", command))
    return TestRequest(test_ids=(COMMAND_ID,), runner=runner, **bounds)


def _python_files(tree: Path) -> list[str]:
    return sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*.py"))


def _is_test(path: str) -> bool:
    place = Path(path)
    is_named = place.name.startswith("test_") or place.name.endswith("_test.py") or place.name in ("conftest.py",)
    return is_named or not {"test", "tests", "testing"}.isdisjoint(place.parts[:-1])


async def _run_twice(pinned: _Pinned, config: RolloutConfig) -> list[TestRun]:
    backend = create_backend(config.sandbox)
    spec = SandboxSpec(environment=pinned.environment, tree=pinned.tree, limits=config.sandbox.limits)
    again = pinned.request.model_copy(update={"traced_paths": (), "is_cold": pinned.request.runner.is_signed})
    try:
        return [await run_fresh(backend, spec, request) for request in (pinned.request, again)]
    except SandboxError as error:
        raise TaskError(
            f"the environment cannot be used in a sandbox: {error}; its interpreter must be among the shown files "
            "(rollout.sandbox.shown_paths), or name another environment with --python"
        ) from error
    finally:
        await backend.close()


def _check_runs(runs: Sequence[TestRun], pinned: _Pinned) -> None:
    """Raise a TaskError where the command did not run, or the environment lacks a package."""
    run = runs[0]
    if run.is_timed_out or not run.results:
        state = f"did not end within {SUITE_TIMEOUT_S:.0f} s" if run.is_timed_out else "ran no test"
        raise TaskError(f"the command {state}; its output ended with: {run.output_tail[-300:]!r}")
    texts = [result.message for result in run.results.values() if result.outcome in _BAD]
    missing = {match[1].partition(".")[0] for text in (*texts, run.output_tail) for match in _NO_MODULE.finditer(text)}
    own = {path.name.removesuffix(".py") for path in pinned.tree.rglob("*") if path.suffix in ("", ".py")}
    if foreign := sorted(missing - own):
        raise TaskError(
            f"the environment lacks {', '.join(foreign)}, which the tests import; name a virtual environment that has "
            "what the project needs: --python FOLDER"
        )


def suspect(run: TestRun, failing: Sequence[str]) -> str:
    """Return ``path::first_line`` of the function that failing tests execute and others do not; empty without any.

    Functions are ranked by Ochiai's coefficient, ties by the number of failing tests, then by place.
    """
    hits, passes = Counter[str](), Counter[str]()
    for test_id, functions in run.executed_functions.items():
        (hits if test_id in failing else passes).update(functions)
    if not hits:
        return ""
    return min(hits, key=lambda name: (-hits[name] / ((hits[name] + passes[name]) * len(failing)) ** 0.5, name))


def _location(tree: Path, run: TestRun, failing: Sequence[str]) -> Location | None:
    path, _, line = suspect(run, failing).rpartition("::")
    if not path:
        return None
    source = (tree / path).read_text(encoding="utf-8", errors="replace")
    starts = first_lines(path, source)
    for name, node, _ in walk_functions(ast.parse(source)):
        if starts.get(node.lineno) == int(line):
            last = node.end_lineno or node.lineno
            return Location(path=path, name=name.replace("::", "."), first_line=int(line), last_line=last)
    return None


# --- the task ------------------------------------------------------------------------------------------------------


def _task(repair: Repair, pinned: _Pinned, run: TestRun, failing: tuple[str, ...], passing: tuple[str, ...]) -> Task:
    location = _location(pinned.tree, run, failing)
    issue = repair.issue or _issue(run, failing, location)
    parts = [pinned.tree.name, pinned.environment.name, repair.test, issue]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    request, name = pinned.request, repair.folder.resolve().name
    tests = {path for path in _python_files(pinned.tree) if _is_test(path)} | {file_of(id_) for id_ in run.results}
    present = sorted(path for path in tests | conftest_paths(tests) if (pinned.tree / path).is_file())
    return Task(
        id=f"{name}-{digest[:10]}",
        source="imported",
        provenance=Provenance(package=name, version="0"),
        issue=issue,
        base_tree=pinned.tree.name,
        base_files={},
        environment=Environment(lock="", python="", digest=pinned.environment.name),
        source_paths=request.source_paths,
        runner=request.runner,
        visible_tests=(*failing, *passing[:NUM_VISIBLE_PASSING]),
        fail_to_pass=failing,
        pass_to_pass=passing,
        test_paths=tuple(present),
        gold_files={},
        gold_patch="",
        location=location,
        split="test",
        certificate=Certificate(num_empty_runs=2, num_empty_failed=2, num_gold_runs=0, num_gold_passed=0),
        test_timeout_s=request.test_timeout_s,
        timeout_s=max(60.0, 4 * run.duration_s),
    )


def _issue(run: TestRun, failing: Sequence[str], location: Location | None) -> str:
    message = next((run.results[id_].message for id_ in failing if run.results[id_].message), "")
    if location is None:
        return f"{failing[0]} fails: {first_line(message or run.output_tail)}"
    return mutation_issue(location.name, location.path, message, random.Random(0))
