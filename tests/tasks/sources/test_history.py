from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from repairgym.cli.tasks import app
from repairgym.config.tasks import HistoryConfig, TasksConfig
from repairgym.errors import InputError
from repairgym.tasks.build.build_tasks import build, plan
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.issues.again import Describer
from repairgym.tasks.issues.cleaning import clean_message, reveals
from repairgym.tasks.issues.commit_texts import Issue, load_issues
from repairgym.tasks.layers.catalogue import Repository
from repairgym.tasks.layers.repositories import GitRepository
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.fixes import Fix, find_hunks
from repairgym.tasks.sources.history import (
    commit_lock,
    declared_requirements,
    find_candidates,
)
from repairgym.tasks.store import TaskStore

ISSUE = {"number": 12, "title": "count_above is off", "body": "<!-- template -->It counts the bound itself."}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, make_history: Callable[..., Any]) -> Any:
    return make_history(tmp_path_factory.mktemp("history") / "repository")


def entry(made: Any, **changes: str) -> Repository:
    fields = {"url": str(made.folder), "root": "src", **changes}
    return Repository(
        name="tinycalc", split="train", sources=("src/tinycalc/*.py",), tests=("tests/test_*.py",), **fields
    )


def write_config(folder: Path, repository: Repository, **history: object) -> TasksConfig:
    fields = repository.model_dump(exclude={"changelog"})
    lines = ["[[repository]]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]
    (folder / "catalogue.toml").write_text("\n".join(lines) + "\n")
    return TasksConfig(
        catalogue=str(folder / "catalogue.toml"),
        sources=("history",),
        history=HistoryConfig(is_lock_dated=False, ablation_timeout_s=60.0, **history),  # type: ignore[arg-type]
        test_timeout_s=20.0,
        run_timeout_s=60.0,
        num_workers=1,
    )


@pytest.fixture(scope="module")
def built(made: Any, seeded_layers: LayerStore, tmp_path_factory: pytest.TempPathFactory) -> TaskStore:
    folder = tmp_path_factory.mktemp("built")
    (folder / "issues.json").write_text(json.dumps([ISSUE]))
    config = write_config(folder, entry(made, issues=str(folder / "issues.json")))
    return build(config, folder / "tasks", seeded_layers)


def test_the_merge_becomes_one_certified_task(built: TaskStore, made: Any) -> None:
    (task,) = built.load(source="history")
    assert task.certificate.is_valid
    assert task.issue == "count_above is off\n\nIt counts the bound itself."
    assert (task.labels["issue_source"], task.labels["lock"]) == ("issue", "undated")
    assert task.provenance.commit == made.git("rev-parse", "HEAD~1")
    assert task.provenance.base_commit == made.git("rev-parse", "HEAD~2")
    assert task.created_at.startswith("2024-05-01T")
    assert set(task.gold_files) == {"src/tinycalc/numbers.py"}
    funnel = json.loads((built.folder / "funnel.json").read_text())["total"]["history"]
    assert funnel == {"commits": 4, "no_tests": 1, "no_code": 1, "root_commit": 1, "candidates": 1, "kept": 1}


def test_the_agent_finds_neither_the_fix_nor_the_future(built: TaskStore, seeded_layers: LayerStore) -> None:
    (task,) = built.load()
    tree = task_layers(task, seeded_layers).tree
    names = {path.name for path in tree.rglob("*")}
    assert "future.py" not in names
    assert ".git" not in names
    fixed = task.gold_files["src/tinycalc/numbers.py"]
    seen = {path: task.base_files.get(path) for path in task.gold_files}
    assert fixed not in seen.values()


def test_a_task_can_be_rebuilt_from_its_repository(built: TaskStore, seeded_layers: LayerStore, tmp_path: Path) -> None:
    (task,) = built.load()
    other = LayerStore(tmp_path / "layers")
    place = other.root / "environments" / task.environment.digest
    place.parent.mkdir(parents=True)
    place.symlink_to(seeded_layers.root / "environments" / task.environment.digest)
    assert task_layers(task, other).tree.name == task.base_tree


def test_units_hold_a_part_of_the_candidates_each(made: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path, entry(made), is_any_message=True, num_commits_per_unit=1)
    jobs = plan(config)
    assert [job.name for job in jobs] == ["history-tinycalc"]
    assert isinstance(jobs[0].package, Repository)
    assert jobs[0].package.revision == made.git("rev-parse", "HEAD")


def test_a_repository_that_gives_nothing_says_why(made: Any, seeded_layers: LayerStore, tmp_path: Path) -> None:
    made.git("checkout", "--quiet", "-b", "broken")
    try:
        test = (
            "import missing_here\nfrom tinycalc import clamp\n\n\ndef test_clamp():\n    assert clamp(9, 0, 5) == 5\n"
        )
        made.write("tests/test_numbers.py", test)
        made.write("src/tinycalc/numbers.py", "def clamp(value, low, high):\n    return min(high, max(low, value))\n")
        commit = made.commit("Fix clamp")
        config = write_config(tmp_path, entry(made, revision=commit), num_commits=1)
        store = build(config, tmp_path / "tasks", seeded_layers)
        funnel = json.loads((store.folder / "funnel.json").read_text())
        assert funnel["total"]["history"]["no_usable_tests"] == 1
        printed = CliRunner().invoke(app, ["stats", str(store.folder), "--log", "no_usable_tests"]).output
        assert printed.startswith(f"history, no_usable_tests: history-tinycalc: {commit[:12]} Fix clamp")
        assert "missing_here" in printed
        other = CliRunner().invoke(app, ["stats", str(store.folder), "--log", "survived"])
        assert "no_code, no_tests, no_usable_tests, root_commit" in str(other.exception)
    finally:
        made.git("checkout", "--quiet", "main")


def test_a_changed_encoding_is_no_new_file_and_deleted_tests_are_no_tests(
    seeded_layers: LayerStore, tmp_path: Path, make_repository: Callable[..., Any]
) -> None:
    other = make_repository(tmp_path / "other")
    other.write("src/tinycalc/__init__.py", "")
    (other.folder / "src/tinycalc/m.py").write_bytes("# coding: latin-1\nNAME = 'é'\n".encode("latin-1"))
    other.write("tests/test_m.py", "def test_a(): pass\n")
    other.write("tests/test_n.py", "def test_n(): pass\n")
    other.commit("First")
    other.write("src/tinycalc/m.py", "NAME = 'e'\n")
    other.write("tests/test_m.py", "from tinycalc import m\n\n\ndef test_a():\n    assert m.NAME == 'e'\n")
    other.commit("Fix the name")
    other.write("src/tinycalc/m.py", "NAME = 'f'\n")
    (other.folder / "tests/test_m.py").unlink()
    deletion = other.commit("Fix the name again")
    (other.folder / "src/tinycalc/m.py").write_bytes("# coding: latin-1\nNAME = 'é'\n".encode("latin-1"))
    other.write("tests/test_n.py", "def test_n(): assert True\n")
    from_utf8 = other.commit("Fix the name at last")
    store = build(write_config(tmp_path, entry(other)), tmp_path / "tasks", seeded_layers)
    funnel = store.load_document("funnel.json")
    rows = {"commits": 4, "candidates": 3, "root_commit": 1, "no_utf8": 2, "no_tests": 1}
    assert funnel["total"]["history"] == rows
    assert funnel["logs"]["history"]["no_utf8"].split()[1] == from_utf8[:12]
    assert funnel["logs"]["history"]["no_tests"].split()[1] == deletion[:12]


def test_without_an_issue_the_cleaned_message_is_the_report(made: Any) -> None:
    clone = GitRepository(made.folder)
    candidates, _ = find_candidates(entry(made), clone, HistoryConfig())
    message = "Merge branch 'bound'\n" + clone.merged_messages(candidates[0].commit)
    assert clean_message(message) == "Values equal to the bound were counted (fixes #12)"


def test_bounds_and_messages_are_counted(made: Any, tmp_path: Path, make_repository: Callable[..., Any]) -> None:
    other = make_repository(tmp_path / "other")
    other.write("src/tinycalc/a.py", "x = 1\n")
    other.write("tests/test_a.py", "def test_a(): pass\n")
    other.commit("First")
    for number in range(3):
        other.write("src/tinycalc/a.py", f"x = {number + 2}\n")
        other.write("tests/test_a.py", f"def test_a{number}(): pass\n")
        other.commit("Fix x" if number else "Add a feature")
    other.write("src/tinycalc/a.py", "x = 9\n")
    other.write("tests/test_a.py", "def test_a9(): pass\n")
    other.commit("Merge branch 'main' of example.org:a/b\n\nFix many things")
    candidates, dropped = find_candidates(entry(other), GitRepository(other.folder), HistoryConfig(num_commits=1))
    assert len(candidates) == 1
    assert dropped.logs["not_a_fix"].splitlines()[0].endswith(" Add a feature")
    reasons = {"beyond_num_commits", "not_a_fix", "root_commit", "merge_of_the_main_line"}
    assert dropped.logs.keys() == reasons
    assert dropped.funnel == {"commits": 5, **dict.fromkeys(reasons, 1)}


def test_a_text_that_quotes_the_fix_is_not_used() -> None:
    older, newer = {"a.py": "def f(x):\n    return x\n"}, {"a.py": "def f(x):\n    return max(x, 0)\n"}
    fix = Fix(tuple(find_hunks(older, newer)), older, newer)
    assert reveals("Use `return max(x, 0)` in f", fix)
    assert not reveals("f returns negative numbers", fix)


def test_issue_files(tmp_path: Path) -> None:
    path = tmp_path / "issues.json"
    path.write_text(json.dumps({"3": {"title": "T", "body": None}}))
    assert load_issues(str(path)) == {"3": Issue("T")}
    path.write_text('[{"title": "no number"}]')
    with pytest.raises(InputError, match="number"):
        load_issues(str(path))


def test_what_a_tree_declares(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "a"\ndependencies = ["attrs>=20"]\n')
    (tmp_path / "setup.cfg").write_text("[options]\ninstall_requires =\n  six\n  file: x\n")
    assert declared_requirements(tmp_path) == ("attrs>=20", "six")


@pytest.mark.network
def test_dependencies_are_locked_at_the_date_of_the_commit(made: Any, tmp_path: Path) -> None:
    repository = entry(made).model_copy(update={"requirements": ("attrs",)})
    lock = commit_lock(repository, tmp_path, "2022-06-01T00:00:00Z")
    assert "attrs==21.4.0" in lock
    assert "pytest==8.3.5" in lock


def test_an_old_fix_is_taken_back_from_the_newest_commit(made: Any, seeded_layers: LayerStore, tmp_path: Path) -> None:
    config = write_config(tmp_path, entry(made), base="newest", kinds=())
    store = build(config, tmp_path / "tasks", seeded_layers)
    (task,) = store.load()
    assert task.certificate.is_valid
    newest, fixed = made.git("rev-parse", "HEAD"), made.git("rev-parse", "HEAD~1")
    assert (task.provenance.commit, task.provenance.base_commit) == (newest, "")
    assert task.provenance.recipe == f"commit {fixed} reverted"
    assert (task.labels["base"], task.created_at[:10]) == ("newest", "2024-05-01")
    tree = task_layers(task, seeded_layers).tree
    # The tree is the newest commit's, with the bug of the old one.
    assert (tree / "src/tinycalc/future.py").is_file()
    path = "src/tinycalc/numbers.py"
    assert task.gold_files[path] == (tree / path).read_text()
    assert task.base_files[path] == GitRepository(made.folder).text(f"{fixed}^", path)
    # Described again, it is still told by the commit that was reverted.
    text, kind = Describer(seeded_layers).told([task], tree)[0]
    assert (kind, text in task.issue) == (task.labels["issue_source"], True)


def test_a_fix_whose_lines_changed_since_does_not_apply(made: Any, seeded_layers: LayerStore, tmp_path: Path) -> None:
    made.git("checkout", "--quiet", "-b", "changed")
    try:
        path = made.folder / "src/tinycalc/numbers.py"
        made.write("src/tinycalc/numbers.py", re.sub(r"(?m)^(    .*)$", r"\1  # since", path.read_text()))
        revision = made.commit("Comments")
        config = write_config(tmp_path, entry(made, revision=revision), base="newest")
        store = build(config, tmp_path / "tasks", seeded_layers)
        funnel = json.loads((store.folder / "funnel.json").read_text())
        assert (funnel["total"]["history"]["does_not_apply"], store.load()) == (1, ())
        assert "src/tinycalc/numbers.py: the change of line" in funnel["logs"]["history"]["does_not_apply"]
    finally:
        made.git("checkout", "--quiet", "main")
