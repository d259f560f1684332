"""What a matrix says of two gains: a mismatch is a difference between them that was tested."""

from __future__ import annotations

import pytest

from repairgym.config.commands import MatrixConfig, MatrixPolicy
from repairgym.config.rollout import RolloutConfig
from repairgym.evaluation.matrix import build_matrix
from repairgym.records import VerdictKind
from repairgym.rollout.names import cell_stage, eval_phase
from repairgym.rollout.store import RunStore

NUM_TASKS = 16
CONFIG = MatrixConfig(
    policies={
        "start": MatrixPolicy(policy="submit-at-once"),
        "trained": MatrixPolicy(policy="oracle", trained_in="home", start="start"),
    },
    environments={"home": RolloutConfig(), "away": RolloutConfig()},
)


@pytest.mark.parametrize(
    ("solved", "finding"),
    [
        ({("trained", "home"): range(7), ("trained", "away"): range(7, 11)}, "the two cannot be distinguished"),
        ({("trained", "home"): range(14), ("trained", "away"): range(1)}, "Mismatch"),
        ({("trained", "home"): range(14), ("trained", "away"): range(14)}, "transfers to away"),
    ],
)
def test_only_gains_that_differ_are_a_mismatch(solved, finding, trajectory_maker, tmp_path):
    with RunStore.create(tmp_path / "run.db") as store:
        for policy in CONFIG.policies:
            for environment in CONFIG.environments:
                phase = eval_phase(cell_stage(policy, environment), CONFIG.select.set_name)
                for number in range(NUM_TASKS):
                    kind = VerdictKind.PASSED if number in solved.get((policy, environment), ()) else VerdictKind.FAILED
                    id_ = f"{phase}-{number}"
                    one = trajectory_maker(id_, f"task-{number}", kind=kind, group_id=id_)
                    store.add_trajectory(one, phase=phase, step=0, split="test")
        matrix = build_matrix(store, CONFIG, num_resamples=500)
    assert finding in matrix.findings[0]
    assert ("Mismatch" in matrix.findings[0]) == (finding == "Mismatch")
