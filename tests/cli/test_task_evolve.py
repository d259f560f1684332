"""`repairgym tasks evolve`: wrong usage is found before anything runs."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give --run (may repeat), or --policy"),
        (("--run", "runs/none", "--policy", "base"), "give --run (may repeat), or --policy"),
        (("--run", "runs/none"), "no run folder"),
        (("--policy", "base", "num_proposals=3"), "generator.base_url and generator.model"),
        (("--policy", "base", "generator.model=m"), "num_proposals=0 asks it nothing"),
        (("--policy", "base", "plan.max_edits=4"), "max_edits"),
    ],
)
def test_usage(cli, task_folder, tmp_path, arguments, text):
    code, shown = cli("tasks", "evolve", task_folder, tmp_path / "out", *arguments)
    assert code != 0
    assert text in " ".join(shown.split())
    assert not (tmp_path / "out").exists()


def test_the_help_has_examples(cli):
    code, shown = cli("tasks", "evolve", "--help")
    assert code == 0
    assert "repairgym tasks evolve tasks evolved --run runs/rl num_tasks=300" in " ".join(shown.split())
