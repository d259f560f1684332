"""A replay sees the code without any test; what the tree has already is not written over it."""

from pathlib import Path

from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.replay.trees import code_spec, hidden_tests, replay_spec, test_files
from repairgym.testing.scripted import scripted_task

HIDDEN = ("conftest.py", "src/m/test_c.py", "tests/b.py", "tests/data/a.json", "tests/more/c.py")


def tree_with(tmp_path, *paths):
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("from m import f\n")
    return tmp_path


def spec_of(tree):
    return lambda task, files: SandboxSpec(environment=Path("/env"), tree=tree, files=files)


def test_no_file_of_the_tests_is_in_a_replay(tmp_path):
    tree = tree_with(tmp_path, "src/m.py", "testing.py", *HIDDEN)
    assert test_files(tree) == HIDDEN
    spec = replay_spec(scripted_task(test_paths=("odd.py",)), spec_of(tree), {"m.py": "x"})
    hidden = ("conftest.py", "odd.py", "src/m", "tests")
    assert spec.files == {"m.py": "x", **dict.fromkeys(hidden)}


def test_a_folder_with_a_file_of_the_code_stays(tmp_path):
    tree = tree_with(tmp_path, "src/m.py", *HIDDEN)
    assert hidden_tests(tree, frozenset({"src/m/new.py"})) == {"conftest.py", "src/m/test_c.py", "tests"}
    kept = scripted_task(gold_files={"tests/b.py": "fixed"})
    spec = replay_spec(kept, spec_of(tree), {"tests/b.py": "fixed"})
    assert spec.files["tests/b.py"] == "fixed"
    assert {path for path, text in spec.files.items() if text is None} >= {"tests/data", "tests/more"}
    assert "tests" not in spec.files


def test_files_that_the_tree_has_are_not_written(tmp_path):
    tree = tree_with(tmp_path, "m.py", "linked.py", "other.py")
    (tree / "link.py").symlink_to("linked.py")
    text = (tree / "m.py").read_text()
    same = dict.fromkeys(("m.py", "link.py", "other.py"), text) | {"gone.py": None}
    task = scripted_task(base_files={"m.py": "broken", "gone.py": "x", "link.py": "x"}, gold_files=same)
    files = {**same, "unknown.py": None}
    assert code_spec(task, spec_of(tree), files).files == {"link.py": text, "unknown.py": None}
    assert code_spec(task, spec_of(tree), {"m.py": "broken"}).files == {"m.py": "broken"}
    assert code_spec(task, spec_of(tree), {"m.py": None}).files == {"m.py": None}
