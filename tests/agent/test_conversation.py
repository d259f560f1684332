"""Conversations and ledgers: what forks, what each history holds, and that training sees what the policy saw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from repairgym.agent.conversation import Conversation, Hint, InitialPrompt
from repairgym.learning.samples import policy_sample, split_histories, supervised_sample
from repairgym.ledger import UNKNOWN_VERSION, Branch
from repairgym.records import StopReason, Trajectory, Turn, Verdict, VerdictKind


async def talk(conversation: Conversation, num_turns: int, after=lambda conversation, turn: None) -> tuple[Turn, ...]:
    turns = []
    for number in range(num_turns):
        answer = await conversation.complete(50)
        turns.append(Turn(action=answer.text, tool="t", observation=f"seen {number}", action_span=answer.span))
        conversation.observe(f"seen {number}\nsecond line")
        after(conversation, number)
    return tuple(turns)


def trajectory_of(conversation: Conversation, turns: tuple[Turn, ...]) -> Trajectory:
    verdict = Verdict(kind=VerdictKind.PASSED, reason="", grader_version="1")
    ledger, stop = conversation.ledger(), StopReason.SUBMITTED
    return Trajectory("t", "task", "g", "p", "speaker", "none", turns, ledger, stop, {}, "", verdict, 0)


def check_exact(trajectory: Trajectory, seen: list[tuple[list[int], list[int]]]) -> list[Trajectory]:
    """Every answer is learned exactly once, behind exactly the tokens that it was sampled from."""
    parts = split_histories(trajectory)
    for turn, (prompt, _) in zip(trajectory.turns, seen, strict=True):
        assert trajectory.ledger.prompt_of(turn.action_span) == prompt
    learned = []
    for part in parts:
        sample = policy_sample(part, 1.0)
        assert sample.turn is not None
        for number, turn in enumerate(part.turns):
            start, end = turn.action_span
            if start < end:
                assert (part.ledger.token_id[:start].tolist(), part.ledger.token_id[start:end].tolist()) == seen[number]
                assert sample.weight[start:end].all()
                assert sample.old_log_prob[start:end].tolist() == pytest.approx([-0.01 * k for k in range(end - start)])
                assert (sample.turn[start:end] == number).all()
                learned.append(number)
        assert sample.weight.sum() == sum(turn.action_span[1] - turn.action_span[0] for turn in part.turns)
    assert sorted(learned) == list(range(len(seen)))
    return parts


@pytest.mark.asyncio
async def test_a_full_history_is_one_sample(chat_renderer, make_speaker):
    policy = make_speaker("a", "b", "c")
    conversation = Conversation(policy, chat_renderer, "s", 0)
    conversation.begin(InitialPrompt("look", system="be good"))
    turns = await talk(conversation, 3)
    assert len(check_exact(trajectory_of(conversation, turns), policy.seen)) == 1
    assert policy.seen[0][0] == chat_renderer.open_ids("look", "be good")


@pytest.mark.asyncio
async def test_dropped_thoughts_fork_and_stay_exact(chat_renderer, make_speaker):
    policy = make_speaker("<think>hm\n</think>edit 1", "test", "<think>so</think> submit", "end")
    conversation = Conversation(policy, chat_renderer, "s", 0)
    conversation.begin(InitialPrompt("look"))
    turns = await talk(conversation, 4, lambda one, turn: one.drop_thought())
    trajectory = trajectory_of(conversation, turns)
    parts = check_exact(trajectory, policy.seen)
    assert len(parts) == 3
    last = chat_renderer.decode(policy.seen[3][0])
    assert "think" not in last
    assert "edit 1" in last
    assert "submit" in last
    assert supervised_sample(parts[1]).weight.sum() == policy_sample(parts[1], 1.0).weight.sum()


@pytest.mark.asyncio
async def test_elided_observations_fork_and_stay_exact(chat_renderer, make_speaker):
    policy = make_speaker(*"abcdef")
    conversation = Conversation(policy, chat_renderer, "s", 0)
    conversation.begin(InitialPrompt("look"))
    turns = await talk(conversation, 6, lambda one, turn: one.elide(2) if turn in (3, 4) else None)
    parts = check_exact(trajectory_of(conversation, turns), policy.seen)
    assert [sum(turn.action_span[1] > 0 for turn in part.turns) for part in parts] == [4, 1, 1]
    last = chat_renderer.decode(policy.seen[5][0])
    assert last.count("[old output: 2 lines left out]") == 3
    assert "seen 2" not in last
    assert "seen 3" in last


@pytest.mark.asyncio
async def test_a_new_beginning_knows_nothing_of_the_old_one(chat_renderer, make_speaker):
    policy = make_speaker(*"abcd")
    conversation = Conversation(policy, chat_renderer, "s", 0)
    conversation.begin(InitialPrompt("look"))
    turns = await talk(conversation, 4, lambda one, turn: one.begin(InitialPrompt("again")) if turn == 1 else None)
    parts = check_exact(trajectory_of(conversation, turns), policy.seen)
    assert len(parts) == 2
    assert policy.seen[2][0] == chat_renderer.open_ids("again")


@pytest.mark.asyncio
async def test_a_demonstration_is_shown_and_in_no_record(chat_renderer, make_speaker):
    policy = make_speaker("a", "b")
    conversation = Conversation(policy, chat_renderer, "s", 0)
    conversation.begin(InitialPrompt("look", demonstration="like this"))
    assert conversation.num_tokens == len(chat_renderer.open_ids("like this\n\nlook"))
    turns = await talk(conversation, 2)
    assert policy.seen[0][0] == chat_renderer.open_ids("like this\n\nlook")
    trajectory = trajectory_of(conversation, turns)
    ids = trajectory.ledger.token_id.tolist()
    clean = chat_renderer.open_ids("look")
    assert ids[: len(clean)] == clean
    first, second = policy.seen
    assert ids[len(clean) :][: len(second[0]) - len(first[0])] == second[0][len(first[0]) :]
    assert "like this" not in chat_renderer.decode(ids)
    assert supervised_sample(trajectory).num_learned == sum(len(ids) for _, ids in policy.seen)
    with pytest.raises(ValueError, match="no sampling log-probability"):
        policy_sample(trajectory, 1.0)


@pytest.mark.asyncio
async def test_a_hint_is_shown_from_one_observation_on_and_in_no_record(chat_renderer, make_speaker):
    texts = ("a", "b", "c", "d")
    plain, hinted = make_speaker(*texts), make_speaker(*texts)
    conversations = [
        Conversation(plain, chat_renderer, "s", 0),
        Conversation(hinted, chat_renderer, "s", 0, hint=Hint("try again", 2)),
    ]
    trajectories, sizes = [], []
    for conversation in conversations:
        conversation.begin(InitialPrompt("look"))
        turns = await talk(conversation, 4)
        sizes.append(conversation.num_tokens)
        trajectories.append(trajectory_of(conversation, turns))
    without, with_hint = trajectories
    np.testing.assert_array_equal(without.ledger.token_id, with_hint.ledger.token_id)
    assert [prompt for prompt, _ in plain.seen[:2]] == [prompt for prompt, _ in hinted.seen[:2]]
    for number in (2, 3):
        assert "seen 1\nsecond line\ntry again" in chat_renderer.text(hinted.seen[number][0])
    num_hint = len(hinted.seen[2][0]) - len(plain.seen[2][0])
    assert num_hint > 0
    assert len(hinted.seen[3][0]) - len(plain.seen[3][0]) == sizes[1] - sizes[0] == num_hint
    spans = [turn.action_span for turn in with_hint.turns]
    versions = [set(with_hint.ledger.policy_version[slice(*span)].tolist()) for span in spans]
    assert UNKNOWN_VERSION not in versions[0] | versions[1]
    assert versions[2:] == [{UNKNOWN_VERSION}] * 2
    assert supervised_sample(with_hint).num_learned == sum(len(ids) for _, ids in hinted.seen)
    with pytest.raises(ValueError, match="no sampling log-probability"):
        policy_sample(with_hint, 1.0)


@pytest.mark.asyncio
async def test_a_hint_is_gone_where_the_history_is_cut_and_its_actions_stay_without_a_version(
    chat_renderer, make_speaker
):
    policy = make_speaker("a", "b", "c")
    conversation = Conversation(policy, chat_renderer, "s", 0, hint=Hint("try again", 1))
    conversation.begin(InitialPrompt("look"))
    turns = await talk(conversation, 3, lambda one, turn: one.elide(1) if turn == 1 else None)
    assert ["try again" in chat_renderer.text(prompt) for prompt, _ in policy.seen] == [False, True, False]
    ledger = conversation.ledger()
    versions = [set(ledger.policy_version[slice(*turn.action_span)].tolist()) for turn in turns]
    assert [UNKNOWN_VERSION in it for it in versions] == [False, True, True]


def test_a_history_in_which_nothing_was_sampled_is_no_part(trajectory_maker):
    trajectory = trajectory_maker()
    assert split_histories(trajectory) == [trajectory]
    ledger = trajectory.ledger
    forked = replace(ledger, branches=(Branch(0, ((0, len(ledger)),)), Branch(len(ledger), ((0, 3),))))
    (part,) = split_histories(replace(trajectory, ledger=forked))
    np.testing.assert_array_equal(part.ledger.is_action, ledger.is_action)
    assert part.turns == trajectory.turns
