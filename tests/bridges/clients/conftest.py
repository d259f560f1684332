"""A server's tasks over scripted sandboxes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from repairgym.bridges.clients.episodes import TaskServer
from repairgym.config.commands import ServeTasksConfig
from repairgym.config.loading import load_config
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.rollout.external.clients import for_clients
from repairgym.rollout.runner import Runner
from repairgym.rollout.store import RunStore
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer, scripted_task


@pytest.fixture(scope="session")
def renderer() -> ChatRenderer:
    return ChatRenderer(train_tokenizer(["user assistant read_file test submit"] * 9, 400, 40))


@pytest.fixture
def make_server(tmp_path: Path, renderer: ChatRenderer) -> Callable[..., TaskServer]:
    """Tasks ``tiny-1`` and ``tiny-2``; ``make_server(*overrides)``."""

    def make(*overrides: str, backend: ScriptedBackend | None = None, store: RunStore | None = None) -> TaskServer:
        config = load_config(ServeTasksConfig, [], overrides)
        sandboxes = backend or ScriptedBackend(scripted_answer("no"))
        runner = Runner(for_clients(config.rollout), sandboxes, lambda _: TaskLayers(tmp_path, tmp_path), renderer)
        return TaskServer([scripted_task(f"tiny-{k}") for k in (1, 2)], config, runner, renderer, "test", store)

    return make
