"""DAgger with the scripted expert and Agent Q: the expert's actions, exact ledgers, both recipes on a tiny model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from repairgym.agent.expert import Expert
from repairgym.agent.tools.window_edits import CompactEdit
from repairgym.config.exploration import SearchTreeConfig
from repairgym.config.learning import OptimizerConfig, SftConfig, StepDpoConfig
from repairgym.config.loading import load_config
from repairgym.config.rounds import AgentQConfig, DaggerConfig
from repairgym.config.selection import TrainingSelection
from repairgym.errors import ConfigError, TaskError
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.learning.samples import policy_sample
from repairgym.ledger import UNKNOWN_VERSION, Parent
from repairgym.recipes.agent_q import agent_q
from repairgym.recipes.dagger import dagger, expert_samples
from repairgym.recipes.step_dpo import action_pairs
from repairgym.records import VerdictKind
from repairgym.rollout.jobs import make_groups

FIX, OTHER = CompactEdit(3, "<", "<="), CompactEdit(5, "1", "2")


@pytest.mark.parametrize(
    ("said", "next_action"),
    [
        ([], "edit < => <= @3"),
        ([("edit < => <= @3", "@3 a <= b")], "edit 1 => 2 @5"),
        ([("edit < => <= @4", "@3 a <= b")], "edit 1 => 2 @5"),  # forgiven: the observation names the line
        ([("edit < => <= @3", "error: no")], "edit < => <= @3"),
        ([("edit + => - @2", "@2 a - b")], "undo"),
        ([("edit + => - @2", "@2 a - b"), ("undo", "undone")], "edit < => <= @3"),
        ([("line @3 x", "@3 x")], "undo"),
        ([("nonsense", "error: what?")], "edit < => <= @3"),
        ([("edit < => <= @3", "@3 a <= b"), ("edit 1 => 2 @5", "@5 x")], "test"),
        ([("edit < => <= @3", "@3 a <= b"), ("edit 1 => 2 @5", "@5 x"), ("test", "passed 2")], "submit"),
    ],
)
def test_the_expert_knows_the_way_from_any_state(said: list[tuple[str, str]], next_action: str) -> None:
    expert = Expert([FIX, OTHER])
    for action, observation in said:
        expert.observe(action, observation)
    assert expert.act() == next_action
    assert Expert([]).act() is None


def start_run(open_run, folder):
    run = open_run(folder)
    run.checkpoint("base").rename(run.checkpoint("start"))
    return run


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_tokens_of_the_expert_are_never_learned_as_the_policys(open_run, tmp_path, share: float) -> None:
    run = start_run(open_run, tmp_path)
    renderer = ChatRenderer(load_tokenizer(run.checkpoint("start")))
    policy = replace(run.policy("start"), expert_share=share)
    episodes = run.run_jobs(policy, make_groups("dagger", 0, ["train-0", "train-1"], 4, 0), phase="dagger")
    spans = [episode.ledger.policy_version[slice(*turn.action_span)] for episode in episodes for turn in episode.turns]
    by_expert = [bool((versions == UNKNOWN_VERSION).all()) for versions in spans]
    assert all(len(set(versions.tolist())) == 1 for versions in spans)
    assert all(by_expert) if share == 1.0 else 0 < sum(by_expert) < len(by_expert)
    if share == 1.0:
        assert {episode.verdict.kind for episode in episodes} == {VerdictKind.PASSED}
        with pytest.raises(ValueError, match="no sampling log-probability"):
            policy_sample(episodes[0], 1.0)
    samples = expert_samples(episodes, run.tasks, renderer)
    assert len(samples) == len(spans)
    assert {sample.group_id for sample in samples} == {"train-0", "train-1"}, "a task is held out whole"
    places = [(episode, turn) for episode in episodes for turn in episode.turns]
    for sample, (episode, turn) in zip(samples, places, strict=True):
        history = episode.ledger.prompt_of(turn.action_span)
        assert sample.token_id[: len(history)].tolist() == history
        assert not sample.weight[: len(history)].any()
        assert sample.weight[len(history) :].all()
    said = [renderer.decode(s.token_id[s.weight > 0].tolist()) for s in samples]
    assert {"edit < => <= @2", "test", "submit"} <= set(said)


def test_settings_that_nothing_reads_are_errors() -> None:
    for wrong in ("sft.thoughts=remove", "sft.is_paired=true", "sft.is_format_error_masked=true"):
        with pytest.raises(ConfigError, match=r"leave sft\.thoughts, sft\.is_paired and"):
            load_config(DaggerConfig, None, [wrong])
    with pytest.raises(ConfigError, match=r"leave tree\.num_learned out"):
        load_config(AgentQConfig, None, ["tree.num_learned=4"])


@pytest.mark.slow
def test_dagger_repairs_what_the_policy_could_not(open_run, tmp_path) -> None:
    run = start_run(open_run, tmp_path)
    sft = SftConfig(optimizer=OptimizerConfig(learning_rate=0.01, weight_decay=0.0), num_epochs=12, batch_size=4)
    config = DaggerConfig(select=TrainingSelection(num_tasks=2), num_rounds=2, num_samples=4, sft=sft)
    target = dagger(run, config)
    assert target.name == "dagger"
    jobs = make_groups("after", 0, ["train-0", "train-1"], 4, 0)
    after = run.run_jobs(run.policy("dagger"), jobs, phase="after")
    before = run.run_jobs(run.policy("start"), make_groups("before", 0, ["train-0"], 4, 0), phase="before")
    assert not any(episode.verdict.reward for episode in before)
    assert sum(episode.verdict.reward for episode in after) >= 6
    assert dict(run.store.metrics("dagger", "dagger/num_passed"))[0] == 8.0


def test_values_of_a_search_count_all_leaves_below_an_action(trajectory_maker) -> None:
    def made(id_: str, actions: str, kind: VerdictKind, parent: Parent | None = None):
        steps = tuple(("edit", action, f"saw {action}", "") for action in actions)
        return replace(trajectory_maker(id_, steps=steps, kind=kind), task_id="t", parent=parent)

    passed, failed = VerdictKind.PASSED, VerdictKind.FAILED
    first = made("a", "xy", passed)
    other = made("b", "z", failed)
    branch = made("c", "xw", failed, Parent(trajectory_id="a", num_turns=1))
    pairs = action_pairs([first, other, branch], 0.3, 10)
    # x has 1/2 and z 0; behind x, y has 1 and w 0.
    assert len(pairs) == 2
    assert len(action_pairs([first, other, branch], 0.6, 10)) == 1
    # A critic that ranks alone: equal rewards become pairs.
    equal = [made("d", "x", failed), made("e", "z", failed)]
    assert action_pairs(equal, 0.3, 10) == []
    (pair,) = action_pairs(equal, 0.3, 10, critic_weight=0.5)
    chosen, rejected = (it.old_log_prob[it.weight > 0].mean() for it in (pair.chosen, pair.rejected))
    assert chosen > rejected
    alike = [replace(it, ledger=replace(it.ledger, log_prob=np.full_like(it.ledger.log_prob, -1.0))) for it in equal]
    assert action_pairs(alike, 0.3, 10, critic_weight=0.5) == []


def test_agent_q_searches_pairs_and_updates(open_run, tmp_path) -> None:
    run = start_run(open_run, tmp_path)
    fast = StepDpoConfig(optimizer=OptimizerConfig(learning_rate=0.001), batch_size=8)
    config = AgentQConfig(
        select=TrainingSelection(num_tasks=1),
        num_rounds=2,
        num_leaves=5,
        tree=SearchTreeConfig(num_children=3),
        critic_weight=0.9,
        min_gap=0.2,
        step_dpo=fast,
    )
    assert agent_q(run, config).is_dir()
    assert [step for step, _ in run.store.metrics("agent_q", "preference/num_pairs")] == [0, 1]
    assert len(list(run.store.trajectories(phase="agent_q"))) == 10
    weights = [(run.checkpoint(name) / "model.safetensors").read_bytes() for name in ("start", "agent_q-0", "agent_q")]
    assert len(set(weights)) == 3


def test_agent_q_without_unequal_actions_is_an_error(open_run, tmp_path) -> None:
    run = start_run(open_run, tmp_path)
    config = AgentQConfig(select=TrainingSelection(num_tasks=1), num_leaves=3)
    with pytest.raises(TaskError, match="no node has two actions"):
        agent_q(run, config)
