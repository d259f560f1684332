"""A tiny model behind the server, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx2
import pytest

from repairgym.config.commands import ServeConfig
from repairgym.config.models import EngineConfig, ModelConfig
from repairgym.inference.embedded import EmbeddedPolicy
from repairgym.inference.engine.core import Engine
from repairgym.inference.loading import create_model
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.serving.app import ModelServer
from repairgym.serving.models import PolicyModel, ServedModel

MAX_LEN_TOKENS = 256
MODEL = ModelConfig(
    vocab_size=400, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, intermediate_size=16
)


@pytest.fixture(scope="session")
def renderer() -> ChatRenderer:
    return ChatRenderer(train_tokenizer(["def f(a, b):\n    return a < b\n"] * 9, 400, 10))


@pytest.fixture
def model(renderer: ChatRenderer) -> PolicyModel:
    engine = Engine(create_model(MODEL), EngineConfig(num_slots=4, max_len_tokens=MAX_LEN_TOKENS))
    return PolicyModel(EmbeddedPolicy(engine, is_threaded=False), renderer, MAX_LEN_TOKENS)


@pytest.fixture
def connect() -> Callable[..., AbstractAsyncContextManager[httpx2.AsyncClient]]:
    """A client of a model: ``async with connect(model, token, **settings)``."""

    @asynccontextmanager
    async def connected(model: ServedModel, token: str = "", **changes: int) -> AsyncIterator[httpx2.AsyncClient]:
        app = ModelServer(model, "tiny", ServeConfig(**changes), token).app()
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as client:
            yield client

    return connected
