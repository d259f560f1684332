"""Certification scan of broken builds: nothing that an agent can read states what the repaired settings say.

Reads tasks whose check builds a wheel, with the tree and the environment that their agents see. Makes a `Sighting` for
each file that states a lost setting, for metadata of the release, for a built distribution and for plain expectations.
A value counts by itself where it is long and no plain word, else where it is given to its key. Guarantees: every text
file of the agent's tree is read whole, the broken settings and the issue included.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from repairgym.records import Task
from repairgym.tasks.build.release_facts import plain_metadata
from repairgym.tasks.build.wheel_check import EXPECTED_FILE
from repairgym.tasks.mutation.settings_operators import Entry, parse_entries
from repairgym.tasks.sight.sighting import Sighting

MIN_VALUE_CHARS = 8
"""Shorter values count next to their key only."""
MAX_FILE_BYTES = 4 << 20
_ARCHIVES = (".whl", ".tar.gz", ".zip", ".egg")
_VALUE = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'|^\s*([^\s\"'\[\]{}#,][^\"'\[\]{}#\n]*?)\s*$", re.MULTILINE)
_KEYS = {"requirespython": ("requirespython", "pythonrequires"), "pythonrequires": ("requirespython", "pythonrequires")}


def build_sightings(task: Task, tree: Path, environment: Path) -> Iterator[Sighting]:
    """Yield what shows the repair of ``task``, a broken build in ``tree``, to its agent."""
    values = dict(lost_values(task))
    for path, text in _texts(task, tree):
        for number, line in enumerate(text.splitlines(), 1):
            if shown := next((value for value, keys in values.items() if _states(line, value, keys)), None):
                yield _sighting(task, "gold setting", path, number, f"{shown}: {line.strip()[:100]}")
                break
    yield from _of_release(task, tree, environment)


def lost_values(task: Task) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the values that only the repaired settings have, each with the plain names of its key."""
    for path, gold in task.gold_files.items():
        broken = task.base_files.get(path) or ""
        before = [(entry.section, entry.key, entry.value) for entry in parse_entries(broken)]
        for entry in parse_entries(gold or ""):
            if (entry.section, entry.key, entry.value) not in before:
                own = " ".join(value for section, key, value in before if (section, key) == (entry.section, entry.key))
                yield from ((value, _names(entry.key)) for value in _values(entry) if value not in own)


def _values(entry: Entry) -> Iterator[str]:
    for match in _VALUE.finditer(entry.value):
        yield next(filter(None, match.groups())).strip()


def _names(key: str) -> tuple[str, ...]:
    plain = re.sub(r"[^a-z]", "", key.lower())
    return _KEYS.get(plain, (plain,))


def _states(line: str, value: str, keys: tuple[str, ...]) -> bool:
    if value not in line:
        return False
    if len(value) >= MIN_VALUE_CHARS and re.search(r"[^\w\s.]|\w\.\w+\.\w|\d\.\d", value):
        return True
    key = re.sub(r"[^a-z]", "", re.split(r"[=:]", line.partition(value)[0])[0].lower())
    return bool(key) and key.endswith(keys) and bool(re.search(r"[=:]", line.partition(value)[0]))


def _texts(task: Task, tree: Path) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of the issue and of each text file of the agent's tree."""
    yield "the issue", task.issue
    own: Mapping[str, str | None] = task.base_files
    for path, text in own.items():
        if text is not None:
            yield path, text
    for place in sorted(tree.rglob("*")):
        path = place.relative_to(tree).as_posix()
        if path not in own and place.is_file() and place.stat().st_size <= MAX_FILE_BYTES:
            data = place.read_bytes()
            if b"\0" not in data:
                yield path, data.decode("utf-8", errors="replace")


def _of_release(task: Task, tree: Path, environment: Path) -> Iterator[Sighting]:
    """Yield statements of tools about the release."""
    name = canonicalize_name(task.provenance.package)
    for path, plain in plain_metadata(tree, name).items():
        text = task.base_files.get(path, (tree / path).read_text(encoding="utf-8", errors="replace"))
        if text is not None and text != plain:
            yield _sighting(task, "release metadata", path, 1, text.strip().partition("\n")[0][:100])
    if task.base_files.get(EXPECTED_FILE, "") is not None and (tree / EXPECTED_FILE).exists():
        yield _sighting(task, "expectations", EXPECTED_FILE, 1, "what the released wheel holds")
    for place in sorted(tree.rglob("*")):
        if place.name.endswith(_ARCHIVES) and canonicalize_name(place.name).startswith(f"{name}-"):
            yield _sighting(task, "built distribution", place.relative_to(tree).as_posix(), 1, place.name)
    for place in sorted(environment.glob("lib/python*/site-packages/*.dist-info")):
        if canonicalize_name(place.name.removesuffix(".dist-info").rpartition("-")[0]) == name:
            yield _sighting(task, "release metadata", f"environment: {place.name}", 1, place.name)


def _sighting(task: Task, kind: str, path: str, line: int, text: str) -> Sighting:
    return Sighting(task_id=task.id, kind=kind, path=path, line=line, text=text, share=1.0)
