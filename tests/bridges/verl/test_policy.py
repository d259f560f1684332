"""verl's servers as a policy: plain sampling is asked for, a reply that cannot be learned from is trouble."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from repairgym.bridges.verl.policy import ServerPolicy, require_plain_sampling
from repairgym.errors import ConfigError, ModelReplyError, ModelServerError
from repairgym.inference.base import SamplingParams

SAMPLING = SamplingParams(max_tokens=3, stop_token_ids=(9,), seed=1 << 40)


@dataclass
class Reply:
    token_ids: list[int]
    log_probs: list[float] | None
    extra_fields: dict[str, Any] = field(default_factory=lambda: {"global_steps": 4})
    stop_reason: str | None = "completed"


class Client:
    """Answers with what it is given."""

    def __init__(self, reply: Reply | Exception) -> None:
        self.reply = reply
        self.asked: list[tuple[str, list[int], dict[str, Any]]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Reply:
        self.asked.append((request_id, prompt_ids, sampling_params))
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


@pytest.mark.asyncio
@pytest.mark.parametrize(("ids", "is_stopped"), [([5, 9], True), ([5, 6, 7], False)])
async def test_an_answer_has_the_version_it_was_sampled_with(ids, is_stopped):
    client = Client(Reply(ids, [-0.5] * len(ids)))
    found = await ServerPolicy(client).generate("e~0", [1, 2], SAMPLING)
    assert (found.token_ids, found.policy_version, found.is_stopped) == (tuple(ids), 4, is_stopped)
    ((session, prompt, asked),) = client.asked
    assert (session, prompt) == ("e~0", [1, 2])
    assert {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}.items() <= asked.items()
    assert asked["stop_token_ids"] == [9]
    assert 0 <= asked["seed"] < 1 << 31


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (Reply([], []), "0 tokens"),
        (Reply([1, 2, 3, 4], [-1.0] * 4), "4 tokens"),
        (Reply([1, 2], None), "0 log-probabilities"),
        (Reply([1, 2], [-1.0]), "1 log-probabilities"),
        (Reply([1], [-1.0], {}), "version"),
    ],
)
async def test_replies_that_cannot_be_learned_from(reply, problem):
    with pytest.raises(ModelReplyError, match=problem):
        await ServerPolicy(Client(reply)).generate("e", [1], SAMPLING)


@pytest.mark.asyncio
async def test_a_dead_server_is_trouble_of_the_server():
    with pytest.raises(ModelServerError, match="actor died"):
        await ServerPolicy(Client(RuntimeError("actor died"))).generate("e", [1], SAMPLING)


def test_another_distribution_than_the_plain_policys_is_refused():
    require_plain_sampling({"temperature": 1.0, "top_p": 1, "top_k": -1, "logprobs": True})
    with pytest.raises(ConfigError, match=r"top_p.*0\.9"):
        require_plain_sampling({"temperature": 1.0, "top_p": 0.9})
