"""Scripts of recorded tests, and their replay.

Reads a pinned tree with the repair and a request for tests; `record` makes one `Script` per test that passed there: the
calls of the package, with their arguments and without their results. `replay` executes scripts over any state of the
tree and makes `Observation` records. Guarantees: each recording and each replay has a fresh sandbox; a replay holds no
test file, no imported test framework and no result of another replay; `SandboxError` is infrastructure only, what the
code under test does (dies, floods, hangs) is in `Replay.unfinished`.
"""

import importlib.util
import json
import marshal
import sys
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal, NamedTuple, Self

from repairgym.errors import SandboxError
from repairgym.records import TestRequest
from repairgym.sandbox.base import ExecResult, SandboxBackend, SandboxLimits, SandboxSpec
from repairgym.tasks.replay.sending import Step, line_of, sendable

Place = tuple[str | int, ...]
"""Path of a literal in the steps of a script."""
MAX_RECORDED_STEPS, MAX_RECORDED_TESTS = 3000, 5000
ANY_FUNCTION = "*::0"
"""Stands among the functions of a script that starts other threads or processes: nobody sees those of them."""
AGAIN = " again"
"""Ends the id of a script that is replayed a second time."""
RECORDED_RUNNERS = frozenset({"pytest", "unittest"})
_OUTPUT_BYTES = 64 << 20
_PACKAGE = "repairgym_replay"
_RECORDING = ("rewrite", "operands", "world", "snapshot", "steps", "recorder", "record")
_SUBJECT = ("snapshot", "subject")
_LOAD = """
import base64, importlib.util, json, marshal, os, sys, types
def first_frame(source):
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], sys.byteorder):
        wanted = 4 - len(data) if len(data) < 4 else 4 + int.from_bytes(data[:4], sys.byteorder) - len(data)
        data += os.read(source, wanted)
    return json.loads(data[4:])
def load(sources):
    package = types.ModuleType("repairgym_replay")
    package.__path__ = []
    sys.modules[package.__name__] = package
    for name, text, code, magic in sources:
        module = types.ModuleType(package.__name__ + "." + name)
        module.__package__ = package.__name__
        sys.modules[module.__name__] = module
        is_same = magic == importlib.util.MAGIC_NUMBER.hex()
        body = marshal.loads(base64.b64decode(code)) if is_same else compile(text, name, "exec", dont_inherit=True)
        exec(body, module.__dict__)
    return module
"""
_BOOT = _LOAD + "request = first_frame(0)\nload(request.pop('own_sources')).main(request)\n"
_BOOT_SUBJECT = (
    _LOAD
    + """
source, target = map(int, sys.argv[1:])
first = first_frame(source)
load(first["sources"]).main(source, target, first["config"])
"""
)


@dataclass(frozen=True)
class Script:
    """The recorded calls of one test; steps are the guest's format and hold no result."""

    id: str
    """Test id, or test id, ``#`` and a number for a varied script."""
    steps: tuple[Step, ...]
    imports: tuple[str, ...] = ()
    """Modules and names (``module:name``) of the package that the steps use."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of steps that could not be recorded."""

    @cached_property
    def line(self) -> bytes:
        """The line that a sandbox receives."""
        return line_of(self.steps)

    @property
    def num_lost_steps(self) -> int:
        """Number of steps that could not be recorded."""
        return sum(self.lost.values())

    @cached_property
    def varied_steps(self) -> tuple[tuple[Step, frozenset[int]], ...]:
        """Each step with an input that no test has, and the numbers of the steps that follow from it."""
        numbers = (number for number, step in enumerate(self.steps) if "is_varied" in step)
        return tuple((self.steps[number], tainted_steps(self.steps, {number})) for number in numbers)

    def to_json(self) -> dict[str, Any]:
        """Return a value that JSON can hold."""
        return {"id": self.id, "steps": list(self.steps), "imports": list(self.imports), "lost": dict(self.lost)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Rebuild a script from `to_json`."""
        return cls(content["id"], tuple(content["steps"]), tuple(content["imports"]), dict(content["lost"]))


class Observation(NamedTuple):
    """One thing that a replay saw. The n-th observation of a script is the same thing in every complete replay."""

    step: int
    part: Literal["result", "after"]
    """``after``: the objects that the step may have changed."""
    value: str
    """Canonical JSON; a long one is a digest."""
    kind: Literal["plain", "error", "state", "opaque"]
    """Built-in values all through, type of an exception, public state of objects, nothing comparable."""
    is_asserted: bool
    """The test used or asserted the value afterwards."""


@dataclass(frozen=True)
class Replay:
    """The observations of scripts in one process."""

    observations: Mapping[str, tuple[Observation, ...]]
    """By script id."""
    unfinished: Mapping[str, str]
    """Script id -> ``timed out``, ``died``, ``flooded``, ``malformed answer``, ``setup: died``."""
    duration_s: float
    executed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Script id -> functions of the tree (``path::first_line``) that ran from the start of its process on; of those
    scripts that were traced and came to their end."""
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    """Script id -> processor time of the process that played it, its forks left out; with the import for the first."""


@dataclass(frozen=True)
class Recording:
    """The scripts of a request."""

    scripts: tuple[Script, ...]
    failed: Mapping[str, str]
    """Test id -> reason why there is no script."""

    def to_json(self) -> dict[str, Any]:
        """Return a value that JSON can hold."""
        return {"scripts": [script.to_json() for script in self.scripts], "failed": dict(self.failed)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Rebuild a recording from `to_json`."""
        return cls(tuple(map(Script.from_json, content["scripts"])), dict(content["failed"]))


@dataclass(frozen=True)
class Conditions:
    """Conditions of one replay; replays of the same code must agree under all of them."""

    hash_seed: int = 0
    clock_shift_s: float = 0.0
    is_apart: bool = False
    """Each script has a process of its own; else they share one, and one that ends it early has the next in another."""
    traced: frozenset[str] = frozenset()
    """Ids of those scripts, where they run apart, that are asked for their functions: a trace makes them slow."""
    cpu_s: float = 0.0
    """A process that has used more is late, whatever else the machine does; 0: no bound."""
    max_late: int = 4
    """After so many late scripts no other one is played."""


@cache
def _sources(names: tuple[str, ...]) -> tuple[tuple[str, str, str, str], ...]:
    """Return name, text and byte-code of modules of the guest, with the version of the byte-code."""
    folder, magic = files("repairgym.tasks.replay.guest"), importlib.util.MAGIC_NUMBER.hex()
    modules = []
    for name in names:
        text = (folder / f"{name}.py").read_text(encoding="utf-8")
        code = marshal.dumps(compile(text, f"<{name}>", "exec", dont_inherit=True))
        modules.append((name, text, b64encode(code).decode(), magic))
    return tuple(modules)


async def _execute(
    backend: SandboxBackend, spec: SandboxSpec, request: Mapping[str, Any], lines: Sequence[bytes], timeout_s: float
) -> ExecResult:
    first = json.dumps(request).encode()
    stdin = len(first).to_bytes(4, sys.byteorder) + first + b"".join(lines)
    limits = SandboxLimits(**{**spec.limits.model_dump(), "output_bytes": _OUTPUT_BYTES})
    sandbox = await backend.create(spec.model_copy(update={"limits": limits}))
    try:
        return await sandbox.run_python(_BOOT, timeout_s=timeout_s, stdin=stdin)
    finally:
        await sandbox.close()


# --- recording --------------------------------------------------------------------------------------------------------


async def record(
    backend: SandboxBackend, spec: SandboxSpec, request: TestRequest, *, max_tests: int = MAX_RECORDED_TESTS
) -> Recording:
    """Record the tests of ``request`` (pytest or unittest) over ``spec``, which holds the repair.

    Of more than ``max_tests`` selected ones, every n-th is recorded.

    Raises:
        SandboxError: the sandbox failed, or the recorder did not answer.
    """
    if request.runner.type not in RECORDED_RUNNERS:
        return Recording((), dict.fromkeys(request.test_ids, f"runner {request.runner.type}"))
    content = {
        "own_sources": _sources(_RECORDING),
        "test_ids": request.test_ids,
        "source_paths": request.source_paths,
        "plugins": request.plugins,
        "runner": request.runner.type,
        "max_steps": MAX_RECORDED_STEPS,
        "max_tests": max_tests,
    }
    done = await _execute(backend, spec, content, (), request.timeout_s)
    if done.is_timed_out or done.is_truncated:
        reason = "the recording was too long" if done.is_timed_out else "the recording was too large"
        return Recording((), dict.fromkeys(request.test_ids, reason))
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        raise SandboxError(f"the recorder did not answer: {done.stderr[-500:].decode(errors='replace')}") from error
    return Recording.from_json(answer)


# --- replay -----------------------------------------------------------------------------------------------------------


async def replay(
    backend: SandboxBackend,
    spec: SandboxSpec,
    scripts: Sequence[Script],
    source_paths: Sequence[str],
    conditions: Conditions = Conditions(),
    *,
    timeout_s: float,
    script_timeout_s: float = 20.0,
) -> Replay:
    """Replay ``scripts``, in their order, over ``spec``, which must not hold a test file.

    Raises:
        SandboxError: the sandbox failed.
    """
    traced = conditions.traced if conditions.is_apart else frozenset()
    request = {
        "own_sources": _sources(("feeder",)),
        "boot": _BOOT_SUBJECT,
        "sources": _sources(_SUBJECT),
        "source_paths": list(source_paths),
        "imports": sorted({name.partition(":")[0] for script in scripts for name in script.imports}),
        "hash_seed": conditions.hash_seed,
        "clock_shift_s": conditions.clock_shift_s,
        "is_apart": conditions.is_apart,
        "traced": [number for number, script in enumerate(scripts) if script.id in traced],
        "cpu_s": conditions.cpu_s,
        "max_late": conditions.max_late,
        "timeout_s": timeout_s,
        "script_timeout_s": script_timeout_s,
    }
    lines = [script.line for script in scripts]
    done = await _execute(backend, spec, request, lines, timeout_s + script_timeout_s)
    return _parse(scripts, done)


def _parse(scripts: Sequence[Script], done: ExecResult) -> Replay:
    observations: dict[str, list[Observation]] = {script.id: [] for script in scripts}
    problems: dict[str, str] = {}
    executed: dict[str, frozenset[str]] = {}
    cpu_s: dict[str, float] = {}
    for line in done.stdout.splitlines():
        try:
            number, *content = json.loads(line)
        except ValueError:
            continue  # cut off when the process was killed
        script = scripts[number]
        match content:
            case [str(reason), clock_s]:
                problems[script.id] = reason
                cpu_s[script.id] = clock_s - sum(cpu_s.values())
            case [None, functions]:
                executed[script.id] = frozenset(f"{path}::{first_line}" for path, first_line in functions)
            case [first, answers]:
                observations[script.id] += _observations(script, first, answers)
    missing = "timed out" if done.is_timed_out else "flooded" if done.is_truncated else "died"
    unfinished = {script.id: problems.get(script.id, missing) for script in scripts}
    return Replay(
        {name: tuple(seen) for name, seen in observations.items()},
        {name: reason for name, reason in unfinished.items() if reason},
        done.duration_s,
        executed,
        cpu_s,
    )


def _observations(script: Script, first: int, answers: Sequence[Any]) -> Iterator[Observation]:
    """Yield what the steps of a chunk, from number ``first`` on, have answered."""
    for number, (kind, value, after_kind, after) in enumerate(answers, first):
        step = script.steps[number]
        yield Observation(number, "result", value, kind, bool(step.get("asserted")))
        if step.get("after"):
            yield Observation(number, "after", after, after_kind, is_asserted=False)


# --- reading and editing scripts --------------------------------------------------------------------------------------


def literals(script: Script) -> Iterator[tuple[Place, Any]]:
    """Yield place and value of each literal (None, bool, int, str, float) that `with_literal` can replace."""
    for index, step in enumerate(script.steps):
        for part in ("args", "kwargs"):
            for place, value in _literals(step.get(part, ())):
                yield (index, part, *place), value


def _literals(content: Any) -> Iterator[tuple[Place, Any]]:
    if isinstance(content, list) and len(content) == 2 and content[0] in ("l", "F"):
        yield (1,), float(content[1]) if content[0] == "F" else content[1]
    elif isinstance(content, list | dict):
        for key, part in content.items() if isinstance(content, dict) else enumerate(content):
            for place, value in _literals(part):
                yield (key, *place), value


def lists(script: Script) -> Iterator[tuple[Place, list[Any]]]:
    """Yield place and operand of each list with elements; `with_literal` takes another such operand as a value."""
    for index, step in enumerate(script.steps):
        for part in ("args", "kwargs"):
            for place, operand in _lists(step.get(part, ())):
                yield (index, part, *place, 0), operand


def _lists(content: Any) -> Iterator[tuple[Place, list[Any]]]:
    if isinstance(content, list) and len(content) > 1 and content[0] == "L":
        yield (), content
    if isinstance(content, list | dict):
        for key, part in content.items() if isinstance(content, dict) else enumerate(content):
            for place, operand in _lists(part):
                yield (key, *place), operand


def with_literal(script: Script, place: Place, value: Any, new_id: str, *, is_unusual: bool = False) -> Script:
    """Return ``script`` as ``new_id`` with ``value`` at ``place``; nothing of it is asserted by a test.

    The step of the literal is marked as varied, with the new id, and as unusual where it is. Steps that neither depend
    on it nor are needed for those that do are left out.
    """
    steps = plain_steps(script)
    steps[int(place[0])] |= {"is_varied": new_id, **({"is_unusual": True} if is_unusual else {})}
    operand: Any = steps
    for key in place[:-1]:
        operand = operand[key]
    if isinstance(value, list):
        operand[:] = value
    else:
        operand[:] = ["F", repr(value)] if isinstance(value, float) else ["l", value]
    return replace(script, id=new_id, steps=around(steps, int(place[0])))


def plain_steps(script: Script) -> list[Step]:
    """Return a copy of the steps of ``script`` without any mark."""
    return [sendable(step) for step in json.loads(json.dumps(script.steps))]


def around(steps: Sequence[Step], number: int) -> tuple[Step, ...]:
    """Return those of ``steps`` that depend on step ``number``, and what these need or may need unseen."""
    return with_needed(steps, tainted_steps(steps, {number}))


def with_needed(steps: Sequence[Step], wanted: Collection[int]) -> tuple[Step, ...]:
    """Return the steps ``wanted`` of ``steps``, and what these need or may need unseen."""
    needed: set[int] = set()
    kept: list[Step] = []
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        is_unseen = "to" not in step or step["op"].startswith("set_")
        if index in wanted or is_unseen or not needed.isdisjoint({step["to"], *step.get("after", ())}):
            kept.append(step)
            needed |= used_handles(step)
    return tuple(kept[::-1])


def used_handles(step: Step) -> frozenset[int]:
    """Return the handles that the operands of ``step`` name."""
    return frozenset(_handles([step["args"], step.get("kwargs", {})]))


def _handles(content: Any) -> Iterator[int]:
    if isinstance(content, list) and len(content) == 2 and content[0] == "h":
        yield content[1]
    elif isinstance(content, list | dict):
        for part in content.values() if isinstance(content, dict) else content:
            yield from _handles(part)


def tainted_steps(steps: Sequence[Step], unstable: Collection[int]) -> frozenset[int]:
    """Return those of ``steps`` that depend on the steps ``unstable``, and those themselves.

    A step depends on another when it uses its result, or an object that the other may have changed.
    """
    handles: set[int] = set()
    tainted: set[int] = set()
    for index, step in enumerate(steps):
        if index in unstable or (handles and not handles.isdisjoint(used_handles(step))):
            tainted.add(index)
            handles |= {step["to"]} if "to" in step else set()
            handles |= set(step.get("after", ()))
    return frozenset(tainted)
