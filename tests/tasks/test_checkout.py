"""Checkouts: what an agent may see, as a repository with one commit."""

import subprocess

import pytest

from repairgym.errors import InputError, TaskError
from repairgym.tasks.checkout import checkout
from repairgym.tasks.layers.store import LayerStore


def git(folder, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def imported(task, tmp_path):
    """A task whose pinned tree has a hidden test, an ignored extension and a file that the agent lacks."""

    def fill(place):
        for name, text in {"a.py": "fixed\n", "test_a.py": "hidden\n", "new.py": "x\n", ".gitignore": "*.so\n"}.items():
            (place / name).write_text(text)
        (place / "fast.so").write_bytes(b"\0")
        (place / ".git").mkdir()
        (place / ".git" / "history").write_text("the repair\n")

    store = LayerStore(tmp_path / "layers")
    store.build_once("trees", "t" * 64, fill)
    base = {"a.py": "broken\n", "test_a.py": "visible\n", "new.py": None}
    return task.model_copy(update={"source": "imported", "base_tree": "t" * 64, "base_files": base}), store


def test_a_checkout_is_the_agents_tree_with_one_commit(imported, tmp_path):
    task, store = imported
    commit = checkout(task, store, tmp_path / "out")
    assert commit == checkout(task, store, tmp_path / "again")
    assert git(tmp_path / "out", "rev-list", "--all").split() == [commit]
    assert git(tmp_path / "out", "ls-files").split() == [".gitignore", "a.py", "fast.so", "test_a.py"]
    assert git(tmp_path / "out", "status", "--porcelain") == ""
    assert (tmp_path / "out/test_a.py").read_text() == "visible\n"
    assert (tmp_path / "out/fast.so").exists()
    assert not (tmp_path / "out/.git/history").exists()
    (tmp_path / "out/a.py").write_text("fixed\n")
    assert "+fixed" in git(tmp_path / "out", "diff")
    assert (store.find("trees", "t" * 64) / "a.py").read_text() == "fixed\n"


def test_neither_ignore_rules_nor_attributes_keep_a_file_or_its_bytes_from_the_commit(imported, tmp_path, monkeypatch):
    task, store = imported
    base = {
        **task.base_files,
        ".gitignore": "lib/\n_version.py\n",
        ".gitattributes": "* text=auto\n*.dat -diff\n*.id ident\n",
        "lib/m.py": "broken\r\n",
        "_version.py": "1\n",
        "notes.txt": "mine\n",
        "x.dat": "old\n",
        "x.id": "$Id: 12 $\n",
    }
    task = task.model_copy(update={"base_files": base})
    commit = checkout(task, store, tmp_path / "plain")
    (tmp_path / "home/git").mkdir(parents=True)
    (tmp_path / "home/git/ignore").write_text("*.txt\n")
    (tmp_path / "home/git/attributes").write_text("*.py -diff text\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    assert checkout(task, store, tmp_path / "out") == commit
    assert {"lib/m.py", "_version.py", "notes.txt"} <= set(git(tmp_path / "out", "ls-files").split())
    for path in ("lib/m.py", "x.id"):
        content = subprocess.run(["git", "show", f"HEAD:{path}"], cwd=tmp_path / "out", capture_output=True, check=True)
        assert content.stdout == base[path].encode()
    (tmp_path / "out/lib/m.py").write_bytes(b"fixed\r\n")
    (tmp_path / "out/x.dat").write_text("new\n")
    difference = git(tmp_path / "out", "diff")
    assert "+fixed" in difference
    assert "+new" in difference


def test_a_folder_with_files_and_a_missing_tree_are_errors(imported, tmp_path):
    task, store = imported
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    with pytest.raises(InputError, match="is not empty; name a new folder"):
        checkout(task, store, tmp_path / "full")
    with pytest.raises(TaskError, match="repairgym tasks build --imported"):
        checkout(task.model_copy(update={"base_tree": "0" * 64}), store, tmp_path / "new")
    assert not (tmp_path / "new").exists()
