"""A tiny untied model, another one of the same shape, and servers over them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from repairgym.config.models import EndpointConfig, ModelConfig
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.loading import create_model, save_checkpoint
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.vllm.server import TokenServer
from repairgym.inference.vllm.weights import Lineage
from repairgym.testing.servers import HttpFake, url_of


@pytest.fixture(scope="session")
def lineage() -> Lineage:
    """Of the weights that a test loads."""
    return Lineage("run")


@pytest.fixture(scope="session")
def renderer(tokenizer: PreTrainedTokenizerFast) -> ChatRenderer:
    return ChatRenderer(tokenizer)


@pytest.fixture(scope="session")
def folders(
    tokenizer: PreTrainedTokenizerFast,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_config: Callable[..., ModelConfig],
) -> list[Path]:
    """Two models of one shape."""
    root = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        config = tiny_config(len(tokenizer), is_tied=False, seed=seed)
        save_checkpoint(create_model(config), tokenizer, root / str(seed))
    return [root / "0", root / "1"]


@asynccontextmanager
async def clients_of(
    *fakes: HttpFake, is_versioned: bool = True, **changes: object
) -> AsyncIterator[list[TokenServer]]:
    listening = [await fake.serve() for fake in fakes]
    clients = []
    for server in listening:
        fields = {"base_url": url_of(server), "model": "tiny", "max_attempts": 3, "backoff_s": 0.001, "timeout_s": 20.0}
        clients.append(EndpointClient(EndpointConfig.model_validate(fields | changes)))
    try:
        yield [TokenServer(client, is_versioned=is_versioned) for client in clients]
    finally:
        for client in clients:
            await client.close()
        for server in listening:
            server.close()


@pytest.fixture
def serving():
    """Clients of fake servers, each behind an address of its own, while they are served."""
    return clients_of
