from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repairgym.config.sandbox import LayersConfig
from repairgym.errors import IndexUnavailableError, InputError
from repairgym.tasks.layers.catalogue import Repository
from repairgym.tasks.layers.repositories import (
    GitRepository,
    UnsupportedTreeError,
    commit_tree,
    snapshot_package,
)
from repairgym.tasks.layers.store import LayerStore

Maker = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "layers")


def test_a_merge_is_one_commit_against_its_first_parent(tmp_path: Path, make_history: Maker) -> None:
    made = make_history(tmp_path / "repository")
    clone = GitRepository(made.folder)
    newest, merge, words, first = clone.commits("HEAD")
    assert [len(commit.parents) for commit in (newest, merge, words, first)] == [1, 2, 1, 0]
    assert {"src/tinycalc/numbers.py", "tests/test_numbers.py"} <= set(merge.paths)
    assert "fixes #12" in clone.merged_messages(merge)
    assert not clone.merged_messages(newest)
    assert clone.version(merge.id) == "1.0.0"
    # Files and tasks are named after the version.
    made.git("tag", "py3/v1.2", merge.id)
    made.git("tag", "--delete", "v1.0.0")
    assert clone.version(merge.id) == "3-v1.2"


@pytest.mark.parametrize(("text", "version"), [('{\n  "version": "0.1.0"\n}\n', "0.1.0"), ("{}\n", "0")])
def test_without_a_tag_the_version_is_that_of_package_json(
    tmp_path: Path, make_history: Maker, text: str, version: str
) -> None:
    made = make_history(tmp_path / "repository")
    made.git("tag", "--delete", "v1.0.0")
    (made.folder / "package.json").write_text(text)
    made.git("add", "package.json")
    made.git("commit", "-q", "-m", "settings")
    clone = GitRepository(made.folder)
    assert clone.version(clone.resolve("HEAD")) == version


def test_a_missing_file_is_none_and_one_that_cannot_be_read_an_error(tmp_path: Path, make_repository: Maker) -> None:
    made = make_repository(tmp_path / "repository")
    made.write("below/a.py", "x = 1\n")
    (made.folder / "below" / "old.py").write_bytes("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"))
    commit = made.commit("First")
    clone = GitRepository(made.folder, "below")
    assert clone.text(commit, "a.py") == "x = 1\n"
    assert clone.text(commit, "b.py") is None
    assert GitRepository(made.folder).text(commit, "below") is None
    with pytest.raises(UnsupportedTreeError) as caught:
        clone.text(commit, "old.py")
    assert (caught.value.reason, caught.value.path) == ("no_utf8", "old.py")
    assert (clone.plain_text(commit, "old.py"), clone.plain_text(commit, "a.py")) == ("", "x = 1\n")
    # A clone that lacks the blob does not say that the commit has no such file.
    blob = made.git("rev-parse", "HEAD:below/a.py")
    (made.folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(InputError, match="cat-file"):
        clone.text(commit, "a.py")


def test_a_tree_holds_one_commit_and_nothing_later(tmp_path: Path, store: LayerStore, make_history: Maker) -> None:
    made = make_history(tmp_path / "repository")
    made.write(".gitattributes", "* filter=evil\ntests/** export-ignore\n")
    made.git("config", "filter.evil.smudge", f"touch {tmp_path}/ran")
    tip = made.commit("Attributes")
    clone = GitRepository(made.folder)
    merge = next(commit for commit in clone.commits("HEAD") if len(commit.parents) == 2)
    tree = commit_tree(store, clone, merge.id, "tinycalc", "1.0.0")
    assert (tree / "src/tinycalc/numbers.py").read_text() == (made.folder / "src/tinycalc/numbers.py").read_text()
    assert not (tree / "src/tinycalc/future.py").exists()
    assert not list(tree.rglob(".git"))
    assert (tree / ".dist/tinycalc-1.0.0.dist-info/METADATA").is_file()
    assert (commit_tree(store, clone, tip, "tinycalc", "1.0.0") / "tests/test_numbers.py").is_file()
    assert not (tmp_path / "ran").exists()


def test_a_subdirectory_is_a_project_of_its_own(tmp_path: Path, store: LayerStore, make_history: Maker) -> None:
    made = make_history(tmp_path / "repository", "packages/calc/")
    made.write("packages/other/a.py", "x = 1\n")
    made.commit("Fix the other package")
    clone = GitRepository.open(str(made.folder), store, "packages/calc")
    commits = list(clone.commits("HEAD"))
    assert all("other" not in path for commit in commits for path in commit.paths)
    assert "Fix the other package" not in {commit.message for commit in commits}
    assert clone.text(commits[0].id, "src/tinycalc/future.py") == "SECRET = 1\n"
    tree = commit_tree(store, clone, commits[0].id, "calc", "1")
    assert (tree / "src/tinycalc/numbers.py").is_file()


def _submodule(made: Any) -> None:
    made.git("update-index", "--add", "--cacheinfo", f"160000,{made.git('rev-parse', 'HEAD')},vendor/other")
    made.git("commit", "--quiet", "-m", "Vendor")


def _lfs(made: Any) -> None:
    made.write("data.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    made.commit("Data")


def _link(made: Any) -> None:
    os.symlink("../../etc/passwd", made.folder / "link")
    made.commit("Link")


def _partial(made: Any) -> None:
    """Lose the blob of a file, as in a clone that left out large ones."""
    made.write("large.bin", "x" * 99)
    made.commit("Large")
    blob = made.git("rev-parse", "HEAD:large.bin")
    (made.folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_submodule, "submodules"),
        (_lfs, "lfs_pointers"),
        (_link, "unsafe_links"),
        (_partial, "missing_from_the_clone"),
    ],
)
def test_what_cannot_be_pinned_is_refused_by_its_kind(
    tmp_path: Path, store: LayerStore, change: Callable[[Any], None], reason: str, make_repository: Maker
) -> None:
    made = make_repository(tmp_path / "repository")
    made.write("a.py", "x = 1\n")
    made.commit("First")
    change(made)
    clone = GitRepository(made.folder)
    with pytest.raises(UnsupportedTreeError) as caught:
        commit_tree(store, clone, clone.resolve("HEAD"), "a", "1")
    assert caught.value.reason == reason
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301
    assert not list((store.root / "trees").glob("[!.]*"))


def test_generated_version_files_are_written(tmp_path: Path, store: LayerStore, make_repository: Maker) -> None:
    made = make_repository(tmp_path / "repository")
    made.write("pyproject.toml", '[tool.hatch.build.hooks.vcs]\nversion-file = "src/a/_version.py"\n')
    made.write("src/a/__init__.py", "from a._version import __version__\n")
    clone = GitRepository(made.folder)
    tree = commit_tree(store, clone, made.commit("First"), "a", "4.10.0")
    assert '__version__ = version = "4.10.0"' in (tree / "src/a/_version.py").read_text()


def test_urls_are_cloned_once_and_only_when_allowed(tmp_path: Path, store: LayerStore, make_history: Maker) -> None:
    made = make_history(tmp_path / "repository")
    url = made.folder.as_uri().replace("file://", "file://localhost")
    first = GitRepository.open(url, store)
    made.write("later.py", "x = 1\n")
    made.commit("Later")
    assert GitRepository.open(url, store).folder == first.folder
    assert first.resolve("HEAD") == made.git("rev-parse", "HEAD~1")
    offline = LayerStore(tmp_path / "other", config=LayersConfig(is_index_allowed=False))
    with pytest.raises(IndexUnavailableError, match="is_index_allowed"):
        GitRepository.open("https://example.invalid/a.git", offline)


def test_a_folder_without_git_and_an_unknown_commit_are_said(
    tmp_path: Path, store: LayerStore, make_history: Maker
) -> None:
    with pytest.raises(InputError, match="name a git repository"):
        GitRepository.open(str(tmp_path), store)
    made = make_history(tmp_path / "repository")
    with pytest.raises(InputError, match="rev-parse"):
        GitRepository(made.folder).resolve("nowhere")


def test_a_commit_is_a_package_that_needs_no_index(tmp_path: Path, store: LayerStore, make_history: Maker) -> None:
    made = make_history(tmp_path / "repository")
    fields: dict[str, Any] = {"sources": ("src/tinycalc/*.py",), "tests": ("tests/test_*.py",), "root": "src"}
    repository = Repository(name="tinycalc", split="train", url=str(made.folder), **fields)
    package = snapshot_package(repository, store)
    assert package == snapshot_package(repository, LayerStore(tmp_path / "other layers"))
    offline = LayerStore(store.root, config=LayersConfig(is_index_allowed=False))
    tree = offline.tree(package.sdist())
    assert package.source_files(tree)
    assert package.test_files(tree)
    assert not list(tree.rglob(".git"))
    commit_id = GitRepository(made.folder).resolve("HEAD")
    assert package.version == f"1.0.0+git.{commit_id[:12]}"
