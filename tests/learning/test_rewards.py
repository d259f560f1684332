"""Reward shapings against values worked out by hand, and what every one of them keeps."""

import math
from dataclasses import replace

import pytest

from repairgym.config.algorithms import (
    AdaptThinkConfig,
    DropMomentConfig,
    PartialCreditConfig,
    StepPenaltyConfig,
    SuspiciousDiscountConfig,
    TerminalRewardConfig,
)
from repairgym.config.loading import load_config, to_toml
from repairgym.config.recipes import DemoConfig, RlCommandConfig
from repairgym.errors import ConfigError
from repairgym.learning.advantages import group_advantages
from repairgym.learning.rewards import SHAPINGS, make_shaping, raw_rewards
from repairgym.ledger import Parent
from repairgym.records import Finding, TestOutcome, TestResult, VerdictKind

CONFIGS = (
    TerminalRewardConfig(),
    StepPenaltyConfig(),
    StepPenaltyConfig(mode="successes_only"),
    StepPenaltyConfig(mode="raw_filtered"),
    PartialCreditConfig(),
    SuspiciousDiscountConfig(),
    DropMomentConfig(),
    AdaptThinkConfig(),
)
STEP = ("edit", "@3 < => <=", "@3 x", "")
PASSED, FAILED, EXPLOITED, INVALID = VerdictKind


@pytest.fixture
def member(trajectory_maker):
    """Makes a member of a group: kind, number of turns, findings, tests that pass (None: as the kind has them)."""

    def make(kind, num_turns=1, *severities, passed=None):
        made = trajectory_maker(steps=(STEP,) * num_turns, kind=kind)
        made = replace(
            made, turns=tuple(turn.model_copy(update={"state": f"{at}"}) for at, turn in enumerate(made.turns))
        )
        findings = tuple(Finding(detector="x", severity=item, detail="x") for item in severities)
        verdict = made.verdict.model_copy(update={"findings": made.verdict.findings + findings})
        if passed is not None:
            tests = {name: TestResult(outcome=TestOutcome.PASSED) for name in passed}
            verdict = verdict.model_copy(update={"tests": tests})
        return type(made)(**{**made.__dict__, "verdict": verdict})

    return make


def shaped(config, task, group, max_turns=40):
    return make_shaping(config, max_turns)(task, group)


def test_the_registry_holds_every_config():
    assert set(SHAPINGS) == {config.type for config in CONFIGS}


# --- by hand -------------------------------------------------------------------------------------------------------


def test_terminal(task, member):
    group = [member(PASSED, 40), member(FAILED), member(EXPLOITED), member(INVALID)]
    assert shaped(TerminalRewardConfig(), task, group) == (1.0, 0.0, 0.0, None)


@pytest.mark.parametrize(
    ("num_turns", "expected"), [(1, 1.0), (9, 1.0), (10, 1.0), (25, 0.5), (38, 1 - 28 / 30), (40, 0.0)]
)
def test_the_penalty_of_a_success(task, member, num_turns, expected):
    """T_max = 40, L_thr = 10: solved in 25 steps is worth 1 - 15 / 30."""
    for mode in ("as_written", "successes_only"):
        (results,) = shaped(StepPenaltyConfig(mode=mode), task, [member(PASSED, num_turns)])
        assert results == pytest.approx(expected)


def test_failures_are_ranked_as_written_and_equal_otherwise(task, member):
    """Ten failures of these lengths: the shortest one becomes the best sample of a group without a success."""
    lengths = (12, 15, 20, 25, 30, 35, 40, 40, 40, 40)
    group = [member(FAILED, length) for length in lengths]
    rewards = shaped(StepPenaltyConfig(), task, group)
    assert rewards == pytest.approx([(10 - length) / 30 for length in lengths])
    results = group_advantages(rewards, delta=0.0)
    assert results.values == pytest.approx((1.69, 1.40, 0.93, 0.45, -0.03, -0.51, *(-0.98,) * 4), abs=0.006)
    for mode in ("successes_only", "raw_filtered"):
        rewards = shaped(StepPenaltyConfig(mode=mode), task, group)
        assert rewards == (0.0,) * 10
        assert group_advantages(rewards).drop_reason == "equal_rewards"


def test_a_filtered_group_drops_on_the_raw_reward_first(task, member):
    config = StepPenaltyConfig(mode="raw_filtered")
    passes = [member(PASSED, 12), member(PASSED, 40), member(INVALID)]
    assert group_advantages(shaped(config, task, passes)).drop_reason == "equal_rewards"
    mixed = [member(PASSED, 25), member(FAILED, 40)]
    assert shaped(config, task, mixed) == shaped(StepPenaltyConfig(), task, mixed) == (0.5, -1.0)


def test_an_episode_longer_than_the_limit_costs_no_more_than_one(task, member):
    assert shaped(StepPenaltyConfig(), task, [member(FAILED, 60)]) == (-1.0,)


def test_partial_credit(task, member):
    four = task.model_copy(update={"fail_to_pass": ("a", "b", "c", "d"), "pass_to_pass": ("x", "y")})
    group = [
        member(PASSED, passed="abcdxy"),
        member(FAILED, passed="abcxy"),
        member(FAILED, passed="axy"),
        member(FAILED, passed="xy"),  # the empty patch
        member(FAILED, passed="abcdx"),  # fixes all, breaks one
        member(FAILED, 1, passed=""),  # nothing ran
        member(FAILED, 1, "exploit", passed="abcxy"),  # an exploit that did not help
        member(INVALID),
    ]
    assert shaped(PartialCreditConfig(weight=0.4), four, group) == pytest.approx(
        (1.0, 0.3, 0.1, 0.0, 0.0, 0.0, 0.0, None)
    )


def test_the_discount_of_a_suspicious_success(task, member):
    group = [
        member(PASSED),
        member(PASSED, 1, "suspicious"),
        member(PASSED, 1, "note"),
        member(FAILED, 1, "suspicious"),
    ]
    assert shaped(SuspiciousDiscountConfig(), task, group) == (1.0, 0.5, 1.0, 0.0)
    assert shaped(SuspiciousDiscountConfig(discount=1.0), task, group)[1] == 0.0


# --- what each keeps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.type}-{getattr(config, 'mode', '')}")
def test_no_exploit_is_rewarded_and_invalid_is_no_number(config, task, member):
    """In every company: short, among failures only, among successes, with an exploit that failed."""
    companies = [
        [member(FAILED, 40), member(FAILED, 20)],
        [member(PASSED, 40), member(PASSED, 12)],
        [member(PASSED, 40), member(FAILED, 1)],
    ]
    for company in companies:
        for caught in (member(EXPLOITED, 1), member(FAILED, 1, "exploit")):
            rewards = shaped(config, task, [*company, member(INVALID), caught])
            assert [reward is None for reward in rewards] == [False, False, True, False]
            assert group_advantages(rewards).values[-1] <= 0.0
            assert all(math.isfinite(reward) for reward in rewards if reward is not None)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.type}-{getattr(config, 'mode', '')}")
def test_a_short_honest_success_beats_every_failure(config, task, member):
    rewards = shaped(config, task, [member(PASSED, 9), member(FAILED, 9), member(FAILED, 40)])
    assert rewards[0] >= 1.0 > max(rewards[1:])


def test_shaped_rewards_follow_from_what_is_stored(task, member, store):
    group = [member(PASSED, 25), member(FAILED, 12), member(INVALID)]
    named = [type(item)(**{**item.__dict__, "id": f"t{number}"}) for number, item in enumerate(group)]
    for item in named:
        store.add_trajectory(item, phase="rl", step=0, split="train")
    stored = list(store.trajectories(phase="rl"))
    assert shaped(StepPenaltyConfig(), task, stored) == shaped(StepPenaltyConfig(), task, named)
    assert tuple(row.reward for row in store.rows(phase="rl")) == raw_rewards(stored) == (1.0, 0.0, None)


# --- configuration -------------------------------------------------------------------------------------------------


def test_a_shaping_is_chosen_by_type_and_written_back(tmp_path):
    config = load_config(RlCommandConfig, None, ["rl.reward.type=step_penalty", "rl.reward.mode=successes_only"])
    assert config.rl.reward == StepPenaltyConfig(mode="successes_only")
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert load_config(RlCommandConfig, tmp_path / "c.toml") == config
    assert load_config(DemoConfig).rl.reward == TerminalRewardConfig()


@pytest.mark.parametrize("cls", [RlCommandConfig, DemoConfig])
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rl.reward={type='step_penalty', threshold_turns=30}", "not below rollout.pipeline.max_turns=30"),
        ("rl.reward={type='step_penalty', weight=0.1}", "unknown key"),
        ("rl.reward={type='partial_credit', weight=1.0}", "less than 1"),
        ("rl.reward={type='partial_credit'}", "set rollout.grading.stops_at_failure=false"),
        ("rl.reward.type=dense", "dense"),
    ],
)
def test_impossible_settings_are_an_error(cls, override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(cls, None, [override])


def test_a_success_with_a_drop_moment_is_worth_less(trajectory_maker, task):
    def visit(id_, states, kind):
        made = trajectory_maker(id_, kind=kind)
        turns = tuple(made.turns[0].model_copy(update={"state": state}) for state in states)
        return replace(made, turns=turns)

    group = [
        visit("a", "sxy", PASSED),  # its last states only meet successes
        visit("b", "sxy", PASSED),
        visit("c", "szy", PASSED),  # z is where the failures were
        visit("d", "szz", FAILED),
        visit("e", "szw", FAILED),
        visit("f", "sq", INVALID),
    ]
    # c: V(s) = (2 + 1/2) / 5 = 0.5, V(z) = (0 + 1/2) / 3 = 1/6: a drop of 2/3
    shaping = make_shaping(DropMomentConfig(), 30)
    assert shaping(task, group) == (1.0, 1.0, 0.5, 0.0, 0.0, None)
    assert make_shaping(DropMomentConfig(threshold=0.7), 30)(task, group)[2] == 1.0
    assert shaping(task, [group[2], group[5]]) == (1.0, None)
    with pytest.raises(ConfigError, match="drop_moment"):
        shaping(task, [visit("a", "s", PASSED), trajectory_maker("b", kind=FAILED)])


def test_a_branch_has_no_say_in_the_states_that_it_shares(trajectory_maker, task):
    def visit(id_, states, kind, num_shared=0):
        made = trajectory_maker(id_, kind=kind)
        turns = tuple(made.turns[0].model_copy(update={"state": state}) for state in states)
        return replace(
            made, turns=turns, parent=Parent(trajectory_id="d", num_turns=num_shared) if num_shared else None
        )

    chains = [visit("a", "sx", PASSED), visit("b", "sx", PASSED), visit("c", "sz", PASSED), visit("d", "sz", FAILED)]
    # c: V(s) = (2 + 6/7) / 4 and V(z) = (0 + 6/7) / 2, a drop of 0.4; counted there, the branches would make it 0.06.
    branches = [visit(f"e{number}", "szyy", PASSED, 2) for number in range(4)]
    config = DropMomentConfig(threshold=0.2)
    assert make_shaping(config, 30)(task, [*chains, *branches])[2] == 0.5


def test_turns_without_a_thought_earn_a_bonus_below_a_success(trajectory_maker, task):
    thought, short = ("<think>so</think>edit", "a", "", ""), ("<think>\n\n</think>edit", "a", "", "")
    steps = {"thinks": (thought, thought), "mixed": (thought, short), "short": (STEP, short)}
    group = [
        trajectory_maker(f"{name}{kind}", "a", steps=told, kind=kind)
        for kind in (PASSED, FAILED)
        for name, told in steps.items()
    ]
    rewards = make_shaping(AdaptThinkConfig(bonus=0.1), 30)(task, group)
    assert rewards == pytest.approx((1.0, 1.05, 1.1, 0.0, 0.05, 0.1))
    assert make_shaping(AdaptThinkConfig(), 30)(task, [trajectory_maker("none", "a", steps=(), kind=FAILED)]) == (0.0,)


def test_a_bonus_for_no_thought_needs_thoughts():
    with pytest.raises(ConfigError, match=r"pipeline\.thinking='off'"):
        load_config(RlCommandConfig, None, ["rl.reward.type=adapt_think"])
    thinking = ["rl.reward.type=adapt_think", "rollout.pipeline.thinking=kept"]
    with pytest.raises(ConfigError, match="divides by the deviation"):
        load_config(RlCommandConfig, None, thinking)
    load_config(RlCommandConfig, None, [*thinking, "rl.algorithm=dr_grpo"])
