"""Certification scan: no sandbox of a task shows its answer.

Reads tasks and their layers. Makes a `Sighting` for each readable file that shows at least half of the distinctive
lines of a task's gold files, a function of them in compiled form, a built copy of them, or a hidden test. Distinctive
is an added line together with lines around it, or alone when it is long; it is absent from the broken files, and other
modules of the tree do not use it too. Guarantees: the files are those that the agent's own sandbox shows; the system is
searched once, each environment and each tree once.
"""

import ast
import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Self

from repairgym.diffs.lines import source_lines
from repairgym.errors import InputError, SandboxError
from repairgym.records import Record, Task
from repairgym.sandbox.base import SandboxBackend, SandboxLimits
from repairgym.tasks.build.test_files import file_of, function_id, walk_functions
from repairgym.tasks.build.validation import TaskLayers, pinned_tree, task_layers
from repairgym.tasks.build.wheel_check import is_wheel_check
from repairgym.tasks.javascript.built_copies import built_copies
from repairgym.tasks.javascript.syntax import is_javascript
from repairgym.tasks.layers.bytecode import stale_bytecode
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sight import search
from repairgym.tasks.sight.build_scan import build_sightings
from repairgym.tasks.sight.search import Needles, normalise
from repairgym.tasks.sight.sighting import Sighting

MIN_CHARS = 40
"""Least characters of two to five neighbours, or of the first lines of a test."""
MIN_LINE_CHARS = 6
"""Least characters of an added line next to a neighbour."""
MIN_ALONE_CHARS = 60
MIN_SHARE = 0.5
"""Least share of the distinctive lines of a kind that a file shows."""
_TIMEOUT_S = 1800.0
_OUTPUT_BYTES = 64 << 20
_PROGRAM = Path(search.__file__).read_text(encoding="utf-8")


class ScanReport(Record):
    """Result of a scan."""

    schema_version: int = 1
    task_ids: tuple[str, ...]
    """All scanned tasks."""
    sightings: tuple[Sighting, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the report in ``path``; InputError for anything else."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValueError) as error:
            text = f"{path} is no report of a scan ({error}); make it with: repairgym tasks scan FOLDER --out {path}"
            raise InputError(text) from error

    def reasons(self) -> dict[str, str]:
        """Return the first place that shows the answer of each task that has one."""
        return {seen.task_id: f"{seen.path}:{seen.line} shows its {seen.kind}" for seen in reversed(self.sightings)}


@dataclass(frozen=True)
class _Clue:
    """Part of a task's answer."""

    kind: str
    lines: tuple[str, ...]
    shown: frozenset[str]
    """Added lines (functions, tests) that it shows."""
    digest: str = ""
    origin: str = ""
    """Name of the file that it is from."""


_Place = tuple[_Clue, str, int]
"""A clue, a path that shows it, and the line there."""


# --- what must not be seen --------------------------------------------------------------------------------------------


def _clues(task: Task, tree: Path) -> Iterator[_Clue]:
    for path, gold in task.gold_files.items():
        broken, name = task.base_files.get(path, _read(tree / path)) or "", PurePosixPath(path).name
        if gold is None:
            continue
        for lines, shown in distinctive_lines(gold, broken).items():
            yield _Clue("gold", lines, shown, origin=name)
        if path.endswith(".py"):
            before = {digest for digest, _ in _compiled(broken)}
            for digest, function in _compiled(gold):
                if digest not in before:
                    yield _Clue("gold code", (function,), frozenset([digest]), digest, name)
    for path in {file_of(test_id) for test_id in task.test_paths} & task.base_files.keys():
        tests = (*task.fail_to_pass, *task.pass_to_pass)
        hidden = {function_id(test) for test in tests if file_of(test) == path}
        hidden -= {function_id(test) for test in task.visible_tests}
        names = {test.partition("::")[2] for test in hidden}
        for lines in _test_lines(_read(tree / path), names, task.base_files[path] or ""):
            yield _Clue("hidden test", lines, frozenset(lines), origin=PurePosixPath(path).name)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def distinctive_lines(gold: str, broken: str) -> dict[tuple[str, ...], frozenset[str]]:
    """Return sequences of normalised lines that ``broken`` does not hold, with the added lines in each."""
    after, before = [line for _, line in normalise(gold)], [line for _, line in normalise(broken)]
    known = set(before)
    sequences: dict[tuple[str, ...], frozenset[str]] = {}
    for length in (1, 2, 3, 5):
        others = set(_windows(before, length))
        for window in _windows(after, length):
            added = frozenset(line for line in window if line not in known and len(line) >= MIN_LINE_CHARS)
            # Without an added line it shows another order, or what was removed.
            is_long = sum(map(len, window)) >= (MIN_CHARS if added and length > 1 else MIN_ALONE_CHARS)
            if window not in others and is_long and (added or length > 2):
                sequences[window] = added or frozenset(window)
    return sequences


def _windows(lines: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    return zip(*(lines[start:] for start in range(length)), strict=False)


@lru_cache(maxsize=4096)
def _compiled(source: str) -> tuple[tuple[str, str], ...]:
    """Return the digests and names of the functions in ``source``; nothing for code of another Python."""
    try:
        functions = search.functions_of(compile(source, "file", "exec", dont_inherit=True))
        return tuple((search.digest_code(code), code.co_name) for code in functions)
    except (SyntaxError, ValueError, RecursionError):
        return ()


def _test_lines(source: str, names: Collection[str], shown: str) -> Iterator[tuple[str, ...]]:
    """Yield the first lines of the test functions ``names`` that ``shown`` does not hold."""
    try:
        functions = list(walk_functions(ast.parse(source)))
    except SyntaxError:
        return
    texts, visible = source_lines(source), {line for _, line in normalise(shown)}
    for name, node, _ in functions:
        if name in names:
            body = [line for _, line in normalise("\n".join(texts[node.lineno - 1 : node.end_lineno]))]
            lines = tuple(body[:3])
            if sum(map(len, lines)) >= MIN_CHARS and not visible.issuperset(lines):
                yield lines


# --- the search -------------------------------------------------------------------------------------------------------


async def scan_tasks(
    tasks: Sequence[Task], store: LayerStore, backend: SandboxBackend, has_system: bool = True
) -> AsyncGenerator[tuple[str, int, int, list[Sighting]], None]:
    """Search what all ``tasks`` see; yield the name, the number and the total of searched places with what each shows.

    Without ``has_system`` the programs and libraries of the host are left out.

    Raises:
        SandboxError: a search did not end.
        IndexUnavailableError: a layer is missing and no index answers.
    """
    by_tree: dict[TaskLayers, list[Task]] = defaultdict(list)
    for task in tasks:
        by_tree[await asyncio.to_thread(task_layers, task, store)].append(task)
    by_environment: dict[Path, list[Task]] = defaultdict(list)
    for layers, group in by_tree.items():
        by_environment[layers.environment] += group
    any_layers = {layers.environment: layers for layers in by_tree}
    num_places, clues = len(by_tree) + len(by_environment) + has_system, dict[str, list[_Clue]]()
    for number, (layers, group) in enumerate(by_tree.items(), 1):
        sightings = await _scan_tree(backend, layers, group, clues, store)
        yield f"tree {layers.tree.name[:12]}", number, num_places, sightings
    for number, (environment, group) in enumerate(by_environment.items(), len(by_tree) + 1):
        own = {task.id: clues[task.id] for task in group}
        seen = await _search(backend, any_layers[environment], own, "environment")
        yield f"environment {environment.name[:12]}", number, num_places, _judge_all(own, seen)
    if has_system and tasks:
        seen = await _search(backend, next(iter(by_tree)), clues, "system")
        yield "system", num_places, num_places, _judge_all(clues, seen)


async def _scan_tree(
    backend: SandboxBackend, layers: TaskLayers, tasks: Sequence[Task], clues: dict[str, list[_Clue]], store: LayerStore
) -> list[Sighting]:
    """Search the tree of ``tasks``; add the clues of each to ``clues``."""
    own = {task.id: list(_clues(task, pinned_tree(task, store))) for task in tasks}
    seen = await _search(backend, layers, own, "testbed")
    for task in tasks:
        clues[task.id], seen[task.id] = _in_tree(task, own[task.id], seen[task.id], layers.tree)
    copies = [sighting for task in tasks if task.runner.is_node for sighting in _copies(task, layers.tree)]
    builds = [task for task in tasks if is_wheel_check(task.fail_to_pass)]
    of_builds = [sighting for task in builds for sighting in build_sightings(task, layers.tree, layers.environment)]
    return [*_judge_all({task.id: clues[task.id] for task in tasks}, seen), *copies, *of_builds]


def _copies(task: Task, tree: Path) -> Iterator[Sighting]:
    """Yield the built copies that the agent of a JavaScript task sees: minified, they share no line with the repair."""
    if not any(map(is_javascript, task.gold_files)):
        return
    for path in built_copies(tree, task.gold_files.keys()):
        if task.base_files.get(path, "") is not None:
            yield Sighting(task_id=task.id, kind="built copy", path=path, line=1, text=path, share=1.0)


def _judge_all(clues: Mapping[str, Sequence[_Clue]], seen: Mapping[str, Sequence[_Place]]) -> list[Sighting]:
    return [sighting for task_id, own in clues.items() for sighting in _judge(task_id, own, seen[task_id])]


def _in_tree(task: Task, clues: list[_Clue], seen: list[_Place], tree: Path) -> tuple[list[_Clue], list[_Place]]:
    """Return the clues that other modules of the tree do not use too, and the places that the agent sees of them."""
    overwritten = {*task.base_files, *stale_bytecode(tree, task.base_files)}
    places = [place for place in seen if place[1].partition("!")[0] not in overwritten]
    wanted = [clue for clue in clues if not clue.digest]
    needles = Needles([clue.lines for clue in wanted])
    for path, text in task.base_files.items():
        if text is not None and path not in task.gold_files:
            places += [(wanted[number], path, line) for number, line in needles.find(text)]
    used = {clue for clue, path, _ in places if module_file(path) not in ("", clue.origin)}
    used |= {clue for clue, path, _ in places if path in task.gold_files}
    return [clue for clue in clues if clue not in used], [place for place in places if place[0] not in used]


def module_file(path: str) -> str:
    """Return the name of the source of the module or byte-code at ``path``; empty for anything else."""
    stem, _, kind = PurePosixPath(path).name.partition(".")
    return f"{stem}.py" if kind.rpartition(".")[2] in ("py", "pyc") else ""


def _judge(task_id: str, clues: Iterable[_Clue], places: Iterable[_Place]) -> Iterator[Sighting]:
    """Yield the files that show enough of one kind of clue."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for clue in clues:
        wanted[clue.kind] |= clue.shown
    files: dict[tuple[str, str], list[_Place]] = defaultdict(list)
    for place in places:
        files[place[0].kind, place[1]].append(place)
    for (kind, path), group in files.items():
        shown = {line for clue, _, _ in group for line in clue.shown}
        share = 1.0 if kind == "hidden test" else len(shown) / len(wanted[kind])
        if share >= MIN_SHARE:
            clue, _, line = min(group, key=lambda place: place[2])
            yield Sighting(task_id=task_id, kind=kind, path=path, line=line, text=clue.lines[0], share=share)


_PLACES: Mapping[str, str] = {
    "system": "roots=['/'], skipped=[sys.prefix, os.getcwd()]",
    "environment": "roots=[sys.prefix], skipped=[]",
    "testbed": "roots=['.'], skipped=[]",
}


async def _search(
    backend: SandboxBackend, layers: TaskLayers, clues: Mapping[str, Sequence[_Clue]], place: str
) -> dict[str, list[_Place]]:
    """Run the search of one place in a sandbox of the pinned tree; return the places by task."""
    by_key: dict[tuple[str, ...] | str, list[tuple[str, _Clue]]] = defaultdict(list)
    for task_id, own in clues.items():
        for clue in own:
            by_key[clue.digest or clue.lines].append((task_id, clue))
    needles = [key for key in by_key if isinstance(key, tuple)]
    request = {"needles": needles, "digests": [key for key in by_key if isinstance(key, str)], "program": _PROGRAM}
    # The places inside are known inside only: a back end may show them elsewhere.
    boot = f"import io, json, os, sys; request = dict(json.load(sys.stdin), {_PLACES[place]}); "
    boot += "sys.stdin = io.StringIO(json.dumps(request)); exec(request['program'])"
    limits = SandboxLimits(output_bytes=_OUTPUT_BYTES)
    sandbox = await backend.create(layers.spec({}, limits))
    try:
        done = await sandbox.exec(("python", "-c", boot), timeout_s=_TIMEOUT_S, stdin=json.dumps(request).encode())
    finally:
        await sandbox.close()
    if done.exit_status != 0 or done.is_truncated:
        tail = done.stderr[-300:].decode(errors="replace")
        raise SandboxError(f"the search of the {place} ended with {done.exit_status}: {tail}")
    places: dict[str, list[_Place]] = {task_id: [] for task_id in clues}
    for row in done.stdout.decode().splitlines():
        key, path, line = json.loads(row)
        for task_id, clue in by_key[key if isinstance(key, str) else needles[key]]:
            places[task_id].append((clue, path.removeprefix("./"), line))
    return places
