from __future__ import annotations

import pytest

from repairgym.analysis.overview import analyze_run, training_phase
from repairgym.analysis.tables import analysis_tables
from repairgym.config.commands import AnalysisConfig
from repairgym.errors import InputError


def test_the_analysis_reads_the_audit_when_training_saw_nothing(cheated):
    assert training_phase(cheated) == "study"
    found = analyze_run(cheated, AnalysisConfig(phase="study", num_permutations=19))
    assert {one.detector for one in found.exploits} == {"weakened_tests"}
    assert found.examples[0].place == "t.py:3"
    assert [one.stage for one in found.behavior] == ["study, step 0", "study, step 5"]
    names = {one.name for one in analysis_tables(found)}
    assert {"behavior", "tools_by_step", "transitions", "reward_gap", "exploit_examples", "drift"} <= names
    with pytest.raises(InputError, match="no phase 'rl'; phases are"):
        analyze_run(cheated, AnalysisConfig())
