"""The bonus for rare results of tests: by hand, in any order, never for exploits, in the first iterations only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from repairgym.config.exploration import NoveltyConfig
from repairgym.config.learning import AlgorithmConfig, OptimizerConfig
from repairgym.config.loading import load_config
from repairgym.config.recipes import RlCommandConfig, RlConfig
from repairgym.errors import ConfigError
from repairgym.records import VerdictKind
from repairgym.training.group_sampling import GroupSampler
from repairgym.training.novelty import Novelty, distinguished_states
from repairgym.training.rl_loop import RLLoop

PASSED, FAILED, EXPLOITED, INVALID = VerdictKind
EDIT, UNDO = ("edit", "@3 < => <=", "@3 x", ""), ("undo", "", "undone", "")


def saw(text: str) -> tuple[str, str, str, str]:
    return ("test", "", text, "")


@pytest.fixture
def member(trajectory_maker):
    """Makes an episode of one task: kind, then what its test runs said, each behind an edit."""

    def make(id_: str, kind: VerdictKind, *observations: str, group_id: str = "g"):
        steps = [step for text in observations for step in (EDIT, saw(text))] or [EDIT]
        return trajectory_maker(id_, "task", steps=steps, kind=kind, group_id=group_id)

    return make


def test_states_are_told_apart_by_what_tests_say(trajectory_maker):
    def states(*steps):
        return distinguished_states(trajectory_maker(steps=steps))

    assert states(saw("failed 1"), EDIT) == frozenset()  # before a change, and a change that nobody tested
    assert len(states(EDIT, saw("failed 1"), EDIT, saw("failed 2"), EDIT, saw("failed 1"))) == 2
    assert states(EDIT, saw("failed 1 in 0.31s")) == states(EDIT, UNDO, EDIT, saw("failed 1 in 0.55s"))
    assert states(("edit", "x", "error: no", "tool"), saw("failed 1")) == frozenset()


def test_the_bonus_by_hand(member, store):
    """`a` and `c` were seen by one member, `b` by three; the rarest counts."""
    novelty = Novelty(NoveltyConfig(weight=0.4, num_iterations=2), store, "rl")
    group = [
        member("0", PASSED, "a", "b"),
        member("1", FAILED, "b"),
        member("2", FAILED, "b", "c"),
        member("3", FAILED),
        member("4", EXPLOITED, "d"),
        member("5", INVALID, "e"),
    ]
    raw = (1.0, 0.0, 0.0, 0.0, 0.0, None)
    expected = (1.4, 0.4 / 3**0.5, 0.4, 0.0, 0.0, None)
    shaped = novelty.add_to(raw, group, 0)
    assert shaped[5] is None
    assert shaped[:5] == pytest.approx(expected[:5])
    backwards = novelty.add_to(raw[::-1], group[::-1], 0)
    assert backwards[::-1] == shaped
    assert novelty.metrics(group, 0) == {"novelty/num_new_states": 3.0}
    free = Novelty(NoveltyConfig(weight=0.4, is_reward_free=True), store, "rl").add_to(raw, group, 0)
    assert free[:5] == pytest.approx((0.4, *expected[1:5]))


def test_earlier_iterations_count_and_the_bonus_ends(member, store):
    config = NoveltyConfig(weight=0.5, num_iterations=2)
    for number, kind in enumerate((FAILED, PASSED, PASSED, EXPLOITED)):
        store.add_trajectory(member(f"rl/0/{number}", kind, "a", group_id="rl/0"), phase="rl", step=0, split="train")
    store.add_trajectory(member("eval/0", FAILED, "a", group_id="eval"), phase="eval/x", step=0, split="validation")
    group = [member("x", FAILED, "a"), member("y", FAILED, "new")]
    novelty = Novelty(config, store, "rl")
    assert novelty.add_to((0.0, 0.0), group, 1) == pytest.approx((0.5 / 4**0.5, 0.5))
    assert novelty.add_to((0.0, 0.0), group, 1) == Novelty(config, store, "rl").add_to((0.0, 0.0), group, 1)
    other = [replace(it, task_id="another") for it in group]
    assert novelty.add_to((0.0, 0.0), other, 1) == pytest.approx((0.5, 0.5))
    assert novelty.add_to((0.0, 1.0), group, 2) == (0.0, 1.0)
    assert novelty.metrics(group, 2) == {}


def test_an_exploit_is_never_worth_more_than_without_the_bonus(member, store):
    for config in (NoveltyConfig(), NoveltyConfig(is_reward_free=True)):
        novelty = Novelty(config, store, "rl")
        group = [member("0", EXPLOITED, "new"), member("1", FAILED, "x"), member("2", FAILED)]
        shaped = novelty.add_to((-1.0, 0.0, 0.0), group, 0)
        assert shaped[0] == -1.0 == min(shaped)


def test_the_sampler_gives_the_bonus_to_the_learner(tmp_path, open_run, member):
    """Of what a test run said first, and to nobody once the iterations with a bonus are over."""
    run = open_run(tmp_path)
    rl = RlConfig(exploration=NoveltyConfig(weight=0.4, num_iterations=1))
    sampler = GroupSampler(run, rl, "rl", lambda: run.policy("base"))
    task_id = next(iter(run.tasks))
    group = [
        replace(it, task_id=task_id) for it in (member("x", FAILED, "a"), member("y", FAILED), member("z", PASSED))
    ]
    assert sampler._rewards(group, step=0) == pytest.approx((0.4, 0.0, 1.0))
    assert sampler._rewards(group, step=1) == (0.0, 0.0, 1.0)


def test_the_loop_counts_new_states_and_stores_verdicts(tmp_path, open_run):
    run = open_run(tmp_path)
    rl = RlConfig(
        algorithm=AlgorithmConfig(group_size=4, batch_size=16, optimizer=OptimizerConfig(learning_rate=1e-3)),
        exploration=NoveltyConfig(num_iterations=1),
        num_groups=2,
        num_groups_sampled=2,
        max_refills=0,
        max_iterations=2,
        validation_every=0,
    )
    first, second = list(RLLoop(run, rl, "base").iterations())
    assert first["novelty/num_new_states"] >= 0.0
    assert "novelty/num_new_states" not in second
    assert first["rollout/shaped_reward_mean"] >= first["rollout/reward_mean"]
    assert second["rollout/shaped_reward_mean"] == second["rollout/reward_mean"]
    assert {row.reward for row in run.store.rows(phase="rl")} <= {0.0, 1.0, None}


def test_a_bonus_worth_a_success_is_an_error():
    assert load_config(RlCommandConfig, None, ["rl.exploration.type=novelty"]).rl.exploration == NoveltyConfig()
    with pytest.raises(ConfigError, match="weight"):
        load_config(RlCommandConfig, None, ["rl.exploration.type=novelty", "rl.exploration.weight=1.0"])
