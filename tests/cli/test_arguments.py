"""Wrong usage is answered before torch is imported; the grammar is one on every command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import repairgym
from repairgym.cli.arguments import (
    check_new_run,
    check_run,
    check_tasks,
    find_model,
    find_policy,
    run_names,
    tokenizer_folder,
)
from repairgym.cli.main import create_app
from repairgym.config.models import EndpointConfig
from repairgym.errors import InputError, ModelFolderError

WRONG = [
    ("rollout", "absent", "run"),
    ("rollout", "absent", "run", "--policy", "orcale"),
    ("rollout", "absent", "run", "rollout.max_in_fligt=3"),
    ("train", "rl", "absent", "run", "absent"),
    ("train", "rl", "absent"),
    ("train", "sft", "absent", "absent"),
    ("train", "changes", "out.jsonl"),
    ("train", "changes", "out.jsonl", 'packages=["jinja2"]'),
    ("train", "dapo_two_stage", "absent", "run", "absent", "--preset", "paper_b/two_stage"),
    ("eval", "run", "absent", "run", "--policy", "absent"),
    ("eval", "show", "absent"),
    ("serve", "--policy", "absent"),
    ("grade", "absent", "absent.jsonl"),
]
CHECK = """
import json, os, sys
from repairgym.cli.main import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as ended:
        print(json.dumps(["torch" in sys.modules, ended.code, os.listdir()]))
"""
"""One interpreter for all command lines: what one imports or writes shows in its line and in those after it."""


def cli(*arguments: object):
    return CliRunner().invoke(create_app(), [str(one) for one in arguments])


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [tmp_path / "a" / "eval", tmp_path / "b" / "eval", tmp_path / "c" / "other"]
    assert run_names(runs) == [str(runs[0]), str(runs[1]), "other"]
    assert run_names([runs[0], runs[0]]) == ["eval", "eval"]


def test_wrong_usage_is_answered_without_torch(tmp_path):
    command = [sys.executable, "-c", CHECK, json.dumps(WRONG)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    for arguments, (has_torch, code, files) in zip(WRONG, found, strict=True):
        assert (has_torch, code in (2, 3), files) == (False, True, []), (*arguments, done.stderr)


def test_checks_name_what_is_wrong(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError, match="which is a file"):
        check_new_run(file)
    with pytest.raises(InputError, match=r"no run\.db"):
        check_run(tmp_path)
    with pytest.raises(InputError, match="repairgym tasks build"):
        check_tasks(tmp_path)
    with pytest.raises(ModelFolderError, match=r"no config\.json and no tokenizer\.json"):
        find_model(tmp_path)
    with pytest.raises(InputError, match=r"got policy 'orcale', expected a model, base, .*oracle"):
        find_policy("orcale", 1.0, EndpointConfig())
    assert find_policy("oracle", 1.0, EndpointConfig()).folder == ""


def test_base_is_the_shipped_model_wherever_a_model_is_named(tmp_path, monkeypatch):
    (tmp_path / "base").mkdir()
    monkeypatch.chdir(tmp_path)
    shipped = repairgym.shipped_base()
    assert find_model("base") == find_model(Path("base")) == tokenizer_folder(Path("base")) == shipped
    assert find_policy("base", 0.5, EndpointConfig()) == repairgym.load_policy("base", temperature=0.5)
    with pytest.raises(ModelFolderError, match=r"base holds no config\.json"):
        find_model("./base")


def test_presets_and_files_combine_in_order(tmp_path):
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text("seed = 1\n[stage_2]\nyarn_factor = 3.0\n")
    second.write_text("seed = 2\n")
    files = ["--preset", "paper_b/two_stage", "--config", first, "--config", second]
    shown = cli("train", "dapo_two_stage", "t", "r", "m", *files, "stage_1.rl.algorithm=gspo", "--dry-run").output
    assert "seed = 2" in shown
    assert "yarn_factor = 3.0" in shown
    assert 'preset = "gspo"' in shown


def test_an_unknown_preset_is_answered_with_the_nearest():
    result = cli("demo", "--preset", "paper_b/two_stages", "--dry-run")
    assert result.exit_code == 2
    assert "did you mean 'paper_b/two_stage'?" in " ".join(result.output.split())


@pytest.mark.parametrize("arguments", [("--port", "8123"), ("port=8123",)])
def test_a_port_is_an_option_and_a_setting(arguments):
    assert "port = 8123" in cli("serve", "--dry-run", *arguments).output


def test_presets_are_listed_as_words_and_as_json():
    names = json.loads(cli("config", "presets", "--json").output)
    assert "paper_b/two_stage" in names
    listed = cli("config", "presets").output
    assert all(name in listed for name in names)
    assert "[stage_1" in cli("config", "presets", "paper_b/two_stage").output


def test_evaluations_are_shown_as_json(synthetic_run):
    shown = json.loads(cli("eval", "show", synthetic_run, "--phase", "eval/rl/test-mutations", "--json").output)
    assert shown["phase"] == "eval/rl/test-mutations"
    assert any(shown["tables"].values())


@pytest.mark.parametrize(
    ("words", "hint"),
    [(["dmeo"], "'demo'"), (["train", "grpo"], "rl.algorithm=grpo"), (["eval", "compar"], "'compare'")],
)
def test_a_mistyped_command_is_answered_with_the_nearest(words, hint):
    result = cli(*words)
    assert result.exit_code == 2
    assert hint in " ".join(result.output.split())


def test_analyse_is_a_hidden_name_of_analyze():
    assert "analyse" not in cli("--help").output
    assert "repairgym analyze" in cli("analyse", "--help").output


def test_help_shows_help():
    assert "Commands" in cli("help").output
    assert "Pre-train a small base" in cli("help", "train").output


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("repairgym tr", {"train", "trajectories"}),
        ("repairgym train d", {"dagger", "dapo_two_stage", "distill_then_grpo"}),
        ("repairgym rollout --pol", {"--policy"}),
    ],
)
def test_the_shell_completes(typed, completed):
    words = typed.split()
    variables = {"_REPAIRGYM_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    code = "from repairgym.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True)
    assert set(done.stdout.split()) == completed
