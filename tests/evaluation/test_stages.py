from __future__ import annotations

from repairgym.evaluation.stages import (
    is_temperature_control,
    parse_eval_phase,
    stage_label,
    stage_order,
    training_step,
)


def test_stage_names():
    assert parse_eval_phase("eval/rl/test-mutations").stage == "rl"
    assert parse_eval_phase("rl") is None
    assert parse_eval_phase("eval/rl") is None
    assert [training_step(name) for name in ("rft", "rl-step-0010", "rl", "base")] == [0, 10, None, None]
    assert is_temperature_control("rft-t0.5")
    assert not is_temperature_control("rft")
    assert stage_label("rft-t0.5") == "RFT at temperature 0.5"
    assert stage_label("rl-step-0010") == "RL after 10 iterations"
    names = ["rl", "other", "rl-step-0010", "rft", "base", "rl-step-0002", "random", "rft-t0.5", "sft"]
    expected = ["random", "base", "sft", "rft", "rft-t0.5", "rl-step-0002", "rl-step-0010", "rl", "other"]
    assert sorted(names, key=stage_order) == expected
