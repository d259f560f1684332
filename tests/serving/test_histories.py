"""The ledger of an agent that speaks text: prompts continue what was sampled, rewritten histories fork."""

from __future__ import annotations

import json

import numpy as np
import pytest

from repairgym.inference.base import Generation
from repairgym.serving.dialects.chat import ChatDialect
from repairgym.serving.dialects.messages import MessagesDialect
from repairgym.serving.histories import EpisodeHistories

# Ids that the tokenizer would not give for their own text.
SAMPLED = [(7, 9, 7), (11, 12), (13,), (9, 9, 9)]


class Episode:
    """Answers requests with fixed ids and notes every prompt, as a server's log would."""

    def __init__(self, renderer):
        self.histories, self.renderer, self.log = EpisodeHistories(renderer), renderer, []
        self.stop_id = renderer.stop_token_ids[0]

    def answer(self, messages, ids=None, dialect=None, message=None, **fields):
        """Return the message that the agent gets: ``message``, or the text of the ids."""
        dialect = dialect or ChatDialect()
        request = dialect.read({"messages": messages, "max_tokens": 9, **fields})
        prompt = self.histories.prompt(request)
        sampled = (*(ids or SAMPLED[len(self.log) % len(SAMPLED)]), self.stop_id)
        generation = Generation(token_ids=sampled, log_probs=(-0.5,) * len(sampled), is_stopped=True, policy_version=3)
        message = message or {"role": "assistant", "content": self.renderer.decode(sampled)}
        self.log.append((prompt.token_ids, list(sampled)))
        self.histories.record(request, prompt, generation, message, self.stop_id)
        return message

    def learned(self):
        """Return (tokens before it, tokens) of each sampled answer, as training reads them from the ledger."""
        ledger, found = self.histories.ledger.build(), []
        for number, branch in enumerate(ledger.histories):
            positions = np.concatenate([np.arange(*span) for span in branch.spans])
            last = ledger.branches[number + 1].start if number + 1 < len(ledger.branches) else len(ledger)
            new = ledger.is_action[positions] & (positions >= branch.start) & (positions < last)
            ids = ledger.token_id[positions].tolist()
            ends = [place for place in range(len(ids)) if new[place] and ids[place] == self.stop_id]
            for end in ends:
                start = end
                while start > 0 and new[start - 1] and ids[start - 1] != self.stop_id:
                    start -= 1
                found.append((ids[:start], ids[start : end + 1]))
        return found


def user(text):
    return {"role": "user", "content": text}


def test_a_conversation_extends_the_ledger_and_its_log_agrees(renderer):
    episode, messages = Episode(renderer), [user("a < b")]
    for text in ("one", "two", "three"):
        messages += [episode.answer(messages), user(text)]
    assert episode.learned() == episode.log
    assert not episode.histories.ledger.build().branches
    (first, ids), (second, _), _ = episode.log
    assert second[: len(first) + len(ids)] == first + ids


def test_a_compacted_history_forks_and_keeps_the_sampled_ids(renderer):
    episode, messages = Episode(renderer), [user("a < b")]
    for text in ("one", "two"):
        messages += [episode.answer(messages), user(text)]
    kept = messages[3]
    episode.answer([user("Summary: a < b"), kept, user("go on")])
    counts = episode.histories.counts
    assert (counts.num_forks, counts.num_spliced_answers, counts.num_foreign_answers) == (1, 1, 0)
    assert episode.learned() == episode.log
    prompt, ids = episode.log[-1][0], [*SAMPLED[1], episode.stop_id]
    assert any(prompt[start : start + len(ids)] == ids for start in range(len(prompt)))


def test_edited_output_forks_behind_the_last_unchanged_answer(renderer):
    episode, messages = Episode(renderer), [user("a < b")]
    for text in ("one", "two"):
        messages += [episode.answer(messages), user(text)]
    messages[2] = user("one (elided)")
    episode.answer(messages)
    ledger = episode.histories.ledger.build()
    assert episode.learned() == episode.log
    assert len(ledger.branches) == 2
    assert ledger.is_action.sum() == sum(len(ids) for _, ids in episode.log)


def test_two_conversations_take_turns(renderer):
    episode, one, two = Episode(renderer), [user("a < b")], [user("b < a")]
    for _ in range(3):
        for messages in (one, two):
            messages += [episode.answer(messages), user("next")]
    assert sorted(map(repr, episode.learned())) == sorted(map(repr, episode.log))
    assert episode.histories.counts.num_forks == 5


def test_an_answer_that_the_agent_wrote_is_context(renderer):
    episode = Episode(renderer)
    episode.answer([user("a < b"), {"role": "assistant", "content": "made up"}, user("so?")])
    assert episode.histories.counts.num_foreign_answers == 1
    assert episode.learned() == episode.log


CODE = "NAME = '\\u00c0'"


def call(command, call_id="call_7", **more):
    function = {"name": "bash", "arguments": json.dumps({"command": command, **more}, ensure_ascii=False)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


@pytest.mark.parametrize(
    ("was", "sent", "edit"),
    [
        (
            {"command": CODE},
            {"command": CODE.encode().decode("unicode_escape")},
            "answer 1, bash.command, character 8: \"NAME = '\\\\u00c0'\" came back as \"NAME = 'À'\"",
        ),
        (
            {"command": "cd /x && ls"},
            {"command": "ls"},
            "answer 1, bash.command, character 0: 'cd /x && ls' came back as 'ls'",
        ),
        ({"command": "ls", "n": 1}, {"command": "ls"}, "answer 1, bash.n, character 0: '1' came back as 'absent'"),
    ],
)
def test_a_call_that_the_agent_edits_forks_and_is_learned_as_it_was_sampled(renderer, was, sent, edit):
    """Claude Code decodes escapes in arguments and shortens commands, in what it runs and in the history it sends."""
    episode, messages = Episode(renderer), [user("a < b")]
    messages += [episode.answer(messages, ids=(7, 9)), user("one")]
    episode.answer(messages, ids=(9, 7), message=call(**was))
    result = {"role": "tool", "tool_call_id": "call_7", "content": "done"}
    messages += [call(**sent), result]
    messages += [episode.answer(messages, ids=(11, 7)), user("go on")]
    episode.answer(messages, ids=(12, 7))
    counts = episode.histories.counts
    assert counts.edits == [edit]
    assert (counts.num_foreign_answers, counts.num_forks) == (1, 1)
    assert episode.learned() == episode.log  # the edited text is context, what was sampled keeps its ids
    (second, ids), (third, _) = episode.log[1:3]
    assert third[: len(second)] == second
    assert third[len(second) : len(second) + len(ids)] != ids


def test_numbers_come_back_as_javascript_writes_them(renderer):
    episode, messages = Episode(renderer), [user("a < b")]
    sampled = call("ls", limit=5.0, scale=1e3, seed=12345678901234567890, share=0.25)
    sent = call("ls", limit=5, scale=1000, seed=12345678901234567000, share=0.25)
    episode.answer(messages, message=sampled)
    episode.answer([*messages, sent, {"role": "tool", "tool_call_id": "call_7", "content": "done"}])
    assert (episode.histories.counts.num_foreign_answers, episode.histories.counts.num_forks) == (0, 0)
    assert episode.learned() == episode.log


def test_white_space_around_an_answer_and_another_dialect_change_nothing(renderer):
    episode = Episode(renderer)
    said = episode.answer([user("a < b")], ids=(13, 7))
    text = [{"type": "text", "text": f"{said['content']}\n"}]
    episode.answer([user("a < b"), {"role": "assistant", "content": text}, user("one")], dialect=MessagesDialect())
    assert episode.histories.counts.num_forks == 0
    assert episode.learned() == episode.log


def test_a_prompt_as_text_or_ids_continues_what_was_sampled(renderer):
    episode = Episode(renderer)
    episode.answer([user("a < b")])
    history = episode.log[0][0] + episode.log[0][1]
    assert episode.histories.text_prompt([*history, 5]).token_ids == [*history, 5]
    prompt = episode.histories.text_prompt(renderer.text(history) + " < b")
    assert prompt.token_ids[: len(history)] == history
    assert prompt.parent is not None
    assert episode.histories.text_prompt("other").parent is None
