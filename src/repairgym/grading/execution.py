"""Runs what decides a verdict: the build, then the tests, each in a fresh sandbox.

Reads a task and the sources to grade; makes an :class:`Execution`. Invariants: the commands of the build find none of
the tests that decide, and what they leave behind reaches the tests only where a step says that it has products; then
protected files are restored before the tests are written. Every run of tests holds canaries from a secret of its own.
A result is found again by what decides it (base, environment, permitted sources, tests, steps, grader version), never
by the name of a task or run; a cold execution reads and fills no cache.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from repairgym.config.pipeline import GradingConfig
from repairgym.errors import SandboxContentError
from repairgym.grading.canaries import Canaries, make_canaries
from repairgym.grading.permitted import is_protected
from repairgym.grading.pinned import Pinned, files_digest, read_pinned
from repairgym.records import StepResult, Task, TestRequest, TestRun
from repairgym.sandbox.base import Sandbox, SandboxBackend, SandboxSpec
from repairgym.sandbox.cache import ExecutionCache, Key
from repairgym.tasks.build.build_steps import build_files, check_results, has_commands, run_build_steps, with_checks
from repairgym.tasks.build.validation import task_request

GRADER_VERSION = "7"
SpecFactory = Callable[[Task, dict[str, str | None]], SandboxSpec]
"""Makes the spec of a task's sandbox with some files written over its pinned tree."""
_PRODUCTS = ("*.so", "*.pyd")
"""Protected names that a build makes by right: compiled extension modules."""
_REMOVE_TIMEOUT_S = 30.0
_BYTECODE = ("(", "-name", "__pycache__", "-o", "-name", "*.pyc", ")")
_REMOVE_BYTECODE = ("find", ".", *_BYTECODE, "-prune", "-exec", "rm", "-rf", "--", "{}", "+")


@dataclass(frozen=True)
class Execution:
    """What ran."""

    build: tuple[StepResult, ...]
    run: TestRun | None
    """None when a command of the build failed."""


class Executor:
    """Builds and tests sources of many tasks, many at a time."""

    def __init__(
        self, backend: SandboxBackend, make_spec: SpecFactory, config: GradingConfig, cache: ExecutionCache
    ) -> None:
        self._backend = backend
        self._make_spec = make_spec
        self._config = config
        self._cache = cache if config.is_cached and not config.is_cold else ExecutionCache(max_entries=0)

    async def execute(self, task: Task, pinned: Pinned, sources: dict[str, str | None]) -> Execution:
        """Build and test ``sources`` over the pinned tree.

        Raises:
            SandboxError: a sandbox could not do its work.
            SandboxContentError: what the submission left is in the way of the tests.
        """
        request = with_checks(task_request(task, is_cold=self._config.is_cold), task, sources)
        # The canaries are not part of the key: a run is a run whatever its canaries were.
        key = execution_key(task, pinned, sources, request)
        return await self._cache.get_or_run(key, lambda: self._execute(task, pinned, sources, request))

    async def _execute(
        self, task: Task, pinned: Pinned, sources: dict[str, str | None], request: TestRequest
    ) -> Execution:
        canaries = make_canaries(task, pinned.tests, secrets.token_bytes(32), self._config.num_canaries)
        if any(step.has_products for step in task.build):
            return await self._build_and_test(task, pinned, sources, canaries, request)
        build = await self._build(task, sources) if has_commands(task) else ()
        if not all(step.is_passed for step in build):
            return Execution(build, None)
        sandbox = await self._backend.create(self._make_spec(task, {**sources, **canaries.files}))
        try:
            return await _run_with(build, canaries, sandbox, request)
        finally:
            await sandbox.close()

    async def _build(self, task: Task, sources: dict[str, str | None]) -> tuple[StepResult, ...]:
        sandbox = await self._backend.create(self._make_spec(task, build_files(task, sources)))
        try:
            return await run_build_steps(sandbox, task, sources)
        finally:
            await sandbox.close()

    async def _build_and_test(
        self, task: Task, pinned: Pinned, sources: dict[str, str | None], canaries: Canaries, request: TestRequest
    ) -> Execution:
        """Both in one sandbox, for builds whose products the tests need."""
        sandbox = await self._backend.create(self._make_spec(task, build_files(task, sources)))
        try:
            build = await run_build_steps(sandbox, task, sources)
            if not all(step.is_passed for step in build):
                return Execution(build, None)
            await _restore(sandbox, task, pinned, self._config.is_protected_restored)
            await _put(sandbox, {**pinned.tests, **canaries.files})
            return await _run_with(build, canaries, sandbox, request)
        finally:
            await sandbox.close()


def execution_key(task: Task, pinned: Pinned, sources: dict[str, str | None], request: TestRequest) -> Key:
    """Everything that decides an execution, as digests."""
    steps = json.dumps([step.model_dump(mode="json") for step in task.build] + [task.build_timeout_s])
    build = hashlib.sha256(steps.encode()).hexdigest()
    parts = (task.base_tree, task.environment.digest, files_digest(sources), pinned.tests_digest, build)
    return ("grading", GRADER_VERSION, *parts, request.digest())


async def _restore(sandbox: Sandbox, task: Task, pinned: Pinned, is_protected_restored: bool) -> None:
    """Protected files as they are in the pinned tree, and no byte-code: the build ran code of the submission."""
    await sandbox.exec(_REMOVE_BYTECODE, timeout_s=_REMOVE_TIMEOUT_S)
    if not is_protected_restored:
        return
    for path in await sandbox.changed_files():
        name = PurePosixPath(path).name
        if not is_protected(task, path) or any(fnmatchcase(name, pattern) for pattern in _PRODUCTS):
            continue
        text = read_pinned(pinned.tree, path)
        if text is None:
            await sandbox.exec(("rm", "-rf", "--", path), timeout_s=_REMOVE_TIMEOUT_S)
        else:
            await _put(sandbox, {path: text})


async def _put(sandbox: Sandbox, files: Mapping[str, str]) -> None:
    """Write ``files`` over what a build left.

    Raises:
        SandboxContentError: the build left no room, or something else where a file belongs.
    """
    for path, text in files.items():
        try:
            await sandbox.write_file(path, text.encode())
        except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
            raise SandboxContentError(f"the build is in the way of {path}: {error}") from error


async def _run_with(
    build: tuple[StepResult, ...], canaries: Canaries, sandbox: Sandbox, request: TestRequest
) -> Execution:
    """``build``, what the runner itself built, and the tests; canaries leave only what was wrong with them.

    Copies of slow tests are among the canaries, so they get time of their own.
    """
    bounds = {"timeout_s": request.timeout_s + request.test_timeout_s * bool(canaries.expected)}
    mixed = request.model_copy(update={"test_ids": canaries.mixed(request.test_ids), **bounds})
    run = await sandbox.run_tests(mixed)
    results = {name: result for name, result in run.results.items() if name not in canaries.expected}
    update = {"results": results, "wrong_canaries": canaries.wrong(run), "num_canaries": len(canaries.expected)}
    return Execution((*build, *check_results(request, run)), run.model_copy(update=update))
