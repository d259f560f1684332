"""Fixes taken back from the newest commit, at the ends of a file and in files of another encoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repairgym.config.tasks import HistoryConfig, TasksConfig
from repairgym.records import Environment, Provenance
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.build.test_files import SuiteMap
from repairgym.tasks.layers.catalogue import Project
from repairgym.tasks.layers.repositories import Commit, GitRepository, UnsupportedTreeError
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.base import BuildContext, Drop
from repairgym.tasks.sources.newest import NewestState
from repairgym.tasks.sources.pairs import Origin, Pair

Maker = Callable[..., Any]
FUNCTION = "def f(a):\n    b = a\n    return b"


def state(clone: GitRepository, newest: str, backend: SandboxBackend) -> NewestState:
    """The newest commit, whose file ``a.py`` is ``newest``; no test of it has run."""
    origin = Origin(
        project=Project(name="a", split="train", sources=("a.py",), tests=()),
        source="history",
        provenance=Provenance(package="a", version="1"),
        base_tree="",
        environment=Environment(digest="0" * 64, python="3.12", lock=""),
        config=HistoryConfig(),
    )
    context = BuildContext(LayerStore(clone.folder), backend, TasksConfig(), 1)
    spec = SandboxSpec(environment=clone.folder, tree=clone.folder)
    return NewestState(clone, Pair(origin, context, spec, SuiteMap({}, {}), {"a.py": newest}, {"a.py": newest}))


@pytest.mark.parametrize(
    ("before", "after", "newest", "expected"),
    [
        # At the end of the file both the line and its missing end come back; before more code neither does.
        (FUNCTION, FUNCTION.replace("return b", "return b + 1\n"), None, FUNCTION),
        (FUNCTION, FUNCTION.replace("return b", "return b + 1\n"), "{}def g(b):\n    return b\n", None),
        # A first line lies behind what came before it.
        ("x = 1\n\ny = 1\nz = 1\n", "x = 2\n\ny = 1\nz = 1\n", "import os\n{}", None),
        ("x = 1\n\ny = 1\nz = 1\n", "x = 2\n\ny = 1\nz = 1\n", "{}\nnew = 1\n", "x = 1\n\ny = 1\nz = 1\n\nnew = 1\n"),
        ("a\nb\nc\n", "a\nB\nc\n", "0\n{}1\n", "0\na\nb\nc\n1\n"),
    ],
)
def test_ends_of_a_file_are_those_of_the_newest_one(
    before: str,
    after: str,
    newest: str | None,
    expected: str | None,
    tmp_path: Path,
    make_repository: Maker,
    backend: SandboxBackend,
) -> None:
    made = make_repository(tmp_path / "repository")
    made.write("a.py", before)
    parent = made.commit("First")
    made.write("a.py", after)
    commit = Commit(made.commit("Fix"), (parent,), "2024-05-01", "Fix", ("a.py",))
    text = after if newest is None else newest.format(after)
    pair = state(GitRepository(made.folder), text, backend).without(commit, ("a.py",))
    if expected is None:
        assert isinstance(pair, Drop)
        assert pair.reason == "does_not_apply"
    else:
        assert isinstance(pair, Pair)
        assert pair.older["a.py"] == expected


def test_a_file_that_was_of_another_encoding_is_not_a_missing_one(
    tmp_path: Path, make_repository: Maker, backend: SandboxBackend
) -> None:
    made = make_repository(tmp_path / "repository")
    (made.folder / "a.py").write_bytes("x = 'é'\n".encode("latin-1"))
    parent = made.commit("First")
    made.write("a.py", "x = 'é'\ny = 1\n")
    commit = Commit(made.commit("Fix"), (parent,), "2024-05-01", "Fix", ("a.py",))
    with pytest.raises(UnsupportedTreeError):
        state(GitRepository(made.folder), "x = 'é'\ny = 1\n", backend).without(commit, ("a.py",))
