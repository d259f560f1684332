"""A policy that says what it is told, and a tokenizer for it."""

from __future__ import annotations

import pytest

from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer


class Speaker:
    """Says given texts; remembers every prompt and what it answered."""

    id = "speaker"

    def __init__(self, renderer: ChatRenderer, texts: list[str], cost_usd: float = 0.0) -> None:
        self.renderer = renderer
        self.texts = iter(texts)
        self.cost_usd = cost_usd
        self.seen: list[tuple[list[int], list[int]]] = []

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        ids = self.renderer.action_ids(next(self.texts))[: sampling.max_tokens]
        self.seen.append((list(prompt_ids), ids))
        return Generation(
            token_ids=tuple(ids),
            log_probs=tuple(-0.01 * position for position in range(len(ids))),
            is_stopped=ids[-1] in sampling.stop_token_ids,
            policy_version=4,
            cost_usd=self.cost_usd,
        )

    async def end_session(self, session_id: str) -> None:
        pass


@pytest.fixture(scope="session")
def chat_renderer() -> ChatRenderer:
    texts = ["user assistant system <think> edit test </think> lines left out ```command"] * 9
    return ChatRenderer(train_tokenizer(texts, 400, 40))


@pytest.fixture(scope="session")
def make_speaker(chat_renderer):
    def make(*texts: str, cost_usd: float = 0.0) -> Speaker:
        return Speaker(chat_renderer, list(texts), cost_usd)

    return make
