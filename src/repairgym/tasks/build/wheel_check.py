"""Checks of a built wheel, in stages: build, suite and comparison, each in a sandbox of its own.

Reads the pinned tree with its check (``data/build_check``, in `CHECK_FOLDER`) and the sources to check. Makes a
`TestRun` with the results of the check's tests. An agent runs the same tests in its own sandbox, in one process.
Guarantees:

- The sandbox of the build holds neither the check nor what it expects. Only bytes leave it, and they are data from then
  on: `wheels` reads them on this side.
- The suite runs in a tree without the submission, whose code this side replaces by the files of the wheel.
- The comparison runs in such a tree, too, and executes no code of the wheel.
"""

import ast
import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import PurePosixPath

from repairgym.errors import SandboxContentError
from repairgym.records import TestOutcome, TestRequest, TestResult, TestRun
from repairgym.sandbox.base import Sandbox, SandboxBackend, SandboxSpec
from repairgym.tasks.build.descriptions import check_description
from repairgym.tasks.build.wheels import MAX_WHEEL_BYTES, Wheel, WheelError, read_wheel

CHECK_FOLDER = "repairgym_build"
BUILD_TEST, DEPENDENCY_TEST = f"{CHECK_FOLDER}/test_build.py", f"{CHECK_FOLDER}/test_dependencies.py"
RELEASE_TEST = f"{CHECK_FOLDER}/test_wheel.py"
"""Compares a wheel with that of the release; tasks made before it have their comparison in `BUILD_TEST`."""
EXPECTED_FILE, SUITE_FILE = f"{CHECK_FOLDER}/expected.json", f"{CHECK_FOLDER}/suite.json"
SEALED_FILE = f"{CHECK_FOLDER}/sealed.json"
_PRODUCTS, _SITE = ".dist/wheels", ".dist/site"
_GIVEN = {f"{CHECK_FOLDER}/conftest.py": "given.py"}
"""Path in the sandbox of the comparison -> shipped file."""
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_NO_SUITE = (3, "the suite did not run")
Files = Mapping[str, str | None]
RunSuite = Callable[[Sandbox, TestRequest], Awaitable[TestRun]]


def check_text(path: str) -> str:
    """Return the text of a shipped file, named as the sandbox has it."""
    name = path.rpartition("/")[2]
    return resources.files("repairgym").joinpath("data", "build_check", name).read_text("utf-8")


def is_wheel_check(test_ids: tuple[str, ...]) -> bool:
    """Return True when tests of a built wheel are among ``test_ids``.

    Others do not end the stages: they run in the comparison, on the pinned tree.
    """
    return any(test_id.startswith(f"{CHECK_FOLDER}/") for test_id in test_ids)


class _TooLateError(WheelError):
    """A build that did not end in time."""


async def _run_plainly(sandbox: Sandbox, request: TestRequest) -> TestRun:
    return await sandbox.run_tests(request)


@dataclass(frozen=True)
class WheelCheck:
    """The check of one state of a project's sources."""

    backend: SandboxBackend
    pinned: SandboxSpec
    """The tree with the check, without the sources to check."""
    submitted: SandboxSpec
    """The same tree with the sources to check."""
    run_suite: RunSuite = _run_plainly
    """Runs the project's own tests in a sandbox in which the wheel is installed."""
    suite_files: Files = field(default_factory=dict)
    """Further files of that sandbox."""
    broken: Files = field(default_factory=dict)
    """The settings as the agent found them; empty for runs that certify a task."""
    is_trial: bool = False
    """Build with one front end only: for searches, never for a certificate or a verdict."""

    @classmethod
    def of(cls, backend: SandboxBackend, spec: SandboxSpec, is_trial: bool = False) -> "WheelCheck":
        """Return the check of the tree and files of ``spec``, which are trusted."""
        own = {path: text for path, text in spec.files.items() if path.startswith(f"{CHECK_FOLDER}/")}
        return cls(backend, spec.model_copy(update={"files": own}), spec, is_trial=is_trial)

    async def run(self, request: TestRequest) -> TestRun:
        """Build, run the suite where the check has one, and compare.

        Raises:
            SandboxError: a sandbox could not do its work.
        """
        try:
            self._check_tree()
            wheel = await self._build("build", request.timeout_s)
            wheel.check_origin(self._released, self._is_source)
            wheel.check_size(self._released)
            settings = "pyproject.toml"
            if broken := self.broken.get(settings):
                check_description(wheel, self.pinned.tree, self._pinned_text(settings) or "", broken)
            if not self.is_trial:
                wheel.check_equal(await self._build("pip", request.timeout_s))
        except _TooLateError:
            return TestRun(results={}, exit_status=None, is_timed_out=True)
        except WheelError as error:
            return await self._compare(request, {"error": str(error), "suite": _NO_SUITE})
        suite = await self._run_suite(wheel, request) if self._suite else None
        if suite is not None and suite.is_timed_out:
            return suite.model_copy(update={"results": {}})
        outcome = self._describe(suite) if suite is not None else _NO_SUITE
        run = await self._compare(request, {"wheel": wheel.name, "suite": outcome}, wheel)
        channel = ("num_forged_records", "is_finished", "wrong_canaries", "num_canaries")
        return run if suite is None else run.model_copy(update={name: getattr(suite, name) for name in channel})

    # --- the build -----------------------------------------------------------------------------------------------

    async def _build(self, front_end: str, timeout_s: float) -> Wheel:
        """Build as ``front_end`` does it, in a sandbox without the check, and read what comes out."""
        check = dict.fromkeys((BUILD_TEST, RELEASE_TEST, DEPENDENCY_TEST, EXPECTED_FILE, SEALED_FILE, SUITE_FILE))
        spec = self.submitted.model_copy(update={"files": {**self.submitted.files, **check}})
        sandbox = await self.backend.create(spec)
        try:
            order = {"front_end": front_end, "program": check_text("run_stage.py")}
            await self._stage(sandbox, order, timeout_s)
            entries = await sandbox.list_files(_PRODUCTS)
            if len(entries) != 1 or entries[0].kind != "file" or entries[0].num_bytes > MAX_WHEEL_BYTES:
                what = ", ".join(f"{entry.kind} of {entry.num_bytes} bytes" for entry in entries[:3])
                raise WheelError(f"the build made {len(entries)} files ({what}), expected one wheel")
            content = await sandbox.read_file(entries[0].path)
        except (OSError, SandboxContentError) as error:
            raise WheelError(f"the build left no wheel: {error}") from error
        finally:
            await sandbox.close()
        return await asyncio.to_thread(read_wheel, PurePosixPath(entries[0].path).name, content)

    async def _stage(self, sandbox: Sandbox, order: dict[str, str], timeout_s: float) -> None:
        """Run a stage of ``run_stage.py``; WheelError with the last line that it printed if it fails."""
        order = {"path": BUILD_TEST, "text": self._pinned_text(BUILD_TEST) or "", **order}
        command = ("python", "-I", "-c", check_text("run_stage.py"))
        done = await sandbox.exec(command, timeout_s=timeout_s, stdin=json.dumps(order).encode())
        if done.is_timed_out:
            raise _TooLateError
        if done.exit_status != 0:
            lines = done.stderr.decode(errors="replace").split("\n")
            raise WheelError(next((line for line in reversed(lines) if line.strip()), "the build died").strip()[:300])

    @cached_property
    def _released(self) -> frozenset[str]:
        """Names of the files of the released wheel; empty where the check does not list them."""
        return frozenset(self._digests)

    @cached_property
    def _digests(self) -> dict[str, str]:
        expected = json.loads(self._pinned_text(EXPECTED_FILE) or "{}")
        return {**expected.get("modules", {}), **expected.get("data", {})}

    def _check_tree(self) -> None:
        """Check that the sources leave the released files in the tree as they are, wherever a build reads them."""
        for path, text in self.submitted.files.items():
            name = next((name for name in self._digests if f"/{path}".endswith(f"/{name}")), None)
            place = self.submitted.tree / path
            if name is None or not place.is_file() or (text is not None and place.read_bytes() == text.encode()):
                continue
            if hashlib.sha256(place.read_bytes()).hexdigest().startswith(self._digests[name]):
                raise WheelError(f"the submission changes {path}, which the released wheel holds as it was")

    def _is_source(self, data: bytes) -> bool:
        return hashlib.sha256(data).digest() in self._sources

    @cached_property
    def _sources(self) -> frozenset[bytes]:
        """Digests of the Python files of the tree and of the submission."""
        files = self.submitted.files
        own = (text.encode() for path, text in files.items() if text is not None and path.endswith(".py"))
        paths = (path for path in self.submitted.tree.rglob("*.py") if path.is_file())
        return frozenset(hashlib.sha256(data).digest() for data in (*own, *(path.read_bytes() for path in paths)))

    # --- the suite -----------------------------------------------------------------------------------------------

    @cached_property
    def _suite(self) -> dict[str, list[str]]:
        """Test files, and the folders of ``sys.path`` for them; empty where the check has no suite."""
        suite: dict[str, list[str]] = json.loads(self._pinned_text(SUITE_FILE) or "{}")
        return suite

    @property
    def suite_tests(self) -> tuple[str, ...]:
        """Test files of the suite."""
        return tuple(self._suite.get("tests", ()))

    @property
    def suite_functions(self) -> tuple[str, ...]:
        """Ids of the tests that the text of the suite shows; all of them must pass."""
        texts = {path: self._pinned_text(path) or "" for path in self.suite_tests}
        return tuple(f"{path}::{name}" for path, text in texts.items() for name in _functions(text, prefix=""))

    async def _run_suite(self, wheel: Wheel, request: TestRequest) -> TestRun | None:
        """Run the suite on the installed wheel; None if its requirements cannot be met."""
        placed = self._placed(wheel)
        names = (path.relative_to(self.pinned.tree).as_posix() for path in self.pinned.tree.rglob("*.py"))
        absent = dict.fromkeys((*(name for name in names if not self._is_test(name)), *placed))
        spec = self.pinned.model_copy(update={"files": {**self.pinned.files, **absent, **self.suite_files}})
        sandbox = await self.backend.create(spec)
        try:
            await self._stage(sandbox, {"metadata": wheel.metadata.decode(errors="replace")}, request.timeout_s)
            for path, data in placed.items():
                await sandbox.write_file(path, data)
            sources = (*self._suite["folders"], _SITE)
            update = {"test_ids": self.suite_tests, "source_paths": sources}
            return await self.run_suite(sandbox, request.model_copy(update=update))
        except WheelError:
            return None
        finally:
            await sandbox.close()

    def _placed(self, wheel: Wheel) -> dict[str, bytes]:
        """Return the files of the installed wheel: the project's in the place of the tree's own, and its metadata."""
        root = PurePosixPath(self._suite["folders"][0])
        own = {str(root / name): data for name, data in wheel.content}
        info = {f"{_SITE}/{name}": data for name, data in wheel.files.items() if name.startswith(f"{wheel.info}/")}
        return {**{path: data for path, data in own.items() if not self._is_test(path)}, **info}

    def _is_test(self, path: str) -> bool:
        """Return True for code that the suite brings: it stays as pinned, and no file of the wheel replaces it."""
        *folders, name = path.split("/")
        return path in self.suite_tests or name == "conftest.py" or not _TEST_FOLDERS.isdisjoint(folders)

    def _describe(self, run: TestRun) -> tuple[int, str]:
        """Return exit status and output of the suite, as the check reads them."""
        lines: list[str] = []
        for path in self.suite_tests:
            own = {name: result for name, result in run.results.items() if name.startswith(f"{path}::")}
            # Without a test the file has a result of its own: it could not be collected.
            told = own or {path: run.results.get(path, TestResult(outcome=TestOutcome.MISSING))}
            for name, result in told.items():
                if result.outcome in (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.MISSING):
                    lines.append(f"FAILED {name} - {result.message.removeprefix('AssertionError: ') or result.outcome}")
            ran = {name.partition("[")[0] for name in own}
            missing = (f"{path}::{name}" for name in _functions(self._pinned_text(path) or ""))
            lines += [f"FAILED {name} - did not run" for name in missing if name not in ran]
        is_regular = run.is_finished and run.exit_status in (0, 1)
        return (int(bool(lines)) if is_regular else 3), "\n".join(" ".join(line.split()) for line in lines)

    # --- the comparison ------------------------------------------------------------------------------------------

    async def _compare(self, request: TestRequest, given: dict[str, object], wheel: Wheel | None = None) -> TestRun:
        """Run the tests of the check on ``wheel`` in a tree without the submission."""
        given_files = {path: check_text(name) for path, name in _GIVEN.items()}
        given_files[f"{CHECK_FOLDER}/given.json"] = json.dumps(given)
        spec = self.pinned.model_copy(update={"files": {**self.pinned.files, **given_files}})
        sandbox = await self.backend.create(spec)
        try:
            if wheel is not None:
                await sandbox.write_file(f"{CHECK_FOLDER}/{wheel.name}", await asyncio.to_thread(wheel.packed))
            return await sandbox.run_tests(request)
        finally:
            await sandbox.close()

    def _pinned_text(self, path: str) -> str | None:
        """Return the text of a file of the pinned tree; None when it is absent."""
        if path in self.pinned.files:
            return self.pinned.files[path]
        place = self.pinned.tree / path
        return place.read_text("utf-8") if place.is_file() else None


def _functions(text: str, prefix: str = "Test") -> Iterator[str]:
    """Yield the names of the tests that a file's text shows: functions, and methods of classes named ``prefix``..."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield node.name
        if isinstance(node, ast.ClassDef) and node.name.startswith(prefix):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name.startswith("test"):
                    yield f"{node.name}::{member.name}"
