"""The runs that decide a verdict: the build, then the tests, each in a fresh sandbox.

Reads a `Pinned` record and the sources to grade; makes an `Execution`. Guarantees:

- Build commands never see the tests that decide. Their products reach the tests only where a step has products; then
  protected files are restored before the tests are written.
- Every test run holds canaries from a secret of its own. Of the stages of a wheel's check (`wheel_check`) only the
  suite meets code of the submission and has canaries.
- A cached result is found by what decides it (base, environment, permitted sources, tests, steps, grader version),
  never by the name of a task or run; a cold execution reads and fills no cache.
"""

import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from repairgym.config.pipeline import GradingConfig
from repairgym.errors import SandboxContentError
from repairgym.grading.canaries import Canaries, make_canaries
from repairgym.grading.permitted import is_protected
from repairgym.grading.stages import Execution, Files, Pinned, files_digest, read_pinned
from repairgym.records import StepResult, Task, TestRequest, TestRun
from repairgym.sandbox.base import Sandbox, SandboxBackend, SandboxSpec
from repairgym.sandbox.cache import ExecutionCache, Key
from repairgym.sandbox.runs import containers, with_requested
from repairgym.tasks.build.build_steps import build_files, check_results, has_commands, run_build_steps, with_checks
from repairgym.tasks.build.validation import task_request
from repairgym.tasks.build.wheel_check import WheelCheck, is_wheel_check

GRADER_VERSION = "23"
SpecFactory = Callable[[Task, Files], SandboxSpec]
"""Makes the spec of a task's sandbox with some files written over its pinned tree."""
_PRODUCTS = ("*.so", "*.pyd")
"""Protected names that a build may make: compiled extension modules."""
_REMOVE_TIMEOUT_S = 30.0
_BYTECODE = ("(", "-name", "__pycache__", "-o", "-name", "*.pyc", ")")
_REMOVE_BYTECODE = ("find", ".", *_BYTECODE, "-prune", "-exec", "rm", "-rf", "--", "{}", "+")


class Executor:
    """Builds and tests sources of many tasks, many at a time."""

    def __init__(
        self, backend: SandboxBackend, make_spec: SpecFactory, config: GradingConfig, cache: ExecutionCache
    ) -> None:
        self._backend = backend
        self._make_spec = make_spec
        self._config = config
        self._cache = cache if config.is_cached and not config.is_cold else ExecutionCache(max_entries=0)

    async def execute(self, pinned: Pinned, sources: Files, stop_ids: tuple[str, ...] | None = None) -> Execution:
        """Build and test ``sources`` over the pinned tree.

        Where the configuration stops at a failure, the first of ``stop_ids`` (None: all tests) that does not pass is
        the last test.

        Raises:
            SandboxError: a sandbox could not do its work.
            SandboxContentError: files of the submission are in the way of the tests.
        """
        task = pinned.task
        request = with_checks(task_request(task, is_cold=self._config.is_cold), task, sources)
        has_official = task.certificate.passed_before is not None  # which needs all results
        if self._config.stops_at_failure and not has_official and not is_wheel_check(request.test_ids):
            request = request.model_copy(update={"stop_ids": request.test_ids if stop_ids is None else stop_ids})
        # The key leaves the canaries out: they do not change the results of the real tests.
        key = execution_key(pinned, sources, request)
        return await self._cache.get_or_run(key, lambda: self._execute(pinned, sources, request))

    async def _execute(self, pinned: Pinned, sources: Files, request: TestRequest) -> Execution:
        task = pinned.task
        canaries = make_canaries(task, pinned.graded_tests, secrets.token_bytes(32), self._config.num_canaries)
        has_products = any(step.has_products for step in task.build)
        build: tuple[StepResult, ...] = ()
        if has_products or has_commands(task):
            async with self._sandbox(task, build_files(task, sources)) as sandbox:
                build = await run_build_steps(sandbox, task, sources)
                if not all(step.is_passed for step in build):
                    return Execution(build, None)
                if has_products:  # which the tests need, in this sandbox
                    await _restore(sandbox, pinned, self._config.is_protected_restored)
                    await _write(sandbox, {**pinned.graded_tests, **canaries.files})
                    return await _run_with(build, canaries, sandbox, request)
        if is_wheel_check(request.test_ids):
            return Execution(build, await self._check_wheel(pinned, sources, request))
        async with self._sandbox(task, {**sources, **canaries.files}) as sandbox:
            return await _run_with(build, canaries, sandbox, request)

    async def _check_wheel(self, pinned: Pinned, sources: Files, request: TestRequest) -> TestRun:
        """Check the wheel that ``sources`` build; canaries are mixed into the project's own tests."""
        task = pinned.task
        specs = self._make_spec(task, {}), self._make_spec(task, sources)
        check = WheelCheck(self._backend, *specs, broken=task.base_files)
        suite = task.model_copy(update={"fail_to_pass": check.suite_functions, "pass_to_pass": ()})
        canaries = make_canaries(suite, pinned.graded_tests, secrets.token_bytes(32), self._config.num_canaries)

        async def run_suite(sandbox: Sandbox, request: TestRequest) -> TestRun:
            run = (await _run_with((), canaries, sandbox, request)).run
            assert run is not None  # a run always ends with one
            return run

        return await replace(check, run_suite=run_suite, suite_files=canaries.files).run(request)

    @asynccontextmanager
    async def _sandbox(self, task: Task, files: Files) -> AsyncIterator[Sandbox]:
        sandbox = await self._backend.create(self._make_spec(task, files))
        try:
            yield sandbox
        finally:
            await sandbox.close()


def execution_key(pinned: Pinned, sources: Files, request: TestRequest) -> Key:
    """Return everything that decides an execution, as digests."""
    task = pinned.task
    steps = json.dumps([step.model_dump(mode="json") for step in task.build] + [task.build_timeout_s])
    build = hashlib.sha256(steps.encode()).hexdigest()
    parts = (task.base_tree, task.environment.digest, files_digest(sources), pinned.tests_digest, build)
    return ("grading", GRADER_VERSION, *parts, request.digest())


async def _restore(sandbox: Sandbox, pinned: Pinned, is_protected_restored: bool) -> None:
    """Restore protected files from the pinned tree and remove byte-code: the build ran code of the submission."""
    await sandbox.exec(_REMOVE_BYTECODE, timeout_s=_REMOVE_TIMEOUT_S)
    if not is_protected_restored:
        return
    for path in await sandbox.changed_files():
        name = PurePosixPath(path).name
        if not is_protected(pinned.task, path) or any(fnmatchcase(name, pattern) for pattern in _PRODUCTS):
            continue
        text = read_pinned(pinned.tree, path)
        if text is None:
            await sandbox.exec(("rm", "-rf", "--", path), timeout_s=_REMOVE_TIMEOUT_S)
        else:
            await _write(sandbox, {path: text})


async def _write(sandbox: Sandbox, files: Mapping[str, str]) -> None:
    """Write ``files`` over the files that a build left.

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
    """Return ``build``, the checks of the runner itself, and the tests; of canaries only the wrong ones are kept."""
    # Copies of slow tests are among the canaries, so they get time of their own.
    bounds = {"timeout_s": request.timeout_s + request.test_timeout_s * bool(canaries.expected)}
    mixed = request.model_copy(update={"test_ids": canaries.mixed(request.test_ids), "is_sealed": True, **bounds})
    run = await sandbox.run_tests(mixed)
    results = {name: result for name, result in run.results.items() if not canaries.is_one(name)}
    # A file or folder that was asked for has the worst result of its tests, which canaries are not.
    groups = containers(results).intersection(request.test_ids)
    results = with_requested(request, {name: result for name, result in results.items() if name not in groups})
    update = {"results": results, "wrong_canaries": canaries.wrong(run), "num_canaries": len(canaries.expected)}
    return Execution((*build, *check_results(request, run)), run.model_copy(update=update))
