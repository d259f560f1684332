"""Build steps: choose those of a task, run them on a repaired tree, and report their results.

Reads a task's steps and a sandbox or a test run. Makes one `StepResult` per step that ran. Guarantees: the exit status
of a command is the kernel's; the first failing command is the last one; the test runner does steps without a command
in the process of the tests (`with_checks`), at no extra cost; every step of a task passes on its gold state.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from repairgym.errors import TaskError
from repairgym.records import BuildStep, MainError, StepResult, Task, TestOutcome, TestRequest, TestResult, TestRun
from repairgym.sandbox.base import ExecResult, Sandbox, SandboxBackend, SandboxLimits
from repairgym.tasks.build.validation import TaskLayers, graded_files, run_fresh, task_layers, task_request
from repairgym.tasks.build.wheel_check import is_wheel_check
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.logs.main_error import classify, parse_main_error

CHANGED = "{changed}"
"""Placeholder for the changed Python files in a step's command."""
NUM_HEAD_CHARS, NUM_TAIL_CHARS = 1500, 2500
_PLACE = re.compile(r"^(\S+?):(\d+): (.*)$")


def changed_python_files(sources: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the existing Python files among ``sources``."""
    return tuple(sorted(path for path, text in sources.items() if text is not None and path.endswith(".py")))


# --- steps that are commands ---------------------------------------------------------------------------------------


async def run_build_steps(sandbox: Sandbox, task: Task, sources: Mapping[str, str | None]) -> tuple[StepResult, ...]:
    """Run the steps of ``task`` that are commands, up to the first failure.

    ``sandbox`` holds the tree with ``sources``, the difference from the pinned tree, over it.
    """
    results: list[StepResult] = []
    for step in task.build:
        command = _command(step, sources)
        if command:
            results.append(await _run_step(sandbox, task, step, command))
            if not results[-1].is_passed:
                break
    return tuple(results)


def _command(step: BuildStep, sources: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the command to run; empty when the step has none, or none of its files changed."""
    if CHANGED not in step.command:
        return step.command
    # A file name may begin like an option.
    paths = tuple(f"./{path}" if path.startswith("-") else path for path in changed_python_files(sources))
    place = step.command.index(CHANGED)
    return (*step.command[:place], *paths, *step.command[place + 1 :]) if paths else ()


async def _run_step(sandbox: Sandbox, task: Task, step: BuildStep, command: tuple[str, ...]) -> StepResult:
    timeout_s = task.build_timeout_s if step.timeout_s is None else step.timeout_s
    # Relative, because the place of the testbed depends on the back end.
    environment = {"PYTHONPATH": ":".join(path or "." for path in task.source_paths)}
    done = await sandbox.exec(command, timeout_s=timeout_s, env=environment)
    log = (done.stdout + done.stderr).decode(errors="replace")
    result = StepResult(
        kind=step.kind,
        command=command,
        exit_status=done.exit_status,
        duration_s=done.duration_s,
        log=_shortened(log),
        is_timed_out=done.is_timed_out,
    )
    return result if result.is_passed else result.model_copy(update={"main_error": _main_error(done, log, timeout_s)})


def _main_error(done: ExecResult, log: str, timeout_s: float) -> MainError:
    if done.is_timed_out:
        return MainError(error_class="environment", message=f"took longer than {timeout_s:g} s")
    ending = f"signal {done.signal}" if done.signal is not None else f"exit status {done.exit_status}"
    return parse_main_error(log) or MainError(error_class="other", message=f"ended with {ending} and printed nothing")


def _shortened(log: str) -> str:
    if len(log) <= NUM_HEAD_CHARS + NUM_TAIL_CHARS:
        return log
    dropped = len(log) - NUM_HEAD_CHARS - NUM_TAIL_CHARS
    return f"{log[:NUM_HEAD_CHARS]}\n[... {dropped} characters dropped ...]\n{log[-NUM_TAIL_CHARS:]}"


def build_files(task: Task, sources: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the files over the pinned tree for its build: ``sources`` without the deciding tests."""
    return {**sources, **dict.fromkeys(task.test_paths)}


def has_commands(task: Task) -> bool:
    """Return True when the build of ``task`` needs its own sandbox."""
    return any(step.command for step in task.build)


# --- steps of the test runner --------------------------------------------------------------------------------------


def with_checks(request: TestRequest, task: Task, sources: Mapping[str, str | None]) -> TestRequest:
    """Add the steps of ``task`` without a command to ``request``; TaskError if its runner cannot do them."""
    own = [step for step in task.build if not step.command]
    if own and (not task.runner.is_signed or is_wheel_check(request.test_ids)):
        kinds = ", ".join(step.kind for step in own)
        who = "check of a wheel" if task.runner.is_signed else f"runner {task.runner.type}"
        raise TaskError(f"{task.id}: the {who} cannot do build steps; give {kinds} a command")
    compiled = changed_python_files(sources) if any(step.kind == "compile" for step in own) else ()
    modules = tuple(name for step in own for name in step.modules)
    return request.model_copy(update={"compiled_paths": compiled, "imported_modules": modules})


_UNREADABLE = TestResult(outcome=TestOutcome.ERROR, message="no record of this step can be read")


def check_results(request: TestRequest, run: TestRun) -> tuple[StepResult, ...]:
    """Return the result of each step that the runner did."""
    requested = {"compile": request.compiled_paths, "import": request.imported_modules}
    results: list[StepResult] = []
    for kind, names in requested.items():
        # A run that came to its end has a record of every step, unless something took its place.
        result = run.checks.get(kind) or (_UNREADABLE if run.is_finished else None)
        if names and result is not None:
            is_passed = result.outcome is TestOutcome.PASSED
            results.append(
                StepResult(
                    kind=kind,
                    command=(kind, *names),
                    exit_status=0 if is_passed else 1,
                    duration_s=result.duration_s,
                    log=result.message,
                    main_error=None if is_passed else _check_error(result.message),
                )
            )
    return tuple(results)


def _check_error(message: str) -> MainError:
    match = _PLACE.match(message)
    path, line, text = (match[1], int(match[2]), match[3]) if match else ("", None, message)
    return MainError(error_class=classify(text), message=text, path=path, line=line)


async def check_gold_builds(
    task: Task, layers: TaskLayers, backend: SandboxBackend, limits: SandboxLimits | None = None
) -> None:
    """Check that the gold state of ``task`` passes its own build; TaskError (with the main error) if it does not."""
    sources = graded_files(task, task.gold_files)
    results: list[StepResult] = []
    if has_commands(task):
        sandbox = await backend.create(layers.spec(build_files(task, sources), limits))
        try:
            results += await run_build_steps(sandbox, task, sources)
        finally:
            await sandbox.close()
    if any(not step.command for step in task.build):
        request = with_checks(task_request(task, task.fail_to_pass[:1]), task, sources)
        results += check_results(request, await run_fresh(backend, layers.spec(sources, limits), request))
    for result in results:
        if not result.is_passed:
            raise TaskError(f"{task.id}: the gold patch fails the build step {describe_failure(result)}")
    if task.build and not results:
        raise TaskError(f"{task.id}: none of its {len(task.build)} build steps does anything on the gold state")


def describe_failure(result: StepResult) -> str:
    """Describe a failed step in one line: its kind and main error."""
    error = result.main_error
    place = f"{error.path}:{error.line}: " if error and error.path and error.line else ""
    return f"{result.kind}: {place}{error.message if error else ''}"


_CONFIGURED_BY = {
    "lint": {"ruff.toml": "", ".ruff.toml": "", "pyproject.toml": "[tool.ruff"},
    "types": {"mypy.ini": "", ".mypy.ini": "", "setup.cfg": "[mypy]", "pyproject.toml": "[tool.mypy"},
}
_TOOLS: tuple[BuildStep, ...] = (
    BuildStep(kind="lint", command=("ruff", "check", "--no-cache", CHANGED)),
    BuildStep(kind="types", command=("mypy", "--cache-dir=/dev/null", CHANGED)),
)


def candidate_steps(task: Task, layers: TaskLayers) -> tuple[BuildStep, ...]:
    """Return steps that fit ``task``: each configured and installed tool, byte-compile, import.

    Only changed files are compiled, because the certificate covers the others. A wheel that is checked needs no step.
    """
    if is_wheel_check(task.fail_to_pass):
        return ()
    name = import_name(task)
    tools = tuple(step for step in _TOOLS if _is_configured(step, layers))
    imports = (BuildStep(kind="import", modules=(name,)),) if name else ()
    is_python = any(path.endswith(".py") for path in task.gold_files)
    return (*tools, *((BuildStep(kind="compile"),) if is_python else ()), *imports)


def import_name(task: Task) -> str:
    """Return the top-level package or module of the gold files; empty unless there is exactly one."""
    root = PurePosixPath(task.source_paths[0] if task.source_paths else "")
    paths = [PurePosixPath(path) for path in task.gold_files if path.endswith(".py")]
    tops = {path.relative_to(root).parts[0].removesuffix(".py") for path in paths if path.is_relative_to(root)}
    name = tops.pop() if len(tops) == 1 else ""
    return name if name.isidentifier() else ""


def _is_configured(step: BuildStep, layers: TaskLayers) -> bool:
    if not (layers.environment / "bin" / step.command[0]).exists():
        return False
    texts = {layers.tree / name: mark for name, mark in _CONFIGURED_BY[step.kind].items()}
    return any(path.is_file() and mark in path.read_text(errors="replace") for path, mark in texts.items())


async def with_build_steps(
    tasks: Iterable[Task], store: LayerStore, backend: SandboxBackend, limits: SandboxLimits
) -> tuple[list[Task], Counter[str]]:
    """Add to ``tasks`` the candidate steps that their gold state passes; count dropped steps by kind.

    A task with steps keeps them. Tasks of one tree share the trial of a step that does the same for them.
    """
    trials: dict[tuple[str, str, BuildStep, tuple[str, ...]], bool] = {}
    dropped: Counter[str] = Counter()
    with_steps: list[Task] = []
    for task in tasks:
        if task.build:
            with_steps.append(task)
            continue
        layers, chosen = task_layers(task, store), list[BuildStep]()
        for step in candidate_steps(task, layers):
            key = (task.base_tree, task.environment.digest, step, _files_of(step, task))
            if key not in trials:
                trials[key] = await _passes(task, step, layers, backend, limits)
                dropped.update(() if trials[key] else (f"no_{step.kind}_step",))
            chosen += [step] if trials[key] else []
        with_steps.append(task.model_copy(update={"build": tuple(chosen)}))
    return with_steps, dropped


def _files_of(step: BuildStep, task: Task) -> tuple[str, ...]:
    """Return the files of the gold state that ``step`` is about; an import is about all of it."""
    is_about_changes = CHANGED in step.command or step.kind == "compile"
    return changed_python_files(graded_files(task, task.gold_files)) if is_about_changes else ()


async def _passes(
    task: Task, step: BuildStep, layers: TaskLayers, backend: SandboxBackend, limits: SandboxLimits
) -> bool:
    try:
        await check_gold_builds(task.model_copy(update={"build": (step,)}), layers, backend, limits)
    except TaskError:
        return False
    return True
