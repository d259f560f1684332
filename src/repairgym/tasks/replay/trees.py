"""The specs of recordings and replays: the code of a task over its tree, and for a replay no test.

Reads a task and its pinned tree; makes the spec of a sandbox. Guarantees: no file of the tests is in a replay; a file
that the tree has as it is stays the tree's own, with its byte-code, so equal code of several tasks has one spec.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from repairgym.records import Task
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.replay.guest.rewrite import is_test_path

MakeSpec = Callable[[Task, dict[str, str | None]], SandboxSpec]


def code_spec(task: Task, make_spec: MakeSpec, sources: Mapping[str, str | None]) -> SandboxSpec:
    """Return the sandbox of the tree with ``sources`` over it."""
    return make_spec(task, _other_files(task, make_spec(task, {}).tree, sources))


def replay_spec(task: Task, make_spec: MakeSpec, sources: Mapping[str, str | None]) -> SandboxSpec:
    """Return the sandbox of a replay: the tree with ``sources`` over it and without any test file."""
    tree = make_spec(task, {}).tree
    tests = {*task.test_paths, *hidden_tests(tree, frozenset((*sources, *task.gold_files)))} - task.gold_files.keys()
    return make_spec(task, {**_other_files(task, tree, sources), **dict.fromkeys(sorted(tests))})


def _other_files(task: Task, tree: Path, files: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return those of ``files`` that ``tree`` has not as they are, and all that the task does not name."""
    own = task.base_files.keys() | task.gold_files.keys()
    return {path: text for path, text in files.items() if path not in own or not _is_there(tree / path, text)}


def _is_there(path: Path, text: str | None) -> bool:
    if path.is_symlink() or not path.is_file():
        return text is None and not path.is_symlink() and not path.exists()
    return text is not None and path.read_bytes() == text.encode()


@lru_cache(maxsize=256)
def test_files(tree: Path) -> tuple[str, ...]:
    """Return the files of ``tree`` that belong to its tests, with their data."""
    return tuple(sorted(filter(is_test_path, _files(tree))))


test_files.__test__ = False  # type: ignore[attr-defined]  # pytest collects no function of ours


@lru_cache(maxsize=1024)
def hidden_tests(tree: Path, kept: frozenset[str]) -> frozenset[str]:
    """Return `test_files`, but in place of the files of a folder that has no other ones, nor any of ``kept``, it."""
    num_files = Counter(folder for path in _files(tree) for folder in _folders(path))
    num_tests = Counter(folder for path in test_files(tree) for folder in _folders(path))
    whole = {folder for folder, num in num_tests.items() if num == num_files[folder]}
    whole -= {folder for path in kept for folder in _folders(path)}
    return frozenset(next((folder for folder in _folders(path) if folder in whole), path) for path in test_files(tree))


def _files(tree: Path) -> Iterator[str]:
    return (path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())


def _folders(path: str) -> list[str]:
    """Return the folders above ``path``, the highest first."""
    names = path.split("/")[:-1]
    return ["/".join(names[: number + 1]) for number in range(len(names))]
